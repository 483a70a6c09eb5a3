// SPDX-License-Identifier: Apache-2.0

//! What the paper reports, each figure once.

use crate::topology::Topology;

/// Where the figures are from.
pub(super) const SOURCE: &str =
    "The Price of Anarchy in Disaggregated Inference, arXiv 2606.17081, Llama-3.1-70B on B200";

/// First load of the published grid beyond the knee: the saturated phase.
pub(super) const SATURATED_FROM: usize = 128;

/// A published figure.
pub(super) struct Published {
    /// What it is about.
    pub(super) claim: &'static str,
    /// As printed.
    pub(super) figure: &'static str,
    /// Where.
    pub(super) place: &'static str,
    /// The fleet that it was measured on; absent where it is said of all.
    pub(super) topology: Option<Topology>,
    /// The same as numbers.
    pub(super) quantity: Quantity,
}

/// Something that can be measured again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Quantity {
    /// PoA-hat of the static rule at every load before the knee.
    Plateau { least: f64, most: f64 },
    /// Sessions at once between which the latency takes off.
    Knee { above: f64, up_to: f64 },
    /// PoA-hat of the static rule over that of the adaptive one in the saturated phase.
    PoaDrop(f64),
    /// Requests a second of the adaptive rule over those of the static one, there.
    Throughput(f64),
    /// TTFT P99 of the static rule over that of the adaptive one, there.
    P99Drop(f64),
}

const ONE_TWO: Option<Topology> = Some(Topology::Disaggregated {
    prefill: 1,
    decode: 2,
});
const ONE_FIVE: Option<Topology> = Some(Topology::Disaggregated {
    prefill: 1,
    decode: 5,
});

pub(super) const PUBLISHED: [Published; 6] = [
    Published {
        claim: "the knee: sessions at once from which latency takes off",
        figure: "(96, 128]",
        place: "abstract and results",
        topology: None,
        quantity: Quantity::Knee {
            above: 96.0,
            up_to: 128.0,
        },
    },
    Published {
        claim: "PoA-hat on the plateau before the knee",
        figure: "7 to 19",
        place: "results",
        topology: None,
        quantity: Quantity::Plateau {
            least: 7.0,
            most: 19.0,
        },
    },
    Published {
        claim: "PoA-hat of the saturated phase, static to adaptive",
        figure: "66.4 to 21.5, 3.1 times less",
        place: "abstract",
        topology: ONE_FIVE,
        quantity: Quantity::PoaDrop(66.4 / 21.5),
    },
    Published {
        claim: "what that costs in throughput",
        figure: "13 % less",
        place: "abstract",
        topology: ONE_FIVE,
        quantity: Quantity::Throughput(0.87),
    },
    Published {
        claim: "PoA-hat of the saturated phase, static to adaptive",
        figure: "2.2 times less",
        place: "abstract, section 8.5",
        topology: ONE_TWO,
        quantity: Quantity::PoaDrop(2.2),
    },
    Published {
        claim: "TTFT P99 of the saturated phase, static to adaptive",
        figure: "7.6 times less",
        place: "abstract, section 8.5",
        topology: ONE_TWO,
        quantity: Quantity::P99Drop(7.6),
    },
];
