//! The meaning of a kernel event's field, and how its bytes become a protobuf field.
//!
//! The format parser asks `FieldKind::of` what a C declaration means. The translation table asks [`FieldKind::read_as`] whether the
//! kind can become a protobuf field of some type, and how. Both answers are upstream's, because the trace processor was written against
//! them. Integers are the exception: kernels widen and narrow them and change their sign, and upstream then drops the field. Here the
//! field stays, and only values that do not fit are left out.

use super::format::Signedness;

/// Size of an integer or pointer in the ring buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 1 byte.
    One,
    /// 2 bytes.
    Two,
    /// 4 bytes.
    Four,
    /// 8 bytes.
    Eight,
}

impl Width {
    fn of(size: u16) -> Option<Self> {
        match size {
            1 => Some(Self::One),
            2 => Some(Self::Two),
            4 => Some(Self::Four),
            8 => Some(Self::Eight),
            _ => None,
        }
    }

    /// The width of a value that always has 4 or 8 bytes.
    fn of_word(size: u16) -> Option<Self> {
        Self::of(size).filter(|width| matches!(width, Self::Four | Self::Eight))
    }
}

/// The place that the offset in a dynamic array's descriptor counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The start of the event (`__data_loc`).
    Event,
    /// The end of the descriptor itself (`__rel_loc`).
    Descriptor,
}

/// The meaning of a kernel field's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// An integer without a sign.
    Unsigned(Width),
    /// An integer with a sign.
    Signed(Width),
    /// One byte, zero or one.
    Bool,
    /// A thread id.
    Pid,
    /// The thread that was running when the event happened.
    CommonPid,
    /// An inode number.
    Inode(Width),
    /// A device number in the kernel's own encoding.
    Device(Width),
    /// An address in the kernel, to be replaced by its symbol.
    KernelAddress(Width),
    /// `char name[16]`: up to the first NUL or the end of the array.
    FixedString,
    /// `char name[]` at the end of an event: up to the first NUL or the end of the event.
    TrailingString,
    /// The address of a constant string, which `printk_formats` may know.
    StringPointer(Width),
    /// A descriptor that says where in the event a string lies.
    DynamicString(Origin),
    /// A descriptor that says where in the event some bytes lie.
    DynamicBytes(Origin),
}

impl FieldKind {
    /// Understands a C declaration and the other facts that the format file gives about the field. The first rule that fits decides.
    pub(crate) fn of(declaration: &str, size: u16, signedness: Signedness) -> Option<Self> {
        if is_sized_char_array(declaration) {
            return Some(Self::FixedString);
        }
        for (marker, origin) in [("__data_loc ", Origin::Event), ("__rel_loc ", Origin::Descriptor)] {
            if let Some(at) = declaration.find(marker) {
                let element = &declaration[at + marker.len()..];
                let is_bytes = ["u8[] ", "__u8[] ", "unsigned char[] "]
                    .iter()
                    .any(|ty| element.starts_with(ty));
                // Arrays of other types become a string too: upstream does the same, and their first bytes are better than nothing.
                let kind = if is_bytes {
                    Self::DynamicBytes(origin)
                } else {
                    Self::DynamicString(origin)
                };
                return (size == 4).then_some(kind);
            }
        }
        if declaration == "unsigned long args[6]" && (size == 24 || size == 48) {
            // `raw_syscalls/sys_enter`: the kind describes one argument.
            return Width::of(size / 6).map(Self::Unsigned);
        }
        if declaration.contains("char[] ") || declaration.contains("char * ") {
            return Width::of(size).map(Self::StringPointer);
        }
        if (declaration.starts_with("void*") || declaration.starts_with("void *"))
            && let Some(width) = Width::of_word(size)
        {
            return Some(Self::KernelAddress(width));
        }
        if declaration.starts_with("char ") && size == 0 {
            return Some(Self::TrailingString);
        }
        if declaration.starts_with("bool ") && size == 1 {
            return Some(Self::Bool);
        }
        if (declaration.starts_with("ino_t ") || declaration.starts_with("i_ino "))
            && let Some(width) = Width::of_word(size)
        {
            return Some(Self::Inode(width));
        }
        if declaration.starts_with("dev_t ")
            && let Some(width) = Width::of_word(size)
        {
            return Some(Self::Device(width));
        }
        if declaration.starts_with("pid_t ") && size == 4 {
            return Some(Self::Pid);
        }
        if declaration.contains("common_pid") && size == 4 {
            return Some(Self::CommonPid);
        }
        Width::of(size).map(|width| match signedness {
            Signedness::Signed => Self::Signed(width),
            Signedness::Unsigned => Self::Unsigned(width),
        })
    }

    /// How this kind becomes a field of type `target`; `None` if it would not fit.
    pub fn read_as(self, target: ProtoType) -> Option<Read> {
        use ProtoType::{Bytes, Int32, Int64, String, Uint32, Uint64};
        use Width::{Eight, Four, One, Two};
        let read = match (self, target) {
            (Self::Unsigned(One) | Self::Bool, Uint32 | Uint64 | Int32 | Int64) => Read::U8,
            (Self::Unsigned(Two), Uint32 | Uint64 | Int32 | Int64) => Read::U16,
            (Self::Unsigned(Four), Uint32 | Uint64 | Int64) => Read::U32,
            (Self::Unsigned(Eight), Uint64) => Read::U64,
            (Self::Inode(Four), Uint64) => Read::Inode32,
            (Self::Inode(Eight), Uint64) => Read::Inode64,
            (Self::Signed(One), Int32 | Int64) => Read::I8,
            (Self::Signed(Two), Int32 | Int64) => Read::I16,
            (Self::Signed(Four), Int32 | Int64) => Read::I32,
            (Self::Signed(Eight), Int64) => Read::U64,
            (Self::Unsigned(width) | Self::Inode(width), Int32 | Int64 | Uint32) => Read::IfItFits(Integer {
                width,
                signedness: Signedness::Unsigned,
                target,
            }),
            (Self::Signed(width), Int32 | Uint32 | Uint64) => Read::IfItFits(Integer {
                width,
                signedness: Signedness::Signed,
                target,
            }),
            (Self::Pid | Self::CommonPid, Int32 | Int64) => Read::Pid,
            (Self::Device(Four), Uint64) => Read::Device32,
            (Self::Device(Eight), Uint64) => Read::Device64,
            (Self::KernelAddress(Four), Uint64) => Read::Address32,
            (Self::KernelAddress(Eight), Uint64) => Read::Address64,
            (Self::FixedString, String) => Read::FixedString,
            (Self::TrailingString, String) => Read::TrailingString,
            (Self::StringPointer(Four), String) => Read::StringPointer32,
            (Self::StringPointer(Eight), String) => Read::StringPointer64,
            (Self::DynamicString(origin), String) => Read::DynamicString(origin),
            (Self::DynamicBytes(origin), Bytes) => Read::DynamicBytes(origin),
            _ => return None,
        };
        Some(read)
    }

    /// The type of the field in an event that is not known in advance.
    pub(crate) fn generic_type(self) -> ProtoType {
        match self {
            Self::Signed(_) | Self::Pid | Self::CommonPid => ProtoType::Int64,
            Self::Unsigned(_) | Self::Bool | Self::Inode(_) | Self::Device(_) | Self::KernelAddress(_) => {
                ProtoType::Uint64
            }
            Self::FixedString | Self::TrailingString | Self::StringPointer(_) | Self::DynamicString(_) => {
                ProtoType::String
            }
            Self::DynamicBytes(_) => ProtoType::Bytes,
        }
    }
}

/// Whether `char <name>[<bound>]` occurs in the declaration, where the bound is a number or a constant's name.
fn is_sized_char_array(declaration: &str) -> bool {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    declaration.match_indices("char ").any(|(at, prefix)| {
        let rest = &declaration.as_bytes()[at + prefix.len()..];
        let name_len = rest.iter().take_while(|byte| is_word(byte)).count();
        let starts_well = rest.first().is_some_and(|byte| !byte.is_ascii_digit());
        let Some(bound) = rest[name_len..].strip_prefix(b"[") else {
            return false;
        };
        let bound_len = bound.iter().take_while(|byte| is_word(byte)).count();
        name_len > 0 && starts_well && bound_len > 0 && bound.get(bound_len) == Some(&b']')
    })
}

/// Types of protobuf fields that kernel fields turn into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtoType {
    /// `int32`.
    Int32,
    /// `int64`.
    Int64,
    /// `uint32`.
    Uint32,
    /// `uint64`.
    Uint64,
    /// `string`. Bytes from the kernel are copied unchanged, whether or not they are UTF-8.
    String,
    /// `bytes`.
    Bytes,
}

/// An integer of the kernel that becomes a field whose type cannot hold all of its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Integer {
    /// Its width.
    pub width: Width,
    /// Whether it has a sign.
    pub(crate) signedness: Signedness,
    /// Type of the field in the message: an integer.
    pub target: ProtoType,
}

impl Integer {
    /// The value to be written as a varint, given the integer's bytes, little-endian and zero-extended. `None` if the value does not fit.
    #[inline]
    pub(crate) fn convert(self, raw: u64) -> Option<u64> {
        let unused = 64
            - 8 * match self.width {
                Width::One => 1,
                Width::Two => 2,
                Width::Four => 4,
                Width::Eight => 8,
            };
        let value = match self.signedness {
            Signedness::Unsigned => i128::from(raw),
            Signedness::Signed => i128::from((raw << unused) as i64 >> unused),
        };
        match self.target {
            ProtoType::Int32 => i32::try_from(value).ok().map(|value| i64::from(value) as u64),
            ProtoType::Int64 => i64::try_from(value).ok().map(|value| value as u64),
            ProtoType::Uint32 => u32::try_from(value).ok().map(u64::from),
            ProtoType::Uint64 => u64::try_from(value).ok(),
            ProtoType::String | ProtoType::Bytes => None,
        }
    }
}

/// How to read one field of an event: a [`FieldKind`] with all decisions made that do not depend on the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// Little-endian, zero-extended.
    U8,
    /// Little-endian, zero-extended.
    U16,
    /// Little-endian, zero-extended.
    U32,
    /// Little-endian. Signed 64-bit integers too: nothing is left to extend.
    U64,
    /// Sign-extended.
    I8,
    /// Little-endian, sign-extended.
    I16,
    /// Little-endian, sign-extended.
    I32,
    /// Little-endian. A value that does not fit the field of the message is left out.
    IfItFits(Integer),
    /// As `I32`, and the thread counts as seen.
    Pid,
    /// As `U32`, and the file counts as seen.
    Inode32,
    /// As `U64`, and the file counts as seen.
    Inode64,
    /// 32-bit device number, in the form that `stat` shows.
    Device32,
    /// 64-bit device number, in the form that `stat` shows.
    Device64,
    /// 32-bit kernel address, replaced by its interning index.
    Address32,
    /// 64-bit kernel address, replaced by its interning index.
    Address64,
    /// Bytes of the field up to the first NUL.
    FixedString,
    /// Bytes of the event from the field on, up to the first NUL.
    TrailingString,
    /// 32-bit address of a string in `printk_formats`.
    StringPointer32,
    /// 64-bit address of a string in `printk_formats`.
    StringPointer64,
    /// Bytes of the dynamic array up to the first NUL.
    DynamicString(Origin),
    /// Bytes of the dynamic array.
    DynamicBytes(Origin),
}

#[cfg(test)]
mod tests {
    use super::*;
    use Signedness::{Signed, Unsigned};
    use proptest::prelude::*;

    #[test]
    fn declarations_of_real_kernels_are_understood() {
        use FieldKind as Kind;
        let cases = [
            ("char prev_comm[16]", 16, Unsigned, Some(Kind::FixedString)),
            ("char comm[TASK_COMM_LEN]", 16, Unsigned, Some(Kind::FixedString)),
            ("unsigned char addr[6]", 6, Unsigned, Some(Kind::FixedString)),
            ("char buf[]", 0, Unsigned, Some(Kind::TrailingString)),
            ("char buf", 0, Unsigned, Some(Kind::TrailingString)),
            (
                "__data_loc char[] name",
                4,
                Unsigned,
                Some(Kind::DynamicString(Origin::Event)),
            ),
            (
                "__rel_loc char[] name",
                4,
                Unsigned,
                Some(Kind::DynamicString(Origin::Descriptor)),
            ),
            (
                "__data_loc u8[] data",
                4,
                Unsigned,
                Some(Kind::DynamicBytes(Origin::Event)),
            ),
            (
                "__data_loc unsigned char[] data",
                4,
                Unsigned,
                Some(Kind::DynamicBytes(Origin::Event)),
            ),
            (
                "__data_loc cpumask_t mask",
                4,
                Unsigned,
                Some(Kind::DynamicString(Origin::Event)),
            ),
            ("__data_loc char[] name", 8, Unsigned, None),
            (
                "const char * action",
                8,
                Unsigned,
                Some(Kind::StringPointer(Width::Eight)),
            ),
            ("char[] name", 4, Unsigned, Some(Kind::StringPointer(Width::Four))),
            (
                "void * function",
                8,
                Unsigned,
                Some(Kind::KernelAddress(Width::Eight)),
            ),
            (
                "void *function",
                4,
                Unsigned,
                Some(Kind::KernelAddress(Width::Four)),
            ),
            (
                "const void * ptr",
                8,
                Unsigned,
                Some(Kind::Unsigned(Width::Eight)),
            ),
            (
                "unsigned long args[6]",
                48,
                Unsigned,
                Some(Kind::Unsigned(Width::Eight)),
            ),
            (
                "unsigned long args[6]",
                24,
                Unsigned,
                Some(Kind::Unsigned(Width::Four)),
            ),
            ("unsigned long args[]", 0, Unsigned, None),
            ("bool start", 1, Unsigned, Some(Kind::Bool)),
            ("pid_t pid", 4, Signed, Some(Kind::Pid)),
            ("int common_pid", 4, Signed, Some(Kind::CommonPid)),
            ("dev_t dev", 4, Unsigned, Some(Kind::Device(Width::Four))),
            ("ino_t ino", 8, Unsigned, Some(Kind::Inode(Width::Eight))),
            ("u8 mac[16]", 16, Unsigned, None),
            ("long prev_state", 8, Signed, Some(Kind::Signed(Width::Eight))),
            ("short oom_score_adj", 2, Signed, Some(Kind::Signed(Width::Two))),
            (
                "struct folio * folio",
                8,
                Unsigned,
                Some(Kind::Unsigned(Width::Eight)),
            ),
        ];
        for (declaration, size, signedness, expected) in cases {
            assert_eq!(
                FieldKind::of(declaration, size, signedness),
                expected,
                "{declaration} ({size} bytes)"
            );
        }
    }

    #[test]
    fn what_is_no_integer_becomes_no_other_integer() {
        let cases = [
            (FieldKind::KernelAddress(Width::Eight), ProtoType::Uint32),
            (FieldKind::Device(Width::Eight), ProtoType::Uint32),
            (FieldKind::Pid, ProtoType::Uint32),
            (FieldKind::Unsigned(Width::One), ProtoType::String),
            (FieldKind::FixedString, ProtoType::Uint64),
        ];
        for (kind, target) in cases {
            assert_eq!(kind.read_as(target), None, "{kind:?} as {target:?}");
        }
    }

    #[test]
    fn an_integer_that_always_fits_is_not_checked() {
        use ProtoType::{Int32, Int64, Uint32, Uint64};
        let always = [
            (FieldKind::Unsigned(Width::Four), Int64, Read::U32),
            (FieldKind::Unsigned(Width::Two), Int32, Read::U16),
            (FieldKind::Unsigned(Width::Four), Uint32, Read::U32),
            (FieldKind::Unsigned(Width::Eight), Uint64, Read::U64),
            (FieldKind::Signed(Width::Two), Int32, Read::I16),
            (FieldKind::Signed(Width::Eight), Int64, Read::U64),
        ];
        for (kind, target, read) in always {
            assert_eq!(kind.read_as(target), Some(read), "{kind:?} as {target:?}");
        }
    }

    /// The smallest and the largest value of the type.
    fn range(target: ProtoType) -> (i128, i128) {
        match target {
            ProtoType::Int32 => (i32::MIN.into(), i32::MAX.into()),
            ProtoType::Int64 => (i64::MIN.into(), i64::MAX.into()),
            ProtoType::Uint32 => (0, u32::MAX.into()),
            _ => (0, u64::MAX.into()),
        }
    }

    proptest! {
        #[test]
        fn integers_of_any_width_and_sign_are_written_where_their_value_fits(
            bits in any::<u64>(),
            // Small values, and those around the limits, in every run.
            shift in prop_oneof![Just(63), Just(33), Just(32), Just(31), 0..64u32],
            width in prop_oneof![Just(Width::One), Just(Width::Two), Just(Width::Four), Just(Width::Eight)],
            signedness in prop_oneof![Just(Signed), Just(Unsigned)],
            target in prop_oneof![
                Just(ProtoType::Int32), Just(ProtoType::Int64), Just(ProtoType::Uint32), Just(ProtoType::Uint64)
            ],
        ) {
            let bits = bits >> shift;
            let (raw, value) = match (width, signedness) {
                (Width::One, Signed) => (bits as u8 as u64, i128::from(bits as i8)),
                (Width::Two, Signed) => (bits as u16 as u64, i128::from(bits as i16)),
                (Width::Four, Signed) => (bits as u32 as u64, i128::from(bits as i32)),
                (Width::Eight, Signed) => (bits, i128::from(bits as i64)),
                (Width::One, Unsigned) => (bits as u8 as u64, i128::from(bits as u8)),
                (Width::Two, Unsigned) => (bits as u16 as u64, i128::from(bits as u16)),
                (Width::Four, Unsigned) => (bits as u32 as u64, i128::from(bits as u32)),
                (Width::Eight, Unsigned) => (bits, i128::from(bits)),
            };
            let (least, most) = range(target);
            let fits = (least..=most).contains(&value);
            let written = Integer { width, signedness, target }.convert(raw);
            // Protobuf encodes negative numbers as if they had 64 bits.
            prop_assert_eq!(written, fits.then_some(value as u64));
        }
    }
}
