//! The wake-up times of pollers, and the kernel's clock ticks.

/// The next multiple of `period` after `now`. Pollers sample on multiples, so that pollers of the same period share
/// a wake-up of the machine, and a late one skips the samples that it missed.
pub(crate) fn next_multiple(now: u64, period: u64) -> u64 {
    now - now % period + period
}

/// Nanoseconds of one tick of the clock in which procfs counts process and CPU times.
pub(crate) fn nanos_per_clock_tick() -> u64 {
    1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_multiple_is_never_now() {
        assert_eq!(next_multiple(0, 10), 10);
        assert_eq!(next_multiple(9, 10), 10);
        assert_eq!(next_multiple(10, 10), 20);
        assert_eq!(next_multiple(1234, 10), 1240);
    }
}
