//! What a field of a kernel event is, and how its bytes become a protobuf field.
//!
//! The format parser asks [`FieldKind::of`] what a C declaration means; the translation table asks [`FieldKind::read_as`]
//! whether the kind can become a protobuf field of some type, and how. Both answers are upstream's, since the trace
//! processor was written against them.

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

    /// The width of something that is 4 or 8 bytes by nature.
    fn of_word(size: u16) -> Option<Self> {
        Self::of(size).filter(|width| matches!(width, Self::Four | Self::Eight))
    }
}

/// What the offset in a dynamic array's descriptor is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The start of the event (`__data_loc`).
    Event,
    /// The end of the descriptor itself (`__rel_loc`).
    Descriptor,
}

/// What the bytes of a kernel field mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// An integer without a sign.
    Unsigned(Width),
    /// An integer with one.
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
    /// Understands a C declaration and what else the format file says of the field. The first rule that fits decides.
    pub fn of(declaration: &str, size: u16, signedness: Signedness) -> Option<Self> {
        if is_sized_char_array(declaration) {
            return Some(Self::FixedString);
        }
        for (marker, origin) in [("__data_loc ", Origin::Event), ("__rel_loc ", Origin::Descriptor)] {
            if let Some(at) = declaration.find(marker) {
                let element = &declaration[at + marker.len()..];
                let is_bytes = ["u8[] ", "__u8[] ", "unsigned char[] "]
                    .iter()
                    .any(|ty| element.starts_with(ty));
                // Arrays of anything else are shown as a string too: upstream does, and their first bytes are better
                // than nothing.
                let kind = if is_bytes {
                    Self::DynamicBytes(origin)
                } else {
                    Self::DynamicString(origin)
                };
                return (size == 4).then_some(kind);
            }
        }
        if declaration == "unsigned long args[6]" && (size == 24 || size == 48) {
            // `raw_syscalls/sys_enter`: the kind is that of one argument.
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
            (Self::Unsigned(One) | Self::Bool, Uint32 | Uint64) => Read::U8,
            (Self::Unsigned(Two), Uint32 | Uint64) => Read::U16,
            (Self::Unsigned(Four), Uint32 | Uint64) => Read::U32,
            (Self::Unsigned(Eight), Uint64) => Read::U64,
            (Self::Inode(Four), Uint64) => Read::Inode32,
            (Self::Inode(Eight), Uint64) => Read::Inode64,
            (Self::Signed(One), Int32 | Int64) => Read::I8,
            (Self::Signed(Two), Int32 | Int64) => Read::I16,
            (Self::Signed(Four), Int32 | Int64) => Read::I32,
            (Self::Signed(Eight), Int64) => Read::U64,
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
    pub fn generic_type(self) -> ProtoType {
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
    /// `string`. What the kernel has is copied as it is, be it UTF-8 or not.
    String,
    /// `bytes`.
    Bytes,
}

/// How to read one field of an event: a [`FieldKind`] with the decisions taken that do not depend on the event.
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
    /// As `I32`, and the thread counts as seen.
    Pid,
    /// As `U32`, and the file counts as seen.
    Inode32,
    /// As `U64`, and the file counts as seen.
    Inode64,
    /// 32-bit device number, turned into what `stat` shows.
    Device32,
    /// 64-bit device number, turned into what `stat` shows.
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
    fn values_never_go_where_they_could_lose_bits() {
        assert_eq!(FieldKind::Unsigned(Width::Four).read_as(ProtoType::Int32), None);
        assert_eq!(FieldKind::Unsigned(Width::Eight).read_as(ProtoType::Uint32), None);
        assert_eq!(FieldKind::Signed(Width::Eight).read_as(ProtoType::Int32), None);
        assert_eq!(
            FieldKind::KernelAddress(Width::Eight).read_as(ProtoType::Uint32),
            None
        );
        assert_eq!(
            FieldKind::Signed(Width::Two).read_as(ProtoType::Int32),
            Some(Read::I16)
        );
    }
}
