use super::*;

#[test]
fn the_logarithm_is_that_of_the_standard_library() {
    let mut random = 1;
    for _ in 0..100_000 {
        let number = ((super::next(&mut random) >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        let error = (ln(number) - number.ln()).abs();
        assert!(error < 1e-9, "{number}: off by {error}");
    }
    assert!((ln(1.0)).abs() < 1e-12);
    assert!((ln(f64::EPSILON / 2.0) - (f64::EPSILON / 2.0).ln()).abs() < 1e-9);
}

#[test]
fn samples_stand_for_as_many_bytes_as_were_allocated() {
    for seed in [3_u64, 1 << 40, 77] {
        for (interval, size) in [
            (4096, 1),
            (4096, 16),
            (4096, 100),
            (4096, 4095),
            (1, 0),
            (3, 2),
            (1 << 33, 1 << 20),
        ] {
            let (mut random, mut remaining) = (seed, 0);
            remaining += distance(&mut random);
            let count = 4_000_000_u64.min(20_000 * interval / size.max(1)).max(100_000);
            let mut total = 0;
            for _ in 0..count {
                remaining -= (size * rate(interval)) as i64;
                total += hits(&mut remaining, &mut random) * interval;
            }
            // The number of hits has a Poisson distribution: five of its standard deviations.
            let mean = (count * size) as f64 / interval as f64;
            let deviation = (total as f64 / interval as f64 - mean).abs();
            assert!(
                deviation <= 5.0 * mean.sqrt(),
                "seed {seed}, interval {interval}, size {size}: {deviation} hits off of {mean}"
            );
        }
    }
}

#[test]
fn an_interval_of_nothing_has_no_rate() {
    assert_eq!(rate(0), 0);
    assert_eq!(rate(1), ONE);
    assert_eq!(rate(u64::MAX), 0);
}
