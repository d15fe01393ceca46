//! The times of samples.

use super::*;

#[test]
fn each_group_is_sampled_at_multiples_of_its_own_period() {
    let fixture = Fixture::with("proc/meminfo", MEMINFO);
    fixture.files.write("proc/stat", STAT);
    let config = SysStatsConfig {
        meminfo_period_ms: Some(60),
        stat_period_ms: Some(20),
        ..Default::default()
    };
    let mut source = fixture.source(config);
    let mut samples = Vec::new();
    for _ in 0..7 {
        let due = source.next_deadline().unwrap();
        let stats = next_sample(&mut source);
        samples.push((
            due / 1_000_000,
            !stats.meminfo.is_empty(),
            !stats.cpu_stat.is_empty(),
        ));
    }
    assert_eq!(
        samples,
        [
            (0, true, true),
            (20, false, true),
            (40, false, true),
            (60, true, true),
            (80, false, true),
            (100, false, true),
            (120, true, true),
        ]
    );
}

#[test]
fn a_late_tick_skips_what_it_missed_and_an_early_one_does_nothing() {
    let mut source = Fixture::with("proc/meminfo", MEMINFO).source(only(Group::Meminfo));
    let mut sink: Vec<Vec<u8>> = Vec::new();
    source.on_deadline(1_234_567_890, &mut sink);
    assert_eq!(source.next_deadline(), Some(1_240_000_000));
    source.on_deadline(1_239_999_999, &mut sink);
    assert_eq!(sink.len(), 1);
    source.stop(1_239_999_999, &mut sink);
    assert_eq!(source.next_deadline(), None);
    source.on_deadline(2_000_000_000, &mut sink);
    assert_eq!(sink.len(), 1);
}

#[test]
fn periods_below_ten_milliseconds_are_raised() {
    let fixture = Fixture::with("proc/meminfo", MEMINFO);
    let mut source = fixture.source(SysStatsConfig {
        meminfo_period_ms: Some(1),
        ..Default::default()
    });
    let notices: Vec<_> = source.take_notices().iter().map(ToString::to_string).collect();
    assert_eq!(
        notices,
        ["meminfo_period_ms: 1 is less than the minimum of 10 ms; sampling every 10 ms"]
    );
    next_sample(&mut source);
    assert_eq!(source.next_deadline(), Some(10_000_000));
}

#[test]
fn with_periods_that_are_no_multiples_of_the_shortest_it_starts_and_says_why_nothing_is_sampled() {
    let config = SysStatsConfig {
        meminfo_period_ms: Some(20),
        stat_period_ms: Some(30),
        slab_period_ms: Some(40),
        ..Default::default()
    };
    let why = "linux.sys_stats: stat_period_ms: 30 is not a multiple of meminfo_period_ms: 20; \
               make all periods multiples of the shortest one";
    assert_eq!(check(&config).unwrap_err().to_string(), why);
    let mut source = SysStats::from_config(&wrap(config), &KernelRoots::default());
    let mut sink: Vec<Vec<u8>> = Vec::new();
    source.start(5, &mut sink);
    let packet = TracePacket::decode_from_slice(&sink[0]).unwrap();
    let Some(Data::DataSourceFailure(failure)) = packet.data else {
        panic!("{packet:?}");
    };
    assert_eq!(packet.timestamp, Some(5));
    assert_eq!(failure.data_source_name.as_deref(), Some(NAME));
    assert_eq!(failure.failure, Some(format!("could not be set up: {why}")));
    assert_eq!(source.take_notices(), [format!("{why}; nothing is sampled")]);
    assert_eq!((sink.len(), source.next_deadline()), (1, None));
}

#[test]
fn with_no_period_nothing_is_ever_due() {
    let config = SysStatsConfig {
        meminfo_period_ms: Some(0),
        ..Default::default()
    };
    let mut source = SysStats::from_config(&wrap(config), &KernelRoots::default());
    source.start(5, &mut Vec::new());
    assert_eq!(source.next_deadline(), None);
}
