use super::*;

fn segment(offset: u64, address: u64, executable: bool) -> Segment {
    Segment {
        offset,
        file_size: 0x1800,
        address,
        executable,
    }
}

#[test]
fn a_mapping_belongs_to_the_executable_segment_that_its_pages_hold() {
    // As lld lays files out: segments follow each other without gaps, and each is mapped from the page that it starts in.
    let segments = [
        segment(0, 0, false),
        segment(0x1800, 0x2800, true),
        segment(0x3000, 0x5000, false),
    ];
    assert_eq!(address_of_mapping(&segments, 0x1000), Some(0x2000));
    // The rest of a mapping that was split.
    assert_eq!(address_of_mapping(&segments, 0x2000), Some(0x3000));
    assert_eq!(address_of_mapping(&segments, 0x3000), None);
}

#[test]
fn a_segment_far_behind_is_another() {
    assert_eq!(
        address_of_mapping(&[segment(0x20_0000, 0x20_0000, true)], 0),
        None
    );
}
