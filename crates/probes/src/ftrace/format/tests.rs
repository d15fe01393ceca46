use super::super::fixtures::{FORMATS, HEADER_EVENT, HEADER_PAGE, format_of};
use super::*;
use proptest::prelude::*;

#[test]
fn a_format_file_gives_id_name_and_fields() {
    let format = EventFormat::parse(format_of("sched", "sched_switch")).unwrap();
    assert_eq!((format.id, format.name.as_str()), (372, "sched_switch"));
    let common: Vec<_> = format.common.iter().filter_map(FormatField::name).collect();
    assert_eq!(
        common,
        [
            "common_type",
            "common_flags",
            "common_preempt_count",
            "common_pid"
        ]
    );
    let next_comm = &format.fields[4];
    assert_eq!(next_comm.declaration, "char next_comm[16]");
    assert_eq!(
        (next_comm.name(), next_comm.offset, next_comm.size),
        (Some("next_comm"), 40, 16)
    );
    assert_eq!(format.fields[3].signedness, Signedness::Signed);
}

#[test]
fn every_format_file_of_the_test_data_is_read_whole() {
    for (_, name, text) in FORMATS {
        let format = EventFormat::parse(text).unwrap();
        assert_eq!(&format.name, name);
        let declared = text.lines().filter(|line| line.starts_with("\tfield:")).count();
        assert_eq!(format.common.len() + format.fields.len(), declared, "{name}");
    }
}

#[test]
fn names_are_found_in_declarations() {
    let name = |declaration: &str| {
        let declaration = declaration.to_owned();
        let field = FormatField {
            declaration,
            offset: 0,
            size: 0,
            signedness: Signedness::Unsigned,
        };
        field.name().map(str::to_owned)
    };
    for (declaration, expected) in [
        ("int foo", Some("foo")),
        ("u8 foo[(int)sizeof(struct blah)]", Some("foo")),
        ("char[] foo[16]", Some("foo")),
        ("__data_loc char[] foo", Some("foo")),
        ("struct file_lock * fl", Some("fl")),
        ("something_went_wrong", None),
        ("", None),
        ("]", None),
        ("][", None),
        (" []", None),
        ("char *", None),
        ("char 42", None),
        ("int ", None),
    ] {
        assert_eq!(name(declaration).as_deref(), expected, "{declaration:?}");
    }
}

#[test]
fn broken_format_files_are_refused_with_the_reason() {
    let with =
        |from: &str, to: &str| EventFormat::parse(&format_of("sched", "sched_waking").replace(from, to));
    assert_eq!(with("ID: 375\n", ""), Err(FormatError::Missing("ID:")));
    assert_eq!(with("ID: 375", "ID: 0"), Err(FormatError::EventId(0)));
    assert_eq!(with("ID: 375", "ID: 65536"), Err(FormatError::EventId(65536)));
    assert_eq!(
        with("name: sched_waking\n", ""),
        Err(FormatError::Missing("name:"))
    );
    assert_eq!(
        with("common_", "uncommon_"),
        Err(FormatError::Missing("common_type field"))
    );
    assert!(matches!(
        with("offset:24", "offset:x"),
        Err(FormatError::UnknownLine { line: 10, .. })
    ));
    assert!(matches!(
        with("offset:24", "offset:65533"),
        Err(FormatError::Placement {
            offset: 65533,
            size: 4,
            ..
        })
    ));
    assert!(matches!(
        with("offset:24", "offset:99999"),
        Err(FormatError::Placement { .. })
    ));
    assert_eq!(
        EventFormat::parse(""),
        Err(FormatError::Missing("common_type field"))
    );
}

#[test]
fn page_layouts_follow_the_kernels_word_size() {
    let layout = PageLayout::parse(HEADER_PAGE).unwrap();
    assert_eq!(layout, PageLayout::sixty_four_bit(4096));
    let thirty_two = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
                      \tfield: local_t commit;\toffset:8;\tsize:4;\tsigned:1;\n\
                      \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
                      \tfield: char data;\toffset:12;\tsize:4084;\tsigned:0;\n";
    let layout = PageLayout::parse(thirty_two).unwrap();
    assert_eq!(
        (layout.commit_size, layout.data_offset, layout.page_size()),
        (4, 12, 4096)
    );
    let larger = PageLayout::parse(&HEADER_PAGE.replace("4080", "65520")).unwrap();
    assert_eq!(larger.page_size(), 65536);
}

#[test]
fn page_layouts_that_cannot_be_are_refused() {
    let with = |from: &str, to: &str| PageLayout::parse(&HEADER_PAGE.replace(from, to)).unwrap_err();
    assert_eq!(with("commit", "omit"), FormatError::Missing("commit field"));
    assert!(matches!(
        with("timestamp;\toffset:0;\tsize:8", "timestamp;\toffset:0;\tsize:4"),
        FormatError::Placement { .. }
    ));
    assert!(matches!(
        with("offset:16", "offset:12"),
        FormatError::Placement { .. }
    ));
}

#[test]
fn record_headers_other_than_the_known_ones_are_noticed() {
    assert_eq!(check_record_header(HEADER_EVENT), Ok(()));
    let wider = HEADER_EVENT.replace("27 bits", "59 bits");
    assert!(matches!(
        check_record_header(&wider),
        Err(FormatError::RecordHeader {
            name: "time_delta",
            ..
        })
    ));
    let renumbered = HEADER_EVENT.replace("type == 30", "type == 28");
    assert!(matches!(
        check_record_header(&renumbered),
        Err(FormatError::RecordHeader {
            name: "time_extend",
            ..
        })
    ));
    assert_eq!(check_record_header(""), Err(FormatError::Missing("type_len")));
}

prop_compose! {
    fn any_field()(name in "[a-z_][a-z_0-9]{0,12}", offset in 0u16..60_000, size in 0u16..5_000, signed: bool) -> FormatField {
        let signedness = if signed { Signedness::Signed } else { Signedness::Unsigned };
        FormatField { declaration: format!("some_t {name}"), offset, size, signedness }
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "(name: \\PC{0,8}\n|ID: [0-9]{1,7}\n|format:\n|\tfield:\\PC{0,8};\toffset:[0-9]{0,6};\tsize:[0-9]{0,6};\tsigned:[01];\n|\\PC{0,12}\n){0,12}") {
        if let Ok(format) = EventFormat::parse(&text) {
            prop_assert_ne!(format.id, 0);
            prop_assert!(format.fields.iter().all(|field| u32::from(field.offset) + u32::from(field.size) <= 65_535));
        }
        let _ = PageLayout::parse(&text);
        let _ = check_record_header(&text);
    }

    #[test]
    fn what_the_kernel_prints_is_what_is_read(id in 1u16.., fields in prop::collection::vec(any_field(), 0..8)) {
        let mut text = format!("name: some_event\nID: {id}\nformat:\n");
        let common = FormatField { declaration: "int common_pid".into(), offset: 4, size: 4, signedness: Signedness::Signed };
        for field in std::iter::once(&common).chain(&fields) {
            let FormatField { declaration, offset, size, signedness } = field;
            let signed = u8::from(*signedness == Signedness::Signed);
            text += &format!("\tfield:{declaration};\toffset:{offset};\tsize:{size};\tsigned:{signed};\n");
        }
        text += "\nprint fmt: \"nothing; of: interest\"\n";
        let format = EventFormat::parse(&text).unwrap();
        prop_assert_eq!(format, EventFormat { id, name: "some_event".into(), common: vec![common], fields });
    }
}
