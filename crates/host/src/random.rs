//! Random numbers for the ports: ids of traces, and the draw for triggers that fire at random.

use ferretto_ipc::time::{self, Clock};
use rustix::rand::{GetRandomFlags, getrandom};

/// 64 random bits.
pub(crate) fn bits() -> u64 {
    bytes() as u64
}

/// A random (version 4) UUID.
pub(crate) fn uuid() -> u128 {
    const VERSION: u128 = 0xf << 76;
    const VARIANT: u128 = 0x3 << 62;
    bytes() & !VERSION & !VARIANT | 0x4 << 76 | 0x2 << 62
}

fn bytes() -> u128 {
    let mut bytes = [0; 16];
    // It fails only before the kernel has gathered entropy at boot; then the time takes its place.
    if getrandom(&mut bytes, GetRandomFlags::NONBLOCK) != Ok(16) {
        return u128::from(time::now(Clock::Realtime)) << 64 | u128::from(time::now(Clock::MonotonicRaw));
    }
    u128::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_random_and_of_version_4() {
        let [first, second] = [uuid(), uuid()];
        assert_ne!(first, second);
        for uuid in [first, second] {
            assert_eq!((uuid >> 76 & 0xf, uuid >> 62 & 0x3), (4, 2), "{uuid:032x}");
        }
        assert_ne!(bits(), bits());
    }
}
