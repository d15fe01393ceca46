use ferretto_service::compression::{Codec, Compressor};
use ferretto_wire::Writer;
use proptest::prelude::*;

use super::*;

/// A packet with the fields that the service adds to producers' packets.
fn packet(payload: &[u8], sequence: u64) -> Vec<u8> {
    let mut packet = Writer::new();
    packet.varint_field(8, 1000 + sequence);
    packet.bytes_field(900, payload);
    packet.varint_field(3, 0);
    packet.varint_field(10, sequence);
    packet.into_vec()
}

fn trace<'a>(packets: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<u8> {
    let mut trace = Writer::new();
    packets
        .into_iter()
        .for_each(|packet| trace.bytes_field(1, packet));
    trace.into_vec()
}

fn compressed(codec: Codec, trace: &[u8]) -> Vec<u8> {
    Compressor::new(codec).unwrap().compress(trace).unwrap().to_vec()
}

/// The pieces from [`read`], with packets and damage separated.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    packets: Vec<Vec<u8>>,
    compressed: Vec<Compressed>,
    damages: Vec<Damage>,
    end: End,
}

fn seen(source: impl Read) -> Seen {
    let (mut packets, mut compressed, mut damages) = (Vec::new(), Vec::new(), Vec::new());
    let mut open = 0;
    let flow = read(source, |piece| {
        match piece {
            Piece::Packet(packet) => packets.push(packet.to_vec()),
            Piece::CompressedStart(what) => {
                open += 1;
                compressed.push(what);
            }
            Piece::CompressedEnd => open -= 1,
            Piece::Damage(damage) => damages.push(damage),
        }
        ControlFlow::<()>::Continue(())
    });
    assert_eq!(open, 0, "what starts also ends");
    let Ok(ControlFlow::Continue(end)) = flow else {
        panic!("{flow:?}");
    };
    Seen {
        packets,
        compressed,
        damages,
        end,
    }
}

/// A source that returns a few bytes at a time, and is sometimes interrupted.
struct Dripping<'a>(&'a [u8], usize);

impl Read for Dripping<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.1 += 1;
        if self.1.is_multiple_of(3) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let count = into.len().min(self.1 % 7 + 1).min(self.0.len());
        into[..count].copy_from_slice(&self.0[..count]);
        self.0 = &self.0[count..];
        Ok(count)
    }
}

#[test]
fn packets_come_whole_however_the_bytes_arrive() {
    let packets: Vec<Vec<u8>> = (0..300).map(|index| packet(&vec![7; index * 13], 2)).collect();
    let bytes = trace(&packets);
    for seen in [seen(bytes.as_slice()), seen(Dripping(&bytes, 0))] {
        assert!(seen.packets == packets);
        assert_eq!((seen.damages, seen.compressed), (vec![], vec![]));
        let size = bytes.len() as u64;
        assert_eq!(seen.end, End { size, cut: None });
    }
}

#[test]
fn a_packet_larger_than_the_buffer_comes_whole() {
    let large = packet(&vec![1; 3 * BUFFER], 2);
    let bytes = trace(&[large.clone(), packet(b"after", 2)]);
    assert!(seen(bytes.as_slice()).packets[0] == large);
}

#[test]
fn packets_inside_compressed_ones_come_in_their_place() {
    let packets: Vec<Vec<u8>> = (0..50).map(|index| packet(&[index; 100], 2)).collect();
    for codec in [Codec::Deflate, Codec::Zstd { level: 3 }] {
        let inside = compressed(codec, &trace(&packets[10..40]));
        let around = packets[..10].iter().chain([&inside]).chain(&packets[40..]);
        let seen = seen(trace(around).as_slice());
        assert_eq!(seen.packets, packets);
        assert_eq!(seen.compressed.len(), 1);
        assert!(seen.compressed[0].bytes < inside.len() as u64);
    }
}

#[test]
fn a_cut_anywhere_is_reported_and_loses_only_the_last_packet() {
    let packets: Vec<Vec<u8>> = (0..4).map(|index| packet(b"some payload", index)).collect();
    let bytes = trace(&packets);
    let size = trace(&packets[..1]).len();
    for length in 0..bytes.len() {
        let seen = seen(&bytes[..length]);
        let whole = length / size;
        assert_eq!(seen.packets, packets[..whole]);
        assert_eq!(seen.damages, []);
        let left = length % size;
        let cut = (left > 0).then_some(Cut {
            offset: (whole * size) as u64,
            bytes: left as u64,
        });
        assert_eq!(seen.end.cut, cut, "{length}");
    }
}

#[test]
fn after_damage_reading_goes_on_with_the_next_packet() {
    let packets: Vec<Vec<u8>> = (0..6).map(|index| packet(b"payload", index)).collect();
    let size = trace(&packets[..1]).len();
    let whole = trace(&packets);
    let broken = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        seen(bytes.as_slice())
    };
    let at = 2 * size;
    let cases = [
        broken(&|bytes| bytes[at] = 0x77),
        // An invalid length, one that is too large, and one that reaches beyond the end.
        broken(&|bytes| bytes[at + 1..at + 12].fill(0xff)),
        broken(&|bytes| bytes[at + 1..at + 7].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0xff, 0x01])),
        broken(&|bytes| bytes[at + 1..at + 3].copy_from_slice(&[0xff, 0x7f])),
    ];
    for seen in cases {
        assert_eq!(seen.packets, [&packets[..2], &packets[3..]].concat());
        let [damage] = seen.damages.as_slice() else {
            panic!("{:?}", seen.damages);
        };
        assert_eq!(
            (damage.offset, damage.skipped),
            (at as u64, size as u64),
            "{damage}"
        );
        assert_eq!(seen.end.cut, None);
    }
}

#[test]
fn after_damage_a_compressed_packet_is_found_as_well() {
    let packets: Vec<Vec<u8>> = (0..200).map(|index| packet(&[index; 700], 9)).collect();
    for codec in [Codec::Deflate, Codec::Zstd { level: 3 }] {
        let mut bytes = b"\x0bnothing of ours".to_vec();
        bytes.extend(trace(&[compressed(codec, &trace(&packets))]));
        let seen = seen(bytes.as_slice());
        assert!(seen.packets == packets);
        assert_eq!(seen.damages.len(), 1);
    }
}

#[test]
fn a_file_that_is_no_trace_has_no_packet_and_may_be_recognized() {
    let seen = seen(b"{\"traceEvents\": []}\n".repeat(100_000).as_slice());
    assert!(seen.packets.is_empty());
    let [damage] = seen.damages.as_slice() else {
        panic!("{:?}", seen.damages);
    };
    assert_eq!((damage.offset, damage.skipped), (0, 2_000_000));
    assert!(nothing_read(damage).contains("JSON"));
}

#[test]
fn data_before_the_damage_in_a_compressed_packet_are_kept() {
    let inside: Vec<Vec<u8>> = (0..2000_u32)
        .map(|index| packet(&index.wrapping_mul(0x9e37_79b9).to_le_bytes(), index.into()))
        .collect();
    let outside = packet(b"outside", 1);
    for codec in [Codec::Deflate, Codec::Zstd { level: 1 }] {
        let mut bad = compressed(codec, &trace(&inside));
        let middle = bad.len() / 2;
        bad[middle..middle + 8].fill(0xff);
        let seen = seen(trace(&[outside.clone(), bad, outside.clone()]).as_slice());
        assert_eq!(seen.packets.first(), Some(&outside));
        assert_eq!(seen.packets.last(), Some(&outside));
        let [damage] = seen.damages.as_slice() else {
            panic!("{codec}: {:?}", seen.damages);
        };
        assert_eq!(damage.offset, trace([&outside]).len() as u64);
        assert!(matches!(damage.reason, Reason::Compressed(_)));
    }
    let middle = trace(&inside[..1000]).len() + 5;
    let cut = compressed(Codec::Deflate, &trace(&inside)[..middle]);
    let seen = seen(trace(&[cut]).as_slice());
    assert!(seen.packets.len() > 500, "{}", seen.packets.len());
    assert!(
        seen.packets
            .iter()
            .zip(&inside)
            .all(|(seen, packet)| seen == packet)
    );
    assert!(
        seen.damages[0].to_string().contains("end too early"),
        "{}",
        seen.damages[0]
    );
}

#[test]
fn a_compressed_packet_that_holds_too_much_is_left_in_the_middle() {
    let many = trace(&vec![packet(&[0; 60_000], 3); 1200]);
    assert!(many.len() as u64 > MAX_EXPANDED);
    let bomb = compressed(Codec::Zstd { level: 3 }, &many);
    let seen = seen(trace(&[bomb, packet(b"after", 1)]).as_slice());
    assert!(seen.packets.len() > 1000 && seen.packets.len() < 1200);
    assert_eq!(seen.packets.last(), Some(&packet(b"after", 1)));
    assert_eq!(seen.damages.len(), 1);
}

#[test]
fn a_visitor_may_break_it_off_anywhere() {
    let packets: Vec<Vec<u8>> = (0..9).map(|index| packet(b"payload", index)).collect();
    let inside = compressed(Codec::Deflate, &trace(&packets[3..6]));
    let bytes = trace(packets[..3].iter().chain([&inside]).chain(&packets[6..]));
    for (stop, expected) in packets.iter().enumerate() {
        let mut count = 0;
        let flow = read(bytes.as_slice(), |piece| match piece {
            Piece::Packet(packet) if count == stop => ControlFlow::Break(packet.to_vec()),
            Piece::Packet(_) => {
                count += 1;
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Continue(()),
        });
        assert_eq!(flow.unwrap(), ControlFlow::Break(expected.clone()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Offsets and sizes add up: packets, skipped bytes and the cut part make up the whole file.
    #[test]
    fn every_byte_of_any_file_is_accounted_for(
        parts in prop::collection::vec((0..3_u8, prop::collection::vec(any::<u8>(), 0..40)), 0..20),
        cut in 0..30_usize,
    ) {
        let mut bytes = Vec::new();
        for (kind, content) in &parts {
            match kind {
                0 => bytes.extend(trace(&[packet(content, 5)])),
                1 => bytes.extend(trace([content])),
                _ => bytes.extend(content),
            }
        }
        bytes.truncate(bytes.len().saturating_sub(cut));
        let seen = seen(bytes.as_slice());
        prop_assert_eq!(seen.end.size, bytes.len() as u64);
        if seen.compressed.is_empty() {
            let packets: usize = seen.packets.iter().map(|packet| trace([packet]).len()).sum();
            let skipped: u64 = seen.damages.iter().map(|damage| damage.skipped).sum();
            let cut = seen.end.cut.map_or(0, |cut| cut.bytes);
            // A length may be encoded in more bytes than necessary.
            prop_assert!(packets as u64 + skipped + cut <= bytes.len() as u64);
            if seen.damages.is_empty() && parts.iter().all(|(kind, _)| *kind < 2) {
                prop_assert_eq!(packets as u64 + cut, bytes.len() as u64);
            }
        }
        prop_assert_eq!(seen, self::seen(Dripping(&bytes, 0)));
    }
}
