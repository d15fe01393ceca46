//! `PacketValidator` on arbitrary bytes in arbitrary fragments, against naive readers: what passes has no reserved field
//! for any of them, and what they find good in every respect passes.
//!
//! The input is cut as in the target `frames`.

#![no_main]

use ferretto_fuzz::{NaiveField, RESERVED_FIELDS, TagWidth, naive_fields, stream_in_pieces};
use ferretto_proto::messages::{Message, TracePacket};
use ferretto_service::packet_validator::PacketValidator;
use ferretto_wire::{MAX_FIELD_NUMBER, Reader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (packet, fragments) = stream_in_pieces(data);
    let whole = PacketValidator::check([packet]);
    assert_eq!(
        PacketValidator::check(fragments),
        whole,
        "fragments make a difference"
    );
    let readers = [TagWidth::Bits64, TagWidth::Bits32];
    let readings = readers.map(|width| naive_fields(packet, width));
    if whole.is_ok() {
        for fields in &readings {
            let fields = fields.as_ref().expect("what passes consists of whole fields");
            let reserved = fields
                .iter()
                .find(|field| RESERVED_FIELDS.contains(&field.number));
            assert_eq!(reserved, None, "a reserved field passed");
        }
        for field in Reader::new(packet).map_while(Result::ok) {
            assert!(
                !RESERVED_FIELDS.contains(&field.number.into()),
                "a reserved field passed"
            );
        }
        if let Ok(packet) = TracePacket::decode_from_slice(packet) {
            assert_eq!(packet.optional_trusted_uid, None);
            assert_eq!(packet.optional_trusted_packet_sequence_id, None);
            assert_eq!((packet.trusted_pid, packet.machine_id), (None, None));
        }
    } else if let [Some(fields), _] = &readings {
        let good = |field: &NaiveField| {
            (1..=u64::from(MAX_FIELD_NUMBER)).contains(&field.number)
                && !field.tag_is_cut
                && !RESERVED_FIELDS.contains(&field.number)
        };
        assert!(!fields.iter().all(good), "a good packet was refused: {whole:?}");
    }
});
