use proptest::prelude::*;

use super::*;

fn mappings(text: &str) -> Vec<Mapping> {
    Maps::read(text.as_bytes()).expect("text").mappings().to_vec()
}

fn kind(name: &str) -> MappingKind {
    mappings(&format!("1000-2000 r-xp 00000000 00:00 0 {name}\n"))[0].kind()
}

#[test]
fn a_line_is_a_mapping() {
    let text = "\
55d0c0a00000-55d0c0a01000 r--p 00000000 fd:01 1234                       /usr/bin/a b\n\
55d0c0a01000-55d0c0a09000 r-xp 00001000 fd:01 1234                       /usr/bin/a b\n\
7ffff7fc1000-7ffff7fc3000 r-xp 00000000 00:00 0                          [vdso]\n\
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n";
    let mappings = mappings(text);
    assert_eq!(mappings.len(), 3, "only what can be executed");
    assert_eq!(
        mappings[0],
        Mapping {
            start: 0x55d0_c0a0_1000,
            end: 0x55d0_c0a0_9000,
            offset: 0x1000,
            device: (0xfd, 1),
            inode: 1234,
            name: b"/usr/bin/a b".as_slice().into(),
        }
    );
    assert_eq!(mappings[1].kind(), MappingKind::Vdso);
    assert_eq!(mappings[2].kind(), MappingKind::Special);
}

#[test]
fn names_say_what_is_mapped() {
    assert_eq!(kind(""), MappingKind::Anonymous);
    assert_eq!(kind("[heap]"), MappingKind::Anonymous);
    assert_eq!(kind("[anon:jit]"), MappingKind::Anonymous);
    assert_eq!(kind("[stack]"), MappingKind::Stack);
    assert_eq!(kind("[uprobes]"), MappingKind::Special);
    assert_eq!(kind("/usr/lib/libc.so.6"), MappingKind::File);
    assert_eq!(kind("/usr/lib/libc.so.6 (deleted)"), MappingKind::DeletedFile);
    assert_eq!(kind("/memfd:jit (deleted)"), MappingKind::DeletedFile);
    assert_eq!(kind("/dev/dri/card0"), MappingKind::Device);
    assert_eq!(kind("/dev/zero (deleted)"), MappingKind::Device);
}

#[test]
fn the_mark_of_deleted_files_is_not_part_of_their_path() {
    let mapping = &mappings("1000-2000 r-xp 00000000 08:01 7 /tmp/x (deleted)\n")[0];
    assert_eq!(mapping.path(), Some(b"/tmp/x".as_slice()));
    assert_eq!(&*mapping.name, b"/tmp/x (deleted)");
}

#[test]
fn addresses_are_found_in_the_mappings_that_have_them() {
    let text = "1000-2000 r-xp 0 0:0 0\n3000-4000 r-xp 0 0:0 0\n";
    let maps = Maps::read(text.as_bytes()).expect("text");
    let found = [0xfff, 0x1000, 0x1fff, 0x2000, 0x3500, 0x4000, u64::MAX].map(|address| maps.find(address));
    assert_eq!(found, [None, Some(0), Some(0), None, Some(1), None, None]);
}

#[test]
fn a_line_that_is_too_long_costs_itself_only() {
    let long = "x".repeat(10 * LONGEST_LINE);
    let text = format!("1000-2000 r-xp 0 0:0 0 /{long}\n3000-4000 r-xp 0 0:0 0 /short\n");
    let mappings = mappings(&text);
    assert_eq!(mappings.len(), 2);
    assert!(mappings[0].name.len() < 2 * LONGEST_LINE);
    assert_eq!(&*mappings[1].name, b"/short");
}

#[test]
fn of_too_many_mappings_the_first_are_kept() {
    let line = |number: usize| format!("{:x}-{:x} r-xp 0 0:0 0\n", number * 16 + 16, number * 16 + 32);
    let text: String = (0..MOST_MAPPINGS + 1).map(line).collect();
    let maps = Maps::read(text.as_bytes()).expect("text");
    assert_eq!(maps.mappings().len(), MOST_MAPPINGS);
}

/// Gives a few bytes at a time.
struct InPieces<'a>(&'a [u8], usize);

impl Read for InPieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.1.min(buffer.len()).min(self.0.len());
        let (piece, rest) = self.0.split_at(length);
        buffer[..length].copy_from_slice(piece);
        self.0 = rest;
        Ok(length)
    }
}

fn any_mappings() -> impl Strategy<Value = Vec<Mapping>> {
    let mapping = (
        1u64..1000,
        1u64..1000,
        any::<u64>(),
        any::<(u32, u32)>(),
        any::<u64>(),
        "[^\n]{0,40}",
    );
    prop::collection::vec(mapping, 0..20).prop_map(|parts| {
        let mut address = 0;
        let mapping = |(gap, size, offset, device, inode, name): (u64, u64, u64, (u32, u32), u64, String)| {
            let start = address + gap;
            address = start + size;
            Mapping {
                start,
                end: address,
                offset,
                device,
                inode,
                name: name.trim_ascii_start().as_bytes().into(),
            }
        };
        parts.into_iter().map(mapping).collect()
    })
}

proptest! {
    #[test]
    fn what_the_kernel_writes_is_read_back(expected in any_mappings(), piece in 1usize..200) {
        let text: Vec<u8> = expected
            .iter()
            .flat_map(|mapping| {
                let Mapping { start, end, offset, device: (major, minor), inode, name } = mapping;
                let head = format!("{start:08x}-{end:08x} r-xp {offset:08x} {major:02x}:{minor:02x} {inode} ");
                [head.as_bytes(), b"                ", name, b"\n"].concat()
            })
            .collect();
        let maps = Maps::read(InPieces(&text, piece)).expect("text");
        prop_assert_eq!(maps.mappings(), expected);
    }

    #[test]
    fn any_bytes_give_mappings_in_order(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let maps = Maps::read(bytes.as_slice()).expect("bytes");
        prop_assert!(maps.mappings().iter().all(|mapping| mapping.start < mapping.end));
        prop_assert!(maps.mappings().is_sorted_by(|a, b| a.end <= b.start));
    }
}
