//! Mistakes that people make in configs, and the whole messages about them, as printed.

use ferretto_proto::text::{self, TRACE_CONFIG};

/// Configs, each with its messages below `->`. `\t` and `\r` stand for themselves, lest editors change them.
const MISTAKES: &str = include_str!("mistakes.txt");

fn told(source: &str) -> String {
    match text::encode(source, TRACE_CONFIG) {
        Ok(_) => "it is accepted".to_owned(),
        Err(errors) => errors.to_string(),
    }
}

#[test]
fn people_are_told_what_is_wrong_where_and_what_they_meant() {
    let mistakes = MISTAKES.trim_end().split("\n====\n");
    let mut count = 0;
    for mistake in mistakes {
        let (source, expected) = mistake
            .split_once("\n->\n")
            .expect("a config and what is said of it");
        let source = source.replace("\\t", "\t").replace("\\r", "\r");
        assert_eq!(told(&source), expected, "{source}");
        count += 1;
    }
    assert!(count > 50, "{count}");
}
