use ferretto_service::compression::{Codec, Compressor};
use ferretto_wire::Writer;

use super::*;

fn trace(packets: &[&[u8]]) -> Vec<u8> {
    let mut trace = Writer::new();
    packets.iter().for_each(|packet| trace.bytes_field(1, packet));
    trace.into_vec()
}

fn printed(trace: &[u8]) -> (String, Outcome) {
    let mut out = Vec::new();
    let outcome = print(trace, &mut out).unwrap();
    (String::from_utf8(out).unwrap(), outcome)
}

#[test]
fn packets_are_printed_in_the_order_of_the_file() {
    let bytes = trace(&[&[0x40, 5], b"", &[0x32, 0]]);
    let (text, outcome) = printed(&bytes);
    assert_eq!(
        text,
        "packet {\n  timestamp: 5\n}\npacket {\n\n}\npacket {\n  clock_snapshot {\n  }\n}\n"
    );
    let end = End {
        size: bytes.len() as u64,
        cut: None,
    };
    let expected = Outcome {
        packets: 3,
        damaged: 0,
        damages: vec![],
        end,
    };
    assert_eq!(outcome, expected);
}

#[test]
fn compressed_packets_are_printed_expanded() {
    for (codec, name) in [
        (Codec::Deflate, "compressed_packets"),
        (Codec::Zstd { level: 3 }, "zstd_compressed_packets"),
    ] {
        let mut compressor = Compressor::new(codec).unwrap();
        let compressed = compressor.compress(&trace(&[&[0x40, 5], &[0x40, 6]])).unwrap();
        let (text, _) = printed(&trace(&[compressed, &[0x40, 7]]));
        let expected = format!(
            "{name} {{\n  packet {{\n    timestamp: 5\n  }}\n  packet {{\n    timestamp: 6\n  }}\n}}\npacket {{\n  timestamp: 7\n}}\n"
        );
        assert_eq!(text, expected);
    }
}

#[test]
fn damage_becomes_a_comment_in_its_place() {
    let service = [0x40, 5, 0x18, 0, 0x50, 1];
    let mut bytes = trace(&[&[0x40, 5]]);
    bytes.extend(b"garbage");
    bytes.extend(trace(&[&service]));
    let (text, outcome) = printed(&bytes);
    let comment = "# damaged at byte 4: no packet begins with 0x67; 7 bytes are passed over\n";
    assert_eq!(text.matches(comment).count(), 1, "{text}");
    assert_eq!((outcome.packets, outcome.damaged), (2, 1));
}

#[test]
fn a_writer_that_fails_ends_it() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let bytes = trace(&[&[0x40, 5]]);
    let failed = print(bytes.as_slice(), Full);
    assert!(matches!(failed, Err(PrintError::Write(error)) if error.kind() == io::ErrorKind::StorageFull));
}

#[test]
fn packets_before_a_read_error_are_printed() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::NotConnected.into())
        }
    }
    let packets = [[0x40, 5].as_slice(); 100];
    let bytes = trace(&packets);
    let mut out = Vec::new();
    assert!(matches!(
        print(bytes.chain(Broken), &mut out),
        Err(PrintError::Read(_))
    ));
    let text = String::from_utf8(out).unwrap();
    assert!(text.matches("packet {").count() >= 90, "{text}");
}
