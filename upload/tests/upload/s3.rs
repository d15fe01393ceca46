//! Into a bucket.

use std::time::{Duration, Instant};

use crate::servers::await_that;
use crate::servers::bucket::Bucket;
use crate::servers::proxy::{Fate, Proxy};
use crate::site::{Random, Site};

const URL: &str = "s3://bucket/traces";

#[test]
fn files_of_all_sizes_are_objects_and_are_known_again_without_a_state() {
    let bucket = Bucket::start();
    let mut site = Site::new(URL, bucket.variables(bucket.address));
    // The last has three parts, of which the last is one byte.
    for size in [0, 1, 5 << 20, (10 << 20) + 1] {
        site.seal(size);
    }
    site.once_well();
    assert_eq!(site.check(&bucket.objects()), (4, Vec::new()));
    std::fs::remove_file(site.root.path().join("state/state.json")).unwrap();
    site.once_well();
    assert_eq!(site.check(&bucket.objects()), (4, Vec::new()));
    assert_eq!(bucket.unfinished(), 0);
}

#[test]
fn cut_connections_and_a_server_that_is_overloaded_cost_time_and_no_file() {
    let mut random = Random::new();
    let bucket = Bucket::start();
    let fate = |_| match random.below(4) {
        0 => Fate::Answer("503 Slow Down"),
        1 => Fate::Answer("500 Internal Server Error"),
        _ => Fate::Cut(random.below(7 << 20) as usize),
    };
    let fates: Vec<Fate> = (0..16).map(fate).chain([Fate::Pass]).collect();
    let proxy = Proxy::start(bucket.address, fates);
    let mut site = Site::new(URL, bucket.variables(proxy.address));
    for size in [100, 11 << 20, 3 << 20, 200_000, 6 << 20, 16 << 20] {
        site.seal(size);
    }
    let running = site.start();
    await_that("all is uploaded", || {
        site.check(&bucket.objects());
        site.state()["done"]
            .as_array()
            .is_some_and(|done| done.len() == site.sealed.len())
    });
    running.kill();
    assert_eq!(site.check(&bucket.objects()), (site.sealed.len(), Vec::new()));
    println!(
        "{} rounds failed; {} of the faults were not needed; {} unfinished files",
        site.state()["failures"],
        proxy.left() - 1,
        bucket.unfinished()
    );
}

#[test]
fn a_kill_between_two_parts_leaves_nothing_behind_after_the_next_start() {
    let bucket = Bucket::start();
    let mut site = Site::new(URL, bucket.variables(bucket.address));
    site.seal(11 << 20);
    // The second part waits for five seconds.
    site.set(URL, "max_bytes_per_second = \"1 MiB\"");
    let running = site.start();
    await_that("a part is there", || {
        bucket.unfinished() > 1 && site.state()["parts"].is_object()
    });
    running.kill();
    assert!(bucket.unfinished() > 0);
    site.set(URL, "");
    site.once_well();
    assert_eq!(site.check(&bucket.objects()), (1, Vec::new()));
    assert_eq!(bucket.unfinished(), 0);
    assert!(site.state()["parts"].is_null());
}

#[test]
fn of_an_uploader_to_a_bucket_that_is_killed_no_file_is_missing_half_or_there_twice() {
    let mut random = Random::new();
    let bucket = Bucket::start();
    let mut site = Site::new(URL, bucket.variables(bucket.address));
    for _ in 0..20 {
        site.seal(match random.below(3) {
            0 => (5 << 20) + random.below(6 << 20),
            _ => random.below(300_000),
        } as usize);
        let running = site.start();
        let until = Instant::now() + Duration::from_micros(random.below(400_000));
        while Instant::now() < until {
            std::thread::yield_now();
        }
        running.kill();
        bucket.settle();
        site.check(&bucket.objects());
    }
    site.once_well();
    assert_eq!(site.check(&bucket.objects()), (20, Vec::new()));
    assert_eq!(site.state()["uploaded"], 20);
}

#[test]
fn a_store_that_cannot_be_reached_is_told_and_nothing_of_the_recorder_is_touched() {
    let bucket = Bucket::start();
    let proxy = Proxy::start(bucket.address, [Fate::Cut(0)]);
    let mut site = Site::new(URL, bucket.variables(proxy.address));
    site.seal(10);
    let _running = site.start();
    await_that("the failure is told", || {
        site.state()["last_error"]["text"].is_string()
    });
    assert_eq!(site.state()["waiting"], 1);
    // The recorder goes on meanwhile.
    (0..20).for_each(|size| drop(site.seal(size)));
    proxy.heal();
    await_that("all is uploaded", || {
        site.state()["done"]
            .as_array()
            .is_some_and(|done| done.len() == 21)
    });
    await_that("all is well", || site.state()["last_error"].is_null());
    assert_eq!(site.check(&bucket.objects()), (21, Vec::new()));
    for (name, content) in &site.sealed {
        assert_eq!(std::fs::read(site.folder().join(name)).unwrap(), *content);
    }
    assert_eq!(std::fs::read_dir(site.folder()).unwrap().count(), 21);
}
