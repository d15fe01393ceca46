//! Into a folder.

use std::time::{Duration, Instant};

use crate::servers::await_that;
use crate::site::{MACHINE, Random, Site};

/// A machine, and the folder that its files go to.
fn site() -> (Site, tempfile::TempDir) {
    let store = tempfile::tempdir().unwrap();
    let site = Site::new(&format!("file://{}", store.path().display()), Vec::new());
    (site, store)
}

#[test]
fn of_an_uploader_that_is_killed_again_and_again_no_file_is_missing_half_or_there_twice() {
    let mut random = Random::new();
    let kills = std::env::var("FERRETTO_KILLS")
        .ok()
        .and_then(|count| count.parse().ok());
    let kills: u32 = kills.unwrap_or(50);
    let (mut site, store) = site();
    let mut in_work = 0;
    for _ in 0..kills {
        for _ in 0..random.below(3) {
            let size = match random.below(4) {
                0 => (5 << 20) + random.below(6 << 20),
                1 => 0,
                _ => random.below(300_000),
            };
            site.seal(size as usize);
        }
        let running = site.start();
        let until = Instant::now() + Duration::from_micros(random.below(60_000));
        while Instant::now() < until {
            std::thread::yield_now();
        }
        running.kill();
        let (_, others) = site.check(store.path());
        in_work += others.len();
    }
    site.once_well();
    assert_eq!(site.check(store.path()), (site.sealed.len(), Vec::new()));
    let state = site.state();
    assert_eq!(state["uploaded"], site.sealed.len());
    assert_eq!((&state["waiting"], &state["missed"]), (&0.into(), &0.into()));
    println!(
        "{kills} kills, of which {in_work} left something unfinished; {} files",
        site.sealed.len()
    );
}

#[test]
fn without_its_state_it_compares_and_uploads_nothing_again() {
    let (mut site, store) = site();
    for size in [10, 0, 6 << 20] {
        site.seal(size);
    }
    site.once_well();
    assert_eq!(site.check(store.path()).0, 3);
    std::fs::remove_file(site.root.path().join("state/state.json")).unwrap();
    site.once_well();
    assert_eq!(site.check(store.path()).0, 3);
    assert_eq!(site.state()["uploaded"], 3);
}

#[test]
fn an_object_of_another_is_not_replaced_and_holds_up_no_file() {
    let (mut site, store) = site();
    let names = [10, 20, 6 << 20].map(|size| site.seal(size));
    let others = store.path().join(MACHINE);
    std::fs::create_dir(&others).unwrap();
    for (name, content) in [(&names[0], vec![7; 10]), (&names[2], vec![7; 6 << 20])] {
        std::fs::write(others.join(name), content).unwrap();
    }
    let told = String::from_utf8(site.once().stderr).unwrap();
    assert!(told.contains("has another object of this name"), "{told}");
    let _running = site.start();
    await_that("the file between them is there", || {
        others.join(&names[1]).exists()
    });
    await_that("the failure is told", || {
        site.state()["last_error"]["text"].is_string()
    });
    assert_eq!(std::fs::read(others.join(&names[0])).unwrap(), [7; 10]);
}

#[test]
fn what_the_quota_deletes_first_is_counted_and_what_goes_later_is_not() {
    let (mut site, store) = site();
    let first = site.seal(10);
    // The folder cannot be made yet.
    let blocked = store.path().join(MACHINE);
    std::fs::write(&blocked, "").unwrap();
    assert!(!site.once().status.success());
    assert_eq!(site.state()["waiting"], 1);
    std::fs::remove_file(site.folder().join(&first)).unwrap();
    std::fs::remove_file(blocked).unwrap();
    let second = site.seal(10);
    site.once_well();
    std::fs::remove_file(site.folder().join(&second)).unwrap();
    site.once_well();
    let state = site.state();
    assert_eq!((&state["missed"], &state["uploaded"]), (&1.into(), &1.into()));
    assert_eq!(state["done"], serde_json::json!([]));
    assert!(store.path().join(MACHINE).join(second).exists());
}

#[test]
fn a_second_uploader_and_settings_without_a_place_are_refused() {
    let (site, _store) = site();
    let _running = site.start();
    await_that("it runs", || site.state()["pid"].is_number());
    let second = site.once();
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&second.stderr).contains("another uploader"));
    for (url, words) in [("https://example.org/x", "s3://"), ("nonsense", "relative URL")] {
        site.set(url, "");
        let refused = String::from_utf8(site.once().stderr).unwrap();
        assert!(refused.contains(url) && refused.contains(words), "{refused}");
    }
    std::fs::write(site.root.path().join("recorder.toml"), "").unwrap();
    let refused = String::from_utf8(site.once().stderr).unwrap();
    assert!(refused.contains("need a table [upload]"), "{refused}");
}
