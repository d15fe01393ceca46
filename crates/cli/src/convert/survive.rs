//! Converts arbitrary bytes to every format, which has to end without a panic.
//!
//! The tests call it with random bytes, and [`fuzz`](crate::fuzz) with bytes that reach new code.

use std::io::Cursor;

use super::formats::{SampleFormat, write};
use super::source::Kind;
use super::{chrome_json, import, systrace};
use crate::samples::{Keep, Recorder};
use ferretto_trace_file::{self as trace_file, Piece};

/// Converts a file.
///
/// # Panics
/// If a format is not written, or JSON is none.
#[allow(clippy::unwrap_used)]
pub(crate) fn convert(data: &[u8]) {
    let mut packets: Vec<Vec<u8>> = Vec::new();
    let mut keep = |packet: &[u8]| {
        packets.push(packet.to_vec());
        Ok(())
    };
    let source = Cursor::new(data);
    // Damage is an error, after which there may be packets.
    let _ = match Kind::of(data) {
        Kind::Json => import::json::import(source, &mut keep).map(drop),
        Kind::Perf => import::perf::import(source, &mut keep).map(drop),
        Kind::Folded => import::folded::import(source, &mut keep).map(drop),
        Kind::Perfetto => {
            let read = trace_file::read(source, |piece| {
                if let Piece::Packet(packet) = piece {
                    packets.push(packet.to_vec());
                }
                std::ops::ControlFlow::<()>::Continue(())
            });
            assert!(read.unwrap().is_continue());
            Ok(())
        }
    };
    all_formats(&packets);
}

/// Converts packets to every format.
#[allow(clippy::unwrap_used)]
pub(super) fn all_formats(packets: &[Vec<u8>]) {
    let mut recorder = Recorder::new(Keep::Samples, |_| true);
    let mut json = chrome_json::ChromeJson::new().unwrap();
    let mut text = systrace::Systrace::new().unwrap();
    for packet in packets {
        recorder.packet(packet);
        json.packet(packet).unwrap();
        text.packet(packet).unwrap();
    }
    let recording = recorder.finish();
    if !recording.totals.is_empty() {
        for format in [
            SampleFormat::Folded,
            SampleFormat::Pprof,
            SampleFormat::FlameGraph,
            SampleFormat::Firefox,
        ] {
            write(
                &recording,
                format,
                &recording.events_with_stacks(),
                &mut Vec::new(),
            )
            .unwrap();
        }
    }
    let mut out = Vec::new();
    json.finish(&mut out).unwrap();
    let _: serde_json::Value = serde_json::from_slice(&out).unwrap();
    text.finish(&mut Vec::new()).unwrap();
}
