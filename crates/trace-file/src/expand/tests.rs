use std::io::Write;

use proptest::prelude::*;

use super::*;

fn compressed(compression: Compression, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match compression {
        Compression::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(&mut out, flate2::Compression::fast());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap();
        }
        Compression::Zstd => out = zstd::encode_all(bytes, 1).unwrap(),
        Compression::Xz => {
            let options = lzma_rust2::XzOptions::with_preset(0);
            let mut encoder = lzma_rust2::XzWriter::new(&mut out, options).unwrap();
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap();
        }
    }
    out
}

/// Returns the expanded bytes, and the reason if they are incomplete.
fn expanded(compression: Compression, bytes: &[u8], at_once: usize) -> (Vec<u8>, Option<Broken>) {
    let mut reader = Expanding::new(compression, bytes).unwrap();
    let (mut out, mut buffer) = (Vec::new(), vec![0; at_once]);
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return (out, None),
            Ok(count) => out.extend_from_slice(&buffer[..count]),
            Err(error) => return (out, Some(Broken::of(error).unwrap())),
        }
    }
}

const ALL: [Compression; 3] = [Compression::Gzip, Compression::Zstd, Compression::Xz];

#[test]
fn an_error_of_the_source_is_none_of_the_data() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::NotConnected.into())
        }
    }
    for compression in ALL {
        let bytes = compressed(compression, b"some bytes");
        let mut reader = Expanding::new(compression, bytes[..bytes.len() - 1].chain(Broken)).unwrap();
        let mut out = Vec::new();
        let error = reader.read_to_end(&mut out).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotConnected);
        assert!(b"some bytes".starts_with(&out), "{out:?}");
        assert!(super::Broken::of(error).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The sizes of reads do not change the bytes; a damaged or cut file yields only bytes from before the damage; and nothing panics.
    #[test]
    fn damage_anywhere_leaves_the_data_before_it(
        contents in prop::collection::vec(0..4_u8, 0..60_000),
        which in 0..3_usize,
        place in any::<prop::sample::Index>(),
        to in any::<u8>(),
        cut in any::<bool>(),
        at_once in 1..5000_usize,
    ) {
        let compression = ALL[which];
        let mut bytes = compressed(compression, &contents);
        prop_assert_eq!(&expanded(compression, &bytes, at_once), &(contents.clone(), None));
        let place = place.index(bytes.len());
        if cut {
            bytes.truncate(place);
        } else {
            bytes[place] = to;
        }
        let (out, broken) = expanded(compression, &bytes, at_once);
        let (more, broken_too) = expanded(compression, &bytes, 1 << 20);
        prop_assert!(more == out && broken == broken_too, "{} {} {:?} {:?}", out.len(), more.len(), broken, broken_too);
        if cut {
            prop_assert!(contents.starts_with(&out));
            prop_assert!(broken.is_some_and(|broken| broken.offset == place as u64));
        }
    }

    /// Bytes that no compressor made.
    #[test]
    fn anything_at_all_is_read_to_its_end(mut bytes in prop::collection::vec(any::<u8>(), 6..500), which in 0..3_usize) {
        const MAGIC: [&[u8]; 3] = [b"\x1f\x8b\x08\0", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0"];
        bytes[..MAGIC[which].len()].copy_from_slice(MAGIC[which]);
        expanded(ALL[which], &bytes, 4096);
    }
}
