// SPDX-License-Identifier: Apache-2.0

//! The wall between our arithmetic and Dynamo's scheduler.
//!
//! A panic in a scorer ends the scheduler actor of its model for good, while health checks stay green;
//! a NaN or an error fails the request. So scoring and picking run inside [`guarded`], and whatever goes wrong
//! there is answered by the fallback rule, counted by [`FallbackReason`], and logged once a minute.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Why the fallback rule served a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FallbackReason {
    /// The scorer or the picker panicked.
    Panic,
    /// A cost was NaN or infinite.
    NonFinite,
    /// The host withheld a declared input, or the candidate tables disagreed.
    Error,
}

impl FallbackReason {
    /// Every reason.
    pub const ALL: [Self; 3] = [Self::Panic, Self::NonFinite, Self::Error];

    /// The name in metrics and JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Panic => "panic",
            Self::NonFinite => "non_finite",
            Self::Error => "error",
        }
    }
}

/// A failure inside the guard.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) reason: FallbackReason,
    pub(crate) detail: String,
}

impl Failure {
    pub(crate) fn error(detail: impl Into<String>) -> Self {
        Self {
            reason: FallbackReason::Error,
            detail: detail.into(),
        }
    }

    pub(crate) fn non_finite(detail: impl Into<String>) -> Self {
        Self {
            reason: FallbackReason::NonFinite,
            detail: detail.into(),
        }
    }
}

/// Run `work`; a panic becomes a [`Failure`].
///
/// State that `work` was changing may be half changed afterwards. That is sound here: everything it
/// touches is scratch space that the next selection overwrites.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let before = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    GUARDED.set(before);
    result.unwrap_or_else(|panic| {
        Err(Failure {
            reason: FallbackReason::Panic,
            detail: message(panic.as_ref()),
        })
    })
}

/// Whether the current thread is inside a guard. A host's panic hook can keep quiet then: the guard
/// reports the panic itself, once a minute instead of once a request.
#[must_use]
pub fn is_guarded() -> bool {
    GUARDED.get()
}

fn message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_failure_with_its_message() {
        let failure = guarded::<()>(|| {
            assert!(is_guarded());
            panic!("row {}", 7)
        })
        .unwrap_err();
        assert_eq!(failure.reason, FallbackReason::Panic);
        assert_eq!(failure.detail, "row 7");
        assert!(!is_guarded());
    }

    #[test]
    fn a_result_passes_through() {
        assert_eq!(guarded(|| Ok(3)).unwrap(), 3);
    }
}
