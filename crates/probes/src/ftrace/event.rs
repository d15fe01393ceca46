//! Encodes one event by its plan. Scheduler events that a session wants compact are encoded elsewhere.
//!
//! Called by the bundle writer with an event that is at least as long as its plan says.

use super::field::{Origin, Read, Width};
use super::generic::{self, GenericEncoding};
use super::metadata::Metadata;
use super::page::{read_u32, read_u64};
use super::printk_formats::PrintkFormats;
use super::session::DecodeConfig;
use super::table::{Encoding, EventPlan, FieldPlan};
use ferretto_proto::write::{FtraceEvent, KprobeEvent, SysEnterFtraceEvent};
use ferretto_wire::Writer;

/// Everything that encoding an event needs besides the event.
pub(super) struct Encoder<'a> {
    pub(super) printk_formats: &'a PrintkFormats,
    pub(super) config: &'a DecodeConfig,
    pub(super) metadata: &'a mut Metadata,
    /// Whether an event contradicted its format. Its readable fields have been written all the same.
    pub(super) malformed: bool,
}

impl Encoder<'_> {
    /// Appends the fields of an `FtraceEvent`.
    #[inline]
    pub(super) fn write_event(&mut self, out: &mut Writer, plan: &EventPlan, timestamp: u64, payload: &[u8]) {
        out.varint_field(FtraceEvent::TIMESTAMP, timestamp);
        // Zero if the event has no such field. Zero is also the idle thread. Neither can own anything that is noted below.
        let mut tid = 0;
        if let Some(offset) = plan.common_pid {
            tid = signed32(payload, offset);
            out.varint_field(FtraceEvent::PID, extend(tid));
            self.metadata.add_thread(tid);
        }
        self.metadata.begin_event(tid);
        match &plan.encoding {
            Encoding::Typed { number } => {
                out.nested(*number, |message| self.write_fields(message, plan, payload));
                if *number == FtraceEvent::TASK_RENAME {
                    // Threads rarely rename other threads, so upstream also takes the writer for the renamed one.
                    self.metadata.add_renamed(tid);
                }
            }
            Encoding::SysEnter { number, arguments } => out.nested(*number, |message| {
                self.write_fields(message, plan, payload);
                let (offset, width) = *arguments;
                for index in 0..6 {
                    let argument = match width {
                        Width::Eight => unsigned64(payload, offset + index * 8),
                        _ => unsigned32(payload, offset + index * 4).into(),
                    };
                    message.varint_field(SysEnterFtraceEvent::ARGS, argument);
                }
            }),
            Encoding::SysExit { number } => {
                out.nested(*number, |message| self.write_fields(message, plan, payload));
                if !self.config.syscalls_returning_fd.is_empty() {
                    self.note_opened_fd(plan, tid, payload);
                }
            }
            Encoding::Kprobe => out.nested(FtraceEvent::KPROBE_EVENT, |message| {
                message.bytes_field(KprobeEvent::NAME, plan.name.as_bytes());
                if let Some(kind) = self.config.kprobes.get(&plan.id) {
                    message.varint_field(KprobeEvent::TYPE, *kind as u64);
                }
            }),
            Encoding::Generic(described) => match self.config.generic_encoding {
                GenericEncoding::Descriptors => {
                    out.nested(described.number, |message| {
                        self.write_fields(message, plan, payload)
                    });
                }
                GenericEncoding::Names => {
                    out.nested(FtraceEvent::GENERIC, |message| {
                        generic::write_with_names(self, message, plan, payload)
                    });
                }
            },
        }
    }

    #[inline]
    fn write_fields(&mut self, out: &mut Writer, plan: &EventPlan, payload: &[u8]) {
        for field in &plan.fields {
            self.write_field(out, field, field.number, payload);
        }
    }

    /// Appends one field under the given number.
    #[inline]
    pub(super) fn write_field(&mut self, out: &mut Writer, field: &FieldPlan, number: u32, payload: &[u8]) {
        let at = field.offset;
        let value = match field.read {
            Read::U8 => byte(payload, at).into(),
            Read::U16 => half(payload, at).into(),
            Read::U32 => unsigned32(payload, at).into(),
            Read::U64 => unsigned64(payload, at),
            Read::I8 => extend(i32::from(byte(payload, at) as i8)),
            Read::I16 => extend(i32::from(half(payload, at) as i16)),
            Read::I32 => extend(signed32(payload, at)),
            Read::IfItFits(integer) => {
                let raw = match integer.width {
                    Width::One => byte(payload, at).into(),
                    Width::Two => half(payload, at).into(),
                    Width::Four => unsigned32(payload, at).into(),
                    Width::Eight => unsigned64(payload, at),
                };
                match integer.convert(raw) {
                    Some(value) => value,
                    None => return,
                }
            }
            Read::Pid => {
                let tid = signed32(payload, at);
                self.metadata.add_thread(tid);
                extend(tid)
            }
            Read::Inode32 => self.note_inode(unsigned32(payload, at).into()),
            Read::Inode64 => self.note_inode(unsigned64(payload, at)),
            Read::Device32 => self.note_device(unsigned32(payload, at).into()),
            Read::Device64 => self.note_device(unsigned64(payload, at)),
            Read::Address32 => self.metadata.intern_address(unsigned32(payload, at).into()),
            Read::Address64 => self.metadata.intern_address(unsigned64(payload, at)),
            Read::FixedString => {
                let bytes = payload.get(at..at + field.size).unwrap_or_default();
                return out.bytes_field(number, until_nul(bytes));
            }
            Read::TrailingString => {
                return out.bytes_field(number, until_nul(payload.get(at..).unwrap_or_default()));
            }
            Read::StringPointer32 => {
                let string = self.printk_formats.lookup(unsigned32(payload, at).into());
                return out.bytes_field(number, string.as_bytes());
            }
            Read::StringPointer64 => {
                let string = self.printk_formats.lookup(unsigned64(payload, at));
                return out.bytes_field(number, string.as_bytes());
            }
            Read::DynamicString(origin) => match dynamic_array(payload, at, origin) {
                Some(bytes) => return out.bytes_field(number, until_nul(bytes)),
                None => return self.malformed = true,
            },
            Read::DynamicBytes(origin) => match dynamic_array(payload, at, origin) {
                Some(bytes) => return out.bytes_field(number, bytes),
                None => return self.malformed = true,
            },
        };
        out.varint_field(number, value);
    }

    fn note_inode(&mut self, inode: u64) -> u64 {
        self.metadata.note_inode(inode);
        inode
    }

    fn note_device(&mut self, device: u64) -> u64 {
        let device = user_device(device);
        self.metadata.note_device(device);
        device
    }

    /// Notes the file descriptor that a system call returned, if the call is one that opens files.
    fn note_opened_fd(&mut self, plan: &EventPlan, tid: i32, payload: &[u8]) {
        let value_of = |name: &str| {
            let field = plan.fields.iter().find(|field| field.name == name)?;
            Some(match field.read {
                Read::U64 => unsigned64(payload, field.offset) as i64,
                _ => signed32(payload, field.offset).into(),
            })
        };
        let (Some(call), Some(result)) = (value_of("id"), value_of("ret")) else {
            return;
        };
        let opens = self.config.syscalls_returning_fd.contains(&call);
        // Negative results are errors.
        if let Some(fd) = u64::try_from(result).ok().filter(|_| opens) {
            self.metadata.add_opened_fd(tid, fd);
        }
    }
}

/// The bytes of a dynamic array, whose descriptor has the offset in its lower and the length in its upper 16 bits.
/// `None` if they do not lie within the event.
#[inline]
fn dynamic_array(payload: &[u8], at: usize, origin: Origin) -> Option<&[u8]> {
    let descriptor = unsigned32(payload, at) as usize;
    let (offset, len) = (descriptor & 0xffff, descriptor >> 16);
    if len == 0 {
        return Some(&[]);
    }
    let start = match origin {
        Origin::Event => offset,
        Origin::Descriptor => at + 4 + offset,
    };
    payload.get(start..start + len)
}

/// The bytes in front of the first NUL, or all if there is none. Looks at eight at a time: most texts are as short as a thread's name, and the
/// standard library first prepares for long memory.
#[inline]
fn until_nul(bytes: &[u8]) -> &[u8] {
    const LOWEST_BITS: u64 = u64::MAX / 0xff;
    const HIGHEST_BITS: u64 = LOWEST_BITS << 7;
    let mut at = 0;
    let mut rest = bytes;
    while let Some((eight, behind)) = rest.split_first_chunk() {
        let eight = u64::from_le_bytes(*eight);
        // The lowest set bit belongs to the first NUL. Higher bits may be set by bytes that are no NUL.
        let found = eight.wrapping_sub(LOWEST_BITS) & !eight & HIGHEST_BITS;
        if found != 0 {
            return &bytes[..at + found.trailing_zeros() as usize / 8];
        }
        at += size_of::<u64>();
        rest = behind;
    }
    match rest.iter().position(|byte| *byte == 0) {
        Some(nul) => &bytes[..at + nul],
        None => bytes,
    }
}

/// Turns a device number from the kernel's own layout (12 bits major, 20 bits minor) into that of `stat`.
fn user_device(device: u64) -> u64 {
    let (major, minor) = (device >> 20, device & 0xf_ffff);
    (major & 0xffff_f000) << 32 | (major & 0xfff) << 8 | (minor & 0xffff_ff00) << 12 | minor & 0xff
}

/// Signed protobuf integers are encoded as if they had 64 bits.
#[inline]
fn extend(value: i32) -> u64 {
    i64::from(value) as u64
}

// The plan vouches that all fields lie within the event. If it is wrong, a zero is read.

#[inline]
fn byte(payload: &[u8], at: usize) -> u8 {
    payload.get(at).copied().unwrap_or_default()
}

#[inline]
fn half(payload: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([byte(payload, at), byte(payload, at + 1)])
}

#[inline]
fn unsigned32(payload: &[u8], at: usize) -> u32 {
    read_u32(payload, at).unwrap_or_default()
}

#[inline]
fn signed32(payload: &[u8], at: usize) -> i32 {
    unsigned32(payload, at) as i32
}

#[inline]
fn unsigned64(payload: &[u8], at: usize) -> u64 {
    read_u64(payload, at).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn dynamic_arrays_outside_the_event_are_refused() {
        let mut payload = [0u8; 16];
        payload[8..12].copy_from_slice(&(4u32 << 16 | 12).to_le_bytes());
        payload[12..].copy_from_slice(b"name");
        assert_eq!(
            dynamic_array(&payload, 8, Origin::Event),
            Some(b"name".as_slice())
        );
        payload[8..12].copy_from_slice(&(4u32 << 16).to_le_bytes());
        assert_eq!(
            dynamic_array(&payload, 8, Origin::Descriptor),
            Some(b"name".as_slice())
        );
        payload[8..12].copy_from_slice(&(5u32 << 16 | 12).to_le_bytes());
        assert_eq!(dynamic_array(&payload, 8, Origin::Event), None);
        payload[8..12].copy_from_slice(&0xffff_ffffu32.to_le_bytes());
        assert_eq!(dynamic_array(&payload, 8, Origin::Event), None);
        payload[8..12].copy_from_slice(&0xffffu32.to_le_bytes());
        assert_eq!(
            dynamic_array(&payload, 8, Origin::Event),
            Some(b"".as_slice()),
            "empty wherever it claims to be"
        );
    }

    proptest! {
        #[test]
        fn strings_end_before_their_first_nul(
            bytes in prop::collection::vec(prop_oneof![4 => Just(1_u8), 1 => Just(0), 1 => Just(0x80), 2 => any::<u8>()], 0..40),
        ) {
            let expected = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
            prop_assert_eq!(until_nul(&bytes), expected);
        }

        #[test]
        fn device_numbers_are_those_of_stat(major in 0u32..1 << 12, minor in 0u32..1 << 20) {
            let kernel = u64::from(major) << 20 | u64::from(minor);
            prop_assert_eq!(user_device(kernel), rustix::fs::makedev(major, minor));
        }
    }
}
