// SPDX-License-Identifier: Apache-2.0

//! When sessions start: Poisson, or Poisson with bursts.
//!
//! Times are drawn at a rate of one session per unit and stretched to the load afterwards, so that every
//! load sees the same pattern.

use rand::Rng;
use rand_pcg::Pcg64;

use super::draw::exponential;

/// Sessions of one burst, and single ones between two bursts.
const BURST: usize = 24;
/// Gap of arrivals in a burst, as a share of the mean gap: a burst is over before one mean gap is.
const BURST_GAP: f64 = 1.0 / 50.0;

/// Shape of the arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Independent arrivals.
    Poisson,
    /// Half of the sessions arrive independently, the other half in bursts of 24 at once.
    Bursts,
}

/// Ascending times of `sessions` arrivals from 0, at a mean rate of 1.
pub(crate) fn times(pattern: Pattern, sessions: usize, rng: &mut Pcg64) -> Vec<f64> {
    let mut times = match pattern {
        Pattern::Poisson => poisson(sessions, 1.0, rng),
        Pattern::Bursts => {
            let singles = sessions - sessions / 2;
            let mut times = poisson(singles, 2.0, rng);
            let period = 2.0 * BURST as f64;
            for index in (0..sessions / 2).step_by(BURST) {
                let burst = BURST.min(sessions / 2 - index);
                let start = period * ((index / BURST) as f64 + rng.random::<f64>());
                times.extend((0..burst).map(|place| start + BURST_GAP * place as f64));
            }
            times
        }
    };
    times.sort_by(f64::total_cmp);
    let first = times.first().copied().unwrap_or(0.0);
    times.iter().map(|time| time - first).collect()
}

fn poisson(sessions: usize, mean_gap: f64, rng: &mut Pcg64) -> Vec<f64> {
    let mut time = 0.0;
    (0..sessions)
        .map(|_| {
            time += exponential(rng, mean_gap);
            time
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::draw::Streams;

    #[test]
    fn half_of_a_bursty_pattern_arrives_in_bursts() {
        let times = times(Pattern::Bursts, 960, &mut Streams::new(3).arrivals);
        let gap_in_burst = |pair: &&[f64]| pair[1] - pair[0] <= BURST_GAP + 1e-9;
        // 480 sessions in 20 bursts: 23 gaps each, and a few short gaps by chance.
        let short = times.windows(2).filter(gap_in_burst).count();
        assert!((460..500).contains(&short), "{short}");
    }
}
