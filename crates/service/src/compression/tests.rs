#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

const LIMIT: usize = 1 << 30;

fn codecs() -> Vec<Codec> {
    vec![
        Codec::Deflate,
        #[cfg(feature = "zstd")]
        Codec::Zstd { level: 0 },
    ]
}

/// Packets in the format of a trace file.
fn trace(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut trace = Vec::new();
    packets.iter().for_each(|packet| push_framed(&mut trace, packet));
    trace
}

fn packets(trace: &[u8]) -> Vec<Vec<u8>> {
    let bytes = |field: Result<ferretto_wire::Field<'_>, _>| {
        let field = field.unwrap();
        assert_eq!(field.number, 1, "a packet");
        field.value.as_bytes().unwrap().to_vec()
    };
    Reader::new(trace).map(bytes).collect()
}

/// The packets in a trace file in which all packets are compressed.
fn expanded(file: &[u8]) -> Vec<Vec<u8>> {
    let inside = |packet: &Vec<u8>| packets(&expand(packet, LIMIT).unwrap().expect("compressed"));
    packets(file).iter().flat_map(inside).collect()
}

/// A packet with this text, as the service's tests have them.
fn packet(text: &[u8]) -> Vec<u8> {
    let mut packet = Writer::new();
    packet.nested(900, |event| event.bytes_field(1, text));
    packet.as_slice().to_vec()
}

/// Bytes that no codec can compress, different for each seed.
fn noise(seed: u64, size: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(size).collect()
}

#[test]
fn no_packets_become_no_packet() {
    for codec in codecs() {
        let mut file = Vec::new();
        let mut compressor = Compressor::new(codec).unwrap();
        assert_eq!(
            compressor.compress_into(&mut file, &[], LIMIT as u64).unwrap(),
            Fit::Whole
        );
        assert!(file.is_empty(), "{codec}");
    }
}

#[test]
fn packets_come_back_in_order_and_a_compressor_can_be_used_again() {
    for codec in codecs() {
        let mut compressor = Compressor::new(codec).unwrap();
        for batch in 0..3 {
            let original: Vec<_> = (0..100)
                .map(|n| packet(format!("packet {n} of {batch}").as_bytes()))
                .collect();
            let compressed = compressor.compress(&trace(&original)).unwrap();
            let mut fields = Reader::new(compressed);
            assert_eq!(fields.next().unwrap().unwrap().number, codec.field());
            assert!(fields.next().is_none(), "one field");
            let inside = expand(compressed, LIMIT).unwrap().unwrap();
            assert_eq!(packets(&inside), original, "{codec}");
        }
    }
}

#[test]
fn incompressible_packets_come_back_as_well() {
    for codec in codecs() {
        let original: Vec<_> = (0..30).map(|seed| packet(&noise(seed, 65_536))).collect();
        let mut compressor = Compressor::new(codec).unwrap();
        let compressed = compressor.compress(&trace(&original)).unwrap();
        assert!(compressed.len() > 30 * 65_536);
        let inside = expand(compressed, LIMIT).unwrap().unwrap();
        assert_eq!(packets(&inside), original, "{codec}");
    }
}

#[cfg(feature = "zstd")]
#[test]
fn any_level_works_and_a_higher_one_makes_no_more_of_it() {
    let text = |n: usize| format!("{n} {}", "abcdefghij".repeat(n % 7)).into_bytes();
    let original: Vec<_> = (0..2000).map(|n| packet(&text(n))).collect();
    let size = |level| {
        let mut compressor = Compressor::new(Codec::Zstd { level }).unwrap();
        let compressed = compressor.compress(&trace(&original)).unwrap();
        let inside = expand(compressed, LIMIT).unwrap().unwrap();
        assert_eq!(packets(&inside), original, "level {level}");
        compressed.len()
    };
    assert!(size(19) < size(1) && size(1) < size(-50));
    assert_eq!(size(0), size(3));
    assert_eq!(size(i32::MAX), size(22));
    size(i32::MIN);
}

#[cfg(feature = "zstd")]
#[test]
fn levels_that_take_long_are_not_for_the_thread_of_the_service() {
    let level = |level| match (Codec::Zstd { level }).in_time() {
        Codec::Zstd { level } => level,
        Codec::Deflate => panic!("another codec"),
    };
    assert_eq!([-7, 0, 9, 10, 22].map(level), [-7, 0, 9, 9, 9]);
}

#[test]
fn a_file_gets_as_many_packets_as_there_is_room_for() {
    for codec in codecs() {
        // Each of them takes its room.
        let original: Vec<_> = (0..64)
            .map(|seed| packet(&noise(seed, 100 + seed as usize)))
            .collect();
        let mut compressor = Compressor::new(codec).unwrap();
        let mut one = Vec::new();
        compressor
            .compress_into(&mut one, &trace(&original[..1]), u64::MAX)
            .unwrap();
        let mut all = Vec::new();
        compressor
            .compress_into(&mut all, &trace(&original), u64::MAX)
            .unwrap();
        let most = all.len() as u64 + 1;
        for room in (0..most).step_by(97).chain([1, most - 1]) {
            let mut file = Vec::new();
            let fit = compressor
                .compress_into(&mut file, &trace(&original), room)
                .unwrap();
            assert_eq!(fit, Fit::Cut, "room for {room} of {}", all.len());
            assert!((file.len() as u64) < room.max(1));
            let kept = expanded(&file);
            assert_eq!(kept, original[..kept.len()], "{codec}, room for {room}");
            // The rest would not have held the next, alone.
            let left = room - file.len() as u64;
            assert!(
                left < one.len() as u64 + 100,
                "{codec}: {left} bytes of {room} unused"
            );
        }
        let mut file = Vec::new();
        assert_eq!(
            compressor
                .compress_into(&mut file, &trace(&original), most)
                .unwrap(),
            Fit::Whole
        );
        assert_eq!(file, all);
    }
}

#[test]
fn a_compressed_packet_that_holds_more_than_it_should_is_refused() {
    for codec in codecs() {
        let mut compressor = Compressor::new(codec).unwrap();
        let original = trace(&[packet(&vec![0; 1 << 20])]);
        let compressed = compressor.compress(&original).unwrap();
        assert!(compressed.len() < 2000);
        assert_eq!(
            expand(compressed, original.len()).unwrap().as_deref(),
            Some(&*original)
        );
        let refused = expand(compressed, original.len() - 1);
        assert!(matches!(refused, Err(ExpandError::TooLarge(_))), "{codec}");
    }
}

#[test]
fn damaged_packets_are_refused_and_others_are_none_of_these() {
    assert!(matches!(expand(&packet(b"plain"), LIMIT), Ok(None)));
    for codec in codecs() {
        let mut compressor = Compressor::new(codec).unwrap();
        let compressed = compressor.compress(&trace(&[packet(b"text")])).unwrap().to_vec();
        for cut in 3..compressed.len() {
            let mut damaged = Writer::new();
            damaged.bytes_field(codec.field(), &compressed[cut..]);
            assert!(
                matches!(
                    expand(damaged.as_slice(), LIMIT),
                    Err(ExpandError::Damaged(_)) | Ok(Some(_))
                ),
                "{codec}"
            );
        }
        let mut empty = Writer::new();
        empty.bytes_field(codec.field(), b"nonsense");
        assert!(matches!(
            expand(empty.as_slice(), LIMIT),
            Err(ExpandError::Damaged(_))
        ));
    }
}

#[test]
fn the_codec_is_the_newest_that_the_config_names() {
    use trace_config::CompressionType::{COMPRESSION_TYPE_DEFLATE, COMPRESSION_TYPE_UNSPECIFIED};
    use trace_config::compression_config::Deflate;
    let config = |deflate: bool, legacy| {
        let compression = trace_config::CompressionConfig {
            deflate: deflate.then(Deflate::default).into(),
            ..Default::default()
        };
        TraceConfig {
            compression: compression.into(),
            compression_type: legacy,
            ..Default::default()
        }
    };
    assert_eq!(Codec::of(&TraceConfig::default()), None);
    assert_eq!(Codec::of(&config(false, None)), None);
    assert_eq!(Codec::of(&config(true, None)), Some(Codec::Deflate));
    let legacy = Some(COMPRESSION_TYPE_DEFLATE);
    assert_eq!(Codec::of(&config(false, legacy)), Some(Codec::Deflate));
    let unspecified = Some(COMPRESSION_TYPE_UNSPECIFIED);
    assert_eq!(Codec::of(&config(false, unspecified)), None);
    assert!(!is_unmet(&TraceConfig::default()) && !is_unmet(&config(true, None)));
    assert!(is_unmet(&config(false, unspecified)), "only a newer kind");

    #[cfg(feature = "zstd")]
    {
        use trace_config::compression_config::Zstd;
        let mut both = config(true, legacy);
        both.compression.get_or_insert_default().zstd = Zstd {
            level: Some(7),
            ..Default::default()
        }
        .into();
        assert_eq!(Codec::of(&both), Some(Codec::Zstd { level: 7 }));
    }
}

proptest! {
    #[test]
    fn all_packets_that_fit_come_back(
        texts in prop::collection::vec(prop::collection::vec(0u8..4, 0..300), 0..40),
        room in 0u64..3000,
    ) {
        let original: Vec<_> = texts.iter().map(|text| packet(text)).collect();
        for codec in codecs() {
            let mut file = Vec::new();
            let mut compressor = Compressor::new(codec).unwrap();
            let fit = compressor.compress_into(&mut file, &trace(&original), room).unwrap();
            let kept = expanded(&file);
            prop_assert!(file.is_empty() || (file.len() as u64) < room);
            prop_assert_eq!(&kept[..], &original[..kept.len()]);
            prop_assert_eq!(fit == Fit::Whole, kept.len() == original.len());
        }
    }
}
