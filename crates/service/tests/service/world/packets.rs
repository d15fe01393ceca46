//! Packets, as producers write them and as readers find them.

use ferretto_proto::messages::{Message, TracePacket};
use ferretto_service::compression::expand;

pub(crate) fn decoded(packets: &[Vec<u8>]) -> Vec<TracePacket> {
    let decode = |bytes: &Vec<u8>| TracePacket::decode_from_slice(bytes).expect("a packet");
    packets.iter().map(decode).collect()
}

/// A packet with this text, as producers write it.
pub(crate) fn packet(text: &str) -> Vec<u8> {
    /// `TracePacket.for_testing` with its `str`.
    const FOR_TESTING: u32 = 900;
    let mut packet = ferretto_wire::Writer::new();
    packet.nested(FOR_TESTING, |event| event.bytes_field(1, text.as_bytes()));
    packet.as_slice().to_vec()
}

/// The texts of the packets made by [`packet`], in order.
pub(crate) fn texts(packets: &[TracePacket]) -> Vec<String> {
    let text = |packet: &TracePacket| {
        let bytes = packet.encode_to_vec();
        let field = |message: &[u8], number| {
            ferretto_wire::Reader::new(message)
                .flatten()
                .find(|field| field.number == number)
                .and_then(|field| field.value.as_bytes().map(<[u8]>::to_vec))
        };
        field(&bytes, 900)
            .and_then(|event| field(&event, 1))
            .map(|text| String::from_utf8(text).expect("text"))
    };
    packets.iter().filter_map(text).collect()
}

/// The packets, where each compressed packet is replaced by its contents.
pub(crate) fn expanded(packets: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    let inside = |packet: Vec<u8>| match expand(&packet, 1 << 30).expect("well compressed") {
        Some(trace) => packets_of(&trace),
        None => vec![packet],
    };
    packets.into_iter().flat_map(inside).collect()
}

/// The packets of a trace file.
pub(crate) fn packets_of(trace: &[u8]) -> Vec<Vec<u8>> {
    let packet = |field: Result<ferretto_wire::Field<'_>, _>| {
        let packet = field.expect("a trace").value;
        packet.as_bytes().expect("a packet").to_vec()
    };
    ferretto_wire::Reader::new(trace).map(packet).collect()
}
