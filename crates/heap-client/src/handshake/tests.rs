use super::*;

#[test]
fn messages_come_back_as_they_were() {
    for reason in [Reason::Startup, Reason::Signal, Reason::Fork] {
        let hello = Hello {
            reason,
            registers: 20,
        };
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
    }
    for when_full in [
        WhenFull::Lose,
        WhenFull::Wait { at_most_us: 0 },
        WhenFull::Wait { at_most_us: 7 },
    ] {
        let mut welcome = Welcome::new(4096, when_full);
        welcome.adaptive_threshold = 5;
        welcome.adaptive_most = 6;
        assert!(welcome.set_interval(b"libc.malloc", 512));
        assert!(welcome.set_interval(&[b'x'; HEAP_NAME_BYTES - 1], 0));
        let mut bytes = [0; Welcome::MOST_BYTES];
        let length = welcome.encode(&mut bytes);
        assert_eq!(Welcome::decode(&bytes[..length]), Some(welcome));
        for shorter in 0..length {
            assert_eq!(Welcome::decode(&bytes[..shorter]), None, "{shorter} bytes");
        }
    }
}

#[test]
fn heaps_without_an_interval_of_their_own_have_that_of_all_others() {
    let mut welcome = Welcome::new(4096, WhenFull::Lose);
    assert!(welcome.set_interval(b"libc.malloc", 512));
    assert!(welcome.set_interval(b"off", 0));
    assert_eq!(welcome.interval_of(b"libc.malloc"), 512);
    assert_eq!(welcome.interval_of(b"off"), 0);
    assert_eq!(welcome.interval_of(b"libc"), 4096);
    assert!(
        !welcome.set_interval(&[b'x'; HEAP_NAME_BYTES], 1),
        "a name without its zero"
    );
}

#[test]
fn the_least_interval_is_of_what_is_sampled() {
    let mut welcome = Welcome::new(0, WhenFull::Lose);
    assert_eq!(welcome.least_interval(), 0);
    assert!(welcome.set_interval(b"malloc", 8192));
    assert!(welcome.set_interval(b"own", 4096));
    assert!(welcome.set_interval(b"not", 0));
    assert_eq!(welcome.least_interval(), 4096);
    let welcome = Welcome::new(1024, WhenFull::Lose);
    assert_eq!(welcome.least_interval(), 1024);
}
