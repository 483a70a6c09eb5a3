// SPDX-License-Identifier: Apache-2.0

//! Identity of a worker: instance id plus data-parallel rank.
//!
//! Everything learned is keyed by both. Ranks of one instance queue separately, so the saturation of
//! rank 1 says nothing about rank 0 (field report SP-6).

use std::fmt;

use serde::{Serialize, Serializer};

/// One data-parallel rank of one worker instance, Dynamo's `WorkerWithDpRank`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct WorkerKey {
    /// Instance id. Serialised as a string: ids use all 64 bits, and JSON readers that hold numbers
    /// as doubles would merge two ids that differ in the last digit (field report SP-5).
    #[serde(serialize_with = "as_digits")]
    pub id: u64,
    /// Data-parallel rank; 0 without data parallelism.
    pub rank: u32,
}

impl WorkerKey {
    /// The worker `id`, rank `rank`.
    #[must_use]
    pub const fn new(id: u64, rank: u32) -> Self {
        Self { id, rank }
    }
}

impl fmt::Display for WorkerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.id, self.rank)
    }
}

fn as_digits<S: Serializer>(id: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_digits_of_an_id_survive_json() {
        let near = [16_882_743_587_675_780_123, 16_882_743_587_675_780_124]
            .map(|id| serde_json::to_string(&WorkerKey::new(id, 1)).unwrap());
        assert_eq!(near[0], r#"{"id":"16882743587675780123","rank":1}"#);
        assert_ne!(near[0], near[1]);
    }
}
