//! Why a stack is not whole, as readers get to know it.

use ferretto_proto::messages::profiling::StackUnwindError;
use ferretto_unwind::{End, Process, Unusable};

/// Why a stack is not whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// The process, or the program that it ran, is gone.
    Gone,
    /// Unwinding ended with this.
    Error(StackUnwindError),
    /// The same, for a reason that upstream's unwinder does not have.
    Explained(StackUnwindError, String),
}

/// libunwindstack's error for the end of a stack.
pub(super) fn error_of(end: End) -> Option<StackUnwindError> {
    Some(match end {
        End::Complete => return None,
        End::StackEnds(_) | End::Inconsistent(_) => StackUnwindError::UNWIND_ERROR_MEMORY_INVALID,
        End::UnknownMapping => StackUnwindError::UNWIND_ERROR_INVALID_MAP,
        End::NoUnwindInformation(_) | End::MalformedTables(_) | End::OverBudget(_) => {
            StackUnwindError::UNWIND_ERROR_UNWIND_INFO
        }
        End::ModuleNeeded(_) | End::UnusableModule(_) => StackUnwindError::UNWIND_ERROR_INVALID_ELF,
        End::TooManyFrames => StackUnwindError::UNWIND_ERROR_MAX_FRAMES_EXCEEDED,
    })
}

/// The part that readers cannot tell from the error alone: a limit that only this profiler has.
pub(super) fn explanation(process: &Process, end: End) -> Option<String> {
    match end {
        End::OverBudget(_) => Some("the unwind tables take more work than one sample may".to_owned()),
        End::UnusableModule(mapping) => match process.module(mapping)? {
            Err(reason @ (Unusable::Untrusted(_) | Unusable::TooCostly(_))) => Some(reason.to_string()),
            _ => None,
        },
        _ => None,
    }
}

/// The name of an error in frames, as upstream writes it.
pub(super) fn name_of(error: StackUnwindError) -> &'static str {
    match error {
        StackUnwindError::UNWIND_ERROR_MEMORY_INVALID => "MEMORY_INVALID",
        StackUnwindError::UNWIND_ERROR_UNWIND_INFO => "UNWIND_INFO",
        StackUnwindError::UNWIND_ERROR_UNSUPPORTED => "UNSUPPORTED",
        StackUnwindError::UNWIND_ERROR_INVALID_MAP => "INVALID_MAP",
        StackUnwindError::UNWIND_ERROR_MAX_FRAMES_EXCEEDED => "MAX_FRAME_EXCEEDED",
        StackUnwindError::UNWIND_ERROR_INVALID_ELF => "INVALID_ELF",
        StackUnwindError::UNWIND_ERROR_SYSTEM_CALL => "SYSTEM_CALL",
        StackUnwindError::UNWIND_ERROR_BAD_ARCH => "BAD_ARCH",
        _ => "UNKNOWN",
    }
}
