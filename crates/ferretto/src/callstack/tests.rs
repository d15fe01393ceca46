//! Capture. What becomes of stacks in traces is tested in `interning/tests.rs` and `track_event/tests/callstacks.rs`.

use super::*;

/// The frames of a stack, as text.
fn frames_of(stack: &dyn Frames) -> Vec<String> {
    let mut frames = Vec::new();
    stack.for_each(&mut |frame| frames.push(format!("{frame:?}")));
    frames
}

#[cfg(not(any(feature = "off", target_arch = "arm")))]
mod capture {
    use super::*;
    use std::hint::black_box;

    /// Whether an address is in this function, as far as that can be told from outside.
    fn is_in(address: usize, function: usize) -> bool {
        (function..function + 1000).contains(&address)
    }

    #[inline(never)]
    fn inner() -> Callstack {
        black_box(Callstack::capture())
    }

    #[inline(never)]
    fn outer() -> Callstack {
        black_box(inner())
    }

    #[test]
    fn a_stack_begins_with_the_caller_and_goes_outwards() {
        let stack = outer();
        let addresses = stack.addresses();
        assert!(addresses.len() > 3, "{stack:?}");
        assert!(
            is_in(addresses[0], inner as fn() -> Callstack as usize),
            "{stack:?}"
        );
        assert!(
            is_in(addresses[1], outer as fn() -> Callstack as usize),
            "{stack:?}"
        );
        assert_eq!(frames_of(&stack).len(), addresses.len());
        assert_eq!(frames_of(&stack)[1], format!("{:?}", Frame::at(addresses[1])));
    }

    fn at_depth(depth: usize) -> Callstack {
        match depth {
            0 => Callstack::capture(),
            _ => black_box(at_depth(black_box(depth - 1))),
        }
    }

    #[test]
    fn nothing_is_captured_where_an_event_must_not_wait() {
        assert!(!Callstack::capture().addresses().is_empty());
        let stack = crate::without_waiting(Callstack::capture);
        assert!(stack.addresses().is_empty() && frames_of(&stack).is_empty());
    }

    #[test]
    fn frames_that_are_left_out_are_shown_as_one() {
        let stack = at_depth(2 * MAX_FRAMES);
        assert_eq!(stack.addresses().len(), MAX_FRAMES);
        let frames = frames_of(&stack);
        assert_eq!(frames.len(), MAX_FRAMES + 1);
        assert_eq!(frames[MAX_FRAMES], format!("{LEFT_OUT:?}"));
    }
}

#[test]
fn frames_are_the_same_in_all_forms() {
    let frames = [
        Frame::named("inner").source("file.rs", 3),
        Frame::at(17).function("outer"),
    ];
    let expected = frames.map(|frame| format!("{frame:?}"));
    assert_eq!(frames_of(&frames), expected);
    assert_eq!(frames_of(&&frames[..]), expected);
    assert_eq!(frames_of(&frames.to_vec()), expected);
}
