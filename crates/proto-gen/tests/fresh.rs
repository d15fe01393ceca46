//! The generated files in the repository are those that the schema gives.

use ferretto_proto_gen::{proto_crate, stale};

#[test]
fn checked_in_files_are_what_the_schema_gives() {
    let stale = stale(&proto_crate()).expect("the schema compiles");
    assert!(
        stale.is_empty(),
        "stale: {stale:?}; run `cargo run -p ferretto-proto-gen`"
    );
}
