//! Ends of counted processes that may be none.
//!
//! The kernel writes the same record in three cases: a process ends; it runs a program with other rights, and so is no longer counted; or a thread other
//! than its first runs a program, for which the first thread ends, and then has its id. [`Profiler`](crate::profiler::Profiler) asks for processes that go
//! on uncounted. In the third case a record of the new program follows; in the second it comes before the end. Source: `begin_new_exec` in the kernel's
//! `fs/exec.c`.

/// Ends that are remembered at a time.
const MOST: usize = 1024;

/// A process is uncounted if so many looks find no sign of life since its end. The kernel first frees the memory of the old program, which takes long
/// if it is much.
const LOOKS: u32 = 3;

/// See the [module](self). Times are on the clock of samples.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    ends: foldhash::HashMap<i32, End>,
    /// When processes last gave a sign of life, as far as the present reading of all rings has found it. Rings are read one after the other, so it may be
    /// found before an end that is older.
    lived: foldhash::HashMap<i32, u64>,
}

#[derive(Debug)]
struct End {
    at: u64,
    looks: u32,
}

/// Which look it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    OneOfMany,
    Last,
}

impl Ends {
    /// All rings are read from here on.
    pub(crate) fn begin_reading(&mut self) {
        self.lived.clear();
    }

    /// Takes in that a process has ended, or so it seems.
    pub(crate) fn on_end(&mut self, pid: i32, at: u64) {
        let has_lived = self.lived.get(&pid).is_some_and(|lived| *lived > at);
        let is_old = self.ends.get(&pid).is_some_and(|end| end.at > at);
        if !has_lived && !is_old && (self.ends.len() < MOST || self.ends.contains_key(&pid)) {
            self.ends.insert(pid, End { at, looks: 0 });
        }
    }

    /// Takes in that a process had a sample, began a program, or was made.
    pub(crate) fn on_life(&mut self, pid: i32, at: u64) {
        let lived = self.lived.entry(pid).or_default();
        *lived = at.max(*lived);
        if self.ends.get(&pid).is_some_and(|end| end.at < at) {
            self.ends.remove(&pid);
        }
    }

    /// Looks for a process that goes on uncounted.
    pub(crate) fn find_uncounted(&mut self, look: Look) -> Option<i32> {
        self.judge(look, goes_on)
    }

    fn judge(&mut self, look: Look, goes_on: impl Fn(i32) -> bool) -> Option<i32> {
        self.ends.retain(|pid, _| goes_on(*pid));
        for end in self.ends.values_mut() {
            end.looks += 1;
        }
        let is_certain = |end: &End| look == Look::Last || end.looks >= LOOKS;
        let mut certain = self.ends.iter().filter(|(_, end)| is_certain(end));
        certain.next().map(|(pid, _)| *pid)
    }
}

/// Whether a process is neither at its end nor a zombie.
fn goes_on(pid: i32) -> bool {
    /// `PF_EXITING` of the kernel's `linux/sched.h`.
    const ENDS: u64 = 4;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name is in parentheses, and may have any characters itself. State and flags are the first and the seventh word behind it.
    let words = stat.rsplit_once(')').map_or("", |(_, words)| words);
    let mut words = words.split_ascii_whitespace();
    let is_there = words
        .next()
        .is_some_and(|state| !matches!(state, "Z" | "X" | "x"));
    let flags = words.nth(5).and_then(|flags| flags.parse::<u64>().ok());
    is_there && flags.is_some_and(|flags| flags & ENDS == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(ends: &mut Ends) -> Vec<Option<i32>> {
        (0..=LOOKS)
            .map(|_| ends.judge(Look::OneOfMany, |_| true))
            .collect()
    }

    #[test]
    fn only_a_process_that_goes_on_without_a_sign_of_life_is_uncounted() {
        let mut ends = Ends::default();
        ends.on_life(7, 10);
        ends.on_end(7, 11);
        assert_eq!(looks(&mut ends), [None, None, Some(7), Some(7)]);
        assert_eq!(ends.judge(Look::Last, |_| false), None);
        ends.on_end(7, 11);
        assert_eq!(ends.judge(Look::Last, |_| true), Some(7));
    }

    #[test]
    fn a_later_sign_of_life_counts_whichever_ring_is_read_first() {
        let mut ends = Ends::default();
        ends.on_end(7, 10);
        ends.on_life(7, 11);
        assert_eq!(looks(&mut ends), [None; 4]);
        ends.begin_reading();
        ends.on_life(7, 21);
        ends.on_end(7, 20);
        assert_eq!(looks(&mut ends), [None; 4]);
        // It has begun a program, and then lost its events.
        ends.begin_reading();
        ends.on_end(7, 31);
        ends.on_life(7, 30);
        ends.on_end(7, 29);
        assert_eq!(ends.judge(Look::Last, |_| true), Some(7));
    }

    #[test]
    fn so_many_ends_are_remembered_and_no_more() {
        let mut ends = Ends::default();
        let most = i32::try_from(MOST).unwrap();
        (0..most + 9).for_each(|pid| ends.on_end(pid, 1));
        ends.on_end(0, 2);
        assert_eq!((ends.ends.len(), ends.ends[&0].at), (MOST, 2));
    }

    #[test]
    fn this_process_goes_on_and_no_other_does() {
        assert!(goes_on(rustix::process::getpid().as_raw_pid()));
        assert!(!goes_on(i32::MAX));
    }
}
