// SPDX-License-Identifier: Apache-2.0

//! Workloads by name: seeded generators, and traces at any load.
//!
//! A [`WorkloadSource`] is opened once by name and builds a [`Workload`](crate::Workload) for each
//! [`Scale`]. Same scale, same workload; another load, the same requests at other times; another seed,
//! other requests. Each generator is a module that says what it is made to show.

mod agentic;
mod arrivals;
mod chat;
mod cold;
mod draw;
mod error;
mod generator;
mod hotspot;
mod kit;
mod paper;
mod scale;
mod source;
mod working_set;

pub use error::SourceError;
pub use generator::Generator;
pub(crate) use scale::BLOCK_SIZES;
pub use scale::{OfferedLoad, Scale};
pub use source::WorkloadSource;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traces::{ideal_prefix_hit_rate, offered_rate_per_s};
    use crate::workload::{Arrivals, Workload};
    use proptest::prelude::*;

    fn generators() -> impl Strategy<Value = Generator> {
        prop::sample::select(Generator::ALL.to_vec())
    }

    fn scales() -> impl Strategy<Value = Scale> {
        let load = prop_oneof![
            (0.1_f64..1_000.0).prop_map(OfferedLoad::Rate),
            (1_usize..500).prop_map(OfferedLoad::Concurrency),
        ];
        (1_usize..120, load, 1_u32..=600, any::<u64>()).prop_map(
            |(requests, load, block_size, seed)| Scale {
                requests,
                load,
                block_size,
                seed,
            },
        )
    }

    fn default_workload(generator: Generator) -> Workload {
        generator.generate(&generator.default_scale()).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_workload_keeps_its_contract_at_every_scale(generator in generators(), scale in scales()) {
            let workload = generator.generate(&scale).unwrap();
            prop_assert_eq!(workload.requests(), scale.requests);
            prop_assert_eq!(workload.check(), Ok(()));
            let mut last_ms = 0.0;
            for session in &workload.sessions {
                prop_assert!(session.start_ms >= last_ms);
                last_ms = session.start_ms;
                prop_assert_eq!(session.turns[0].delay_ms, 0.0);
                for pair in session.turns.windows(2) {
                    // The next prompt holds the one before and its answer.
                    prop_assert!(pair[1].hash_ids.starts_with(&pair[0].hash_ids));
                    let said = pair[0].input_tokens + pair[0].output_tokens;
                    prop_assert!(pair[1].input_tokens > said);
                }
            }
        }

        #[test]
        fn equal_scales_make_equal_workloads(generator in generators(), scale in scales()) {
            prop_assert_eq!(generator.generate(&scale).unwrap(), generator.generate(&scale).unwrap());
        }

        #[test]
        fn load_moves_arrivals_in_proportion_and_nothing_else(generator in generators(), scale in scales()) {
            let at = |load| generator.generate(&Scale { load, ..scale }).unwrap();
            let (slow, fast, closed) = (at(OfferedLoad::Rate(2.0)), at(OfferedLoad::Rate(8.0)), at(OfferedLoad::Concurrency(3)));
            for ((slow, fast), closed) in slow.sessions.iter().zip(&fast.sessions).zip(&closed.sessions) {
                prop_assert_eq!(&slow.turns, &fast.turns);
                prop_assert_eq!(&slow.turns, &closed.turns);
                prop_assert!((slow.start_ms - 4.0 * fast.start_ms).abs() <= 1e-9 * slow.start_ms);
                prop_assert_eq!(closed.start_ms, 0.0);
            }
        }
    }

    #[test]
    fn open_loops_offer_the_rate_asked_for() {
        for generator in Generator::ALL {
            let scale = Scale {
                requests: 12_000,
                load: OfferedLoad::Rate(25.0),
                ..generator.default_scale()
            };
            let rate = offered_rate_per_s(&generator.generate(&scale).unwrap()).unwrap();
            // Runs of five turns leave 2,400 arrivals: four standard errors are 8 %.
            assert!((rate - 25.0).abs() < 2.5, "{}: {rate}", generator.name());
        }
    }

    #[test]
    fn another_seed_makes_another_workload() {
        for generator in Generator::ALL {
            let scale = generator.default_scale();
            let other = Scale { seed: 1, ..scale };
            assert_ne!(
                generator.generate(&scale).unwrap(),
                generator.generate(&other).unwrap()
            );
        }
    }

    #[test]
    fn the_paper_s_workloads_are_closed_loops_and_the_others_open() {
        for generator in Generator::ALL {
            let closed = generator.name().starts_with("paper");
            let arrivals = default_workload(generator).arrivals;
            assert_eq!(
                matches!(arrivals, Arrivals::Closed { .. }),
                closed,
                "{}",
                generator.name()
            );
        }
    }

    #[test]
    fn prompts_are_shared_as_far_as_each_workload_says() {
        let shared = |generator| ideal_prefix_hit_rate(&default_workload(generator)).unwrap();
        for generator in [
            Generator::ColdBurst,
            Generator::DecodeHeavy,
            Generator::MixedLengths,
        ] {
            assert_eq!(shared(generator), 0.0, "{}", generator.name());
        }
        // Of 1280 prompts of 8 blocks only the five templates' 40 are new.
        assert_eq!(shared(Generator::Paper), 1.0 - 40.0 / 10_240.0);
        // Documents are 512 blocks of about 517.
        assert!(shared(Generator::WorkingSet) > 0.95);
        assert!(shared(Generator::HotspotShift) > 0.9);
        assert!((0.6..0.9).contains(&shared(Generator::Chat)));
        assert!((0.8..0.95).contains(&shared(Generator::Agentic)));
    }

    #[test]
    fn the_working_set_is_three_times_the_cache_of_a_worker_with_8192_blocks() {
        let workload = default_workload(Generator::WorkingSet);
        let mut blocks: Vec<u64> = workload
            .sessions
            .iter()
            .flat_map(|session| session.turns[0].hash_ids[..512].to_vec())
            .collect();
        blocks.sort_unstable();
        blocks.dedup();
        assert_eq!(blocks.len(), 3 * 8_192);
    }

    #[test]
    fn a_scale_outside_its_range_names_the_number() {
        let scale = Generator::Chat.default_scale();
        let cases = [
            (
                Scale {
                    requests: 0,
                    ..scale
                },
                "requests is 0; allowed: at least 1",
            ),
            (
                Scale {
                    requests: 1_000_001,
                    ..scale
                },
                "requests is 1000001; allowed: at most 1000000 of a generated workload",
            ),
            (
                Scale {
                    load: OfferedLoad::Rate(1e-7),
                    ..scale
                },
                "rate is 0.0000001; allowed: 1e-6 to 1e6 requests a second",
            ),
            (
                Scale {
                    block_size: 0,
                    ..scale
                },
                "block_size is 0; allowed: 1 to 65536 tokens",
            ),
            (
                Scale {
                    load: OfferedLoad::Rate(f64::NAN),
                    ..scale
                },
                "rate is NaN; allowed: 1e-6 to 1e6 requests a second",
            ),
            (
                Scale {
                    load: OfferedLoad::Concurrency(0),
                    ..scale
                },
                "concurrency is 0; allowed: at least 1 request",
            ),
        ];
        for (scale, message) in cases {
            assert_eq!(
                Generator::Chat.generate(&scale).unwrap_err().to_string(),
                message
            );
        }
    }
}
