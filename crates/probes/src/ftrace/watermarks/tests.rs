//! Tests of the module.

use super::*;
use crate::ftrace::reader::{BATCH_PAGES, CpuBuffer, PagePool};
use crate::ftrace::test_instance::TestInstance;
use crate::test_processes::nobody_starts;
use std::io::Write;

#[test]
fn watermarks_are_relied_on_where_the_kernel_has_the_fix() {
    for release in [
        "6.9.0",
        "6.18.44-fc",
        "7.0.1",
        "6.1.86-android14-11-g123",
        "6.6.27-android15-8",
    ] {
        assert!(kernel_reports_watermarks(release), "{release}");
    }
    for release in [
        "6.8.12",
        "5.15.0-generic",
        "6.1.85-android14-11",
        "6.1.90-android13-2",
        "6.6.27",
        "",
        "six",
    ] {
        assert!(!kernel_reports_watermarks(release), "{release}");
    }
}

/// Small buffers of an instance, all of them watched. `None` with a line that says why the test is skipped.
fn watched(watermarks: &Watermarks) -> Option<(TestInstance, Vec<CpuBuffer>)> {
    let instance = TestInstance::new()?;
    instance.tracefs.write("buffer_size_kb", "64").unwrap();
    instance.tracefs.write("buffer_percent", "50").unwrap();
    let cpus = instance.tracefs.cpus().unwrap().into_iter();
    let buffers: Vec<CpuBuffer> = cpus
        .map(|cpu| CpuBuffer::open(&instance.tracefs, cpu).unwrap())
        .collect();
    for buffer in &buffers {
        watermarks.watch(id(buffer), buffer.as_fd());
    }
    Some((instance, buffers))
}

fn id(buffer: &CpuBuffer) -> CpuBufferId {
    CpuBufferId {
        instance: 7,
        cpu: buffer.cpu(),
    }
}

fn watermarks() -> Option<Watermarks> {
    let watermarks = Watermarks::new().unwrap();
    if watermarks.is_none() {
        println!("skipped: this kernel does not report watermarks");
    }
    watermarks
}

/// Fills 50 % of every CPU's 64 KiB, wherever this thread runs.
fn fill(instance: &TestInstance, buffers: &[CpuBuffer]) {
    let path = instance.tracefs.root().join("trace_marker");
    let mut marker = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    for _ in 0..buffers.len() * 80 {
        marker.write_all(&[b'x'; 500]).unwrap();
    }
}

fn is_readable(watermarks: &Watermarks) -> bool {
    let mut polled = [PollFd::new(watermarks, PollFlags::IN)];
    poll(&mut polled, Some(&NO_WAIT)).unwrap();
    polled[0].revents().contains(PollFlags::IN)
}

fn full(watermarks: &Watermarks) -> Vec<CpuBufferId> {
    let mut full = Vec::new();
    watermarks.take_full(&mut full);
    full
}

#[test]
fn a_buffer_filled_beyond_its_watermark_is_reported_once() {
    let Some(watermarks) = watermarks() else { return };
    let Some((instance, buffers)) = watched(&watermarks) else {
        return;
    };
    assert!(!is_readable(&watermarks));
    assert_eq!(full(&watermarks), []);
    fill(&instance, &buffers);
    assert!(is_readable(&watermarks));
    let reported = full(&watermarks);
    assert!(!reported.is_empty());
    assert!(!is_readable(&watermarks), "it is still full, but was reported");
    assert_eq!(full(&watermarks), []);

    let of = |reported: &CpuBufferId| buffers.iter().find(|buffer| id(buffer) == *reported).unwrap();
    watermarks.watch_again(reported[0], of(&reported[0]).as_fd());
    assert_eq!(full(&watermarks), reported[..1], "it is full");
    let mut pool = PagePool::new(4096);
    while of(&reported[0]).read(&mut pool, BATCH_PAGES).count > 0 {}
    watermarks.watch_again(reported[0], of(&reported[0]).as_fd());
    assert_eq!(full(&watermarks), [], "it was emptied");
}

#[test]
fn what_is_closed_or_forgotten_is_not_reported() {
    let Some(watermarks) = watermarks() else { return };
    let Some((instance, mut buffers)) = watched(&watermarks) else {
        return;
    };
    let kept = buffers.pop().unwrap();
    fill(&instance, &buffers);
    let _closed_at_once = nobody_starts();
    buffers.clear();
    watermarks.forget(kept.as_fd());
    assert!(!is_readable(&watermarks));
    assert_eq!(full(&watermarks), []);
}
