// SPDX-License-Identifier: Apache-2.0

//! The request path allocates nothing once it is warm. A test binary of its own: the counter replaces
//! the allocator of the whole process.

#![allow(clippy::unwrap_used)]

mod support;

use support::{Host, request, row};

#[test]
fn a_warm_selection_allocates_nothing() {
    // Ticks fold windows and may allocate; put the next one out of reach.
    for parameters in [
        "{tick_ms: 3600000}",
        "{cost: paper, tick_ms: 3600000}",
        "{tier_value: time, tick_ms: 3600000}",
    ] {
        let host = Host::new(parameters);
        let rows: Vec<_> = (0..64)
            .map(|id| {
                row(id)
                    .load(id as usize, 100 * id as usize, 10)
                    .tiers(id as usize, 20, 10)
            })
            .collect();
        let prepared = host.prepare(request(100), &rows);
        // Fill the journal twice over, so that its records have been read by nobody and are reused.
        for _ in 0..10_000 {
            host.select_prepared(&prepared).unwrap();
        }
        let info = allocation_counter::measure(|| {
            for _ in 0..100 {
                host.select_prepared(&prepared).unwrap();
            }
        });
        assert_eq!(info.count_total, 0, "{parameters}");
    }
}
