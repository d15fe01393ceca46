//! Compares `docs/flags.md` with the flags that the programs define, with the cases, and with the differences.

use std::collections::BTreeSet;
use std::path::Path;

use ferretto_cli::applet;

use crate::flags::{CASES, Upstream, differences};

/// Programs that upstream's package has as well: not `traced_perf`, whose flags are those of every daemon.
const PROGRAMS: [&str; 6] = [
    "perfetto",
    "trigger_perfetto",
    "traced",
    "traced_probes",
    "websocket_bridge",
    "tracebox",
];
/// Flags that other tests use.
const RUN_ELSEWHERE: &[(&str, &str)] = &[
    // These change the machine's tracefs, for which the tests of the probes have a lock.
    ("traced_probes", "--cleanup-after-crash"),
    ("traced_probes", "--reset-ftrace"),
    // These start daemons of their own; the tests in `words` use them.
    ("tracebox", "--system-sockets"),
    ("tracebox", "--autodaemonize"),
];

struct Table {
    text: String,
}

/// A row about flags.
struct Row {
    /// Every spelling of the flags.
    flags: Vec<String>,
    /// The last column.
    verdict: String,
}

impl Table {
    fn read() -> Table {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/flags.md");
        Table {
            text: std::fs::read_to_string(path).unwrap(),
        }
    }

    /// Returns the cells of the rows under a heading.
    fn rows(&self, heading: &str) -> Vec<Vec<String>> {
        self.text
            .lines()
            .skip_while(|line| *line != format!("## {heading}"))
            .skip(1)
            .take_while(|line| !line.starts_with("## "))
            .filter(|line| line.starts_with('|'))
            .skip(2)
            .map(|line| {
                let line = line.trim_matches('|').replace("\\|", "\0");
                line.split('|')
                    .map(|cell| cell.trim().replace('\0', "|"))
                    .collect()
            })
            .collect()
    }

    fn flags(&self, program: &str) -> Vec<Row> {
        let row = |cells: Vec<String>| {
            let [first, _, verdict] = cells.as_slice() else {
                panic!("{program}: not three columns: {cells:?}")
            };
            // The flags are the words in backticks that begin with a dash.
            let flags = first.split('`').skip(1).step_by(2);
            Row {
                flags: flags
                    .filter(|flag| flag.starts_with('-') && *flag != "--")
                    .map(str::to_owned)
                    .collect(),
                verdict: verdict.clone(),
            }
        };
        self.rows(program).into_iter().map(row).collect()
    }
}

#[test]
fn every_flag_has_a_row_and_every_row_a_flag() {
    let table = Table::read();
    for program in PROGRAMS {
        let rows = table.flags(program);
        assert!(!rows.is_empty(), "{program}");
        let listed: BTreeSet<String> = rows.into_iter().flat_map(|row| row.flags).collect();
        let mut defined: BTreeSet<String> = applet::flags_of(program).unwrap().into_iter().collect();
        if program == "tracebox" {
            // tracebox takes the flags of `perfetto` as well.
            for flag in applet::flags_of("perfetto").unwrap() {
                assert!(defined.remove(&flag), "{flag}");
            }
        }
        let without_row: Vec<_> = defined.difference(&listed).collect();
        assert!(
            without_row.is_empty(),
            "{program} takes {without_row:?}: docs/flags.md needs a row"
        );
        let without_flag: Vec<_> = listed.difference(&defined).collect();
        assert!(
            without_flag.is_empty(),
            "{program} does not take {without_flag:?} of docs/flags.md"
        );
    }
    let of_ferretto: BTreeSet<_> = applet::flags_of("ferretto").unwrap().into_iter().collect();
    let mut listed: BTreeSet<_> = applet::flags_of("perfetto").unwrap().into_iter().collect();
    listed.extend(table.flags("ferretto").into_iter().flat_map(|row| row.flags));
    assert_eq!(of_ferretto, listed, "those of perfetto, and a table of its own");
}

/// Returns the words that scripts pass to a program, including those from loops.
fn words_given_to(program: &str) -> BTreeSet<&'static str> {
    let words = |line: &'static str| line.split([' ', '\'', ';', '(', ')']);
    let in_loops = format!("{program} $word");
    let mut given = BTreeSet::new();
    for case in CASES.iter().flat_map(|cases| cases.iter()) {
        let loops = case.script.contains(&in_loops);
        let lines = case.script.lines();
        let calls = lines.filter(|line| {
            words(line).any(|word| word == program) || loops && line.trim_start().starts_with("for word")
        });
        given.extend(calls.flat_map(words));
    }
    given
}

#[test]
fn every_flag_is_run() {
    let table = Table::read();
    for program in PROGRAMS {
        let words = words_given_to(program);
        let is_run = |flag: &str| {
            let with_value = format!("{flag}=");
            words
                .iter()
                .any(|word| *word == flag || word.starts_with(&with_value))
        };
        for row in table.flags(program) {
            for flag in row.flags {
                let flag = (program, &*flag);
                assert!(
                    is_run(flag.1) || RUN_ELSEWHERE.contains(&flag),
                    "no case has {flag:?}"
                );
            }
        }
    }
}

/// Returns the names in brackets, except those of links.
fn names_in_brackets(text: &str) -> Vec<String> {
    let bracketed = text.split('[').skip(1).filter_map(|rest| rest.split_once(']'));
    let names = bracketed.filter(|(_, after)| !after.starts_with('('));
    names.map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn every_difference_has_a_reason_and_a_case() {
    let table = Table::read();
    let told: Vec<(String, String)> = table
        .rows("Differences")
        .into_iter()
        .map(|cells| (cells.first().unwrap().clone(), cells.last().unwrap().clone()))
        .collect();
    let listed: Vec<(String, String)> = differences::ALL
        .iter()
        .map(|difference| (difference.name.to_owned(), difference.why.to_owned()))
        .collect();
    assert_eq!(told, listed);

    let shown: BTreeSet<&str> = CASES
        .iter()
        .flat_map(|cases| cases.iter())
        .filter_map(|case| match case.upstream {
            Upstream::Differs(difference, _) | Upstream::OtherConfig(difference) => Some(difference.name),
            Upstream::Same | Upstream::NotRun(_) => None,
        })
        .collect();
    let cited: BTreeSet<String> = PROGRAMS
        .iter()
        .flat_map(|program| table.flags(program))
        .flat_map(|row| names_in_brackets(&row.verdict))
        .chain(
            table
                .text
                .lines()
                .filter(|line| !line.starts_with('|'))
                .flat_map(names_in_brackets),
        )
        .collect();
    for difference in differences::ALL {
        assert!(shown.contains(difference.name), "no case shows {difference:?}");
        assert!(cited.contains(difference.name), "nothing cites {difference:?}");
    }
    for name in &cited {
        assert!(
            differences::ALL.iter().any(|difference| difference.name == name),
            "{name} is cited, and no difference"
        );
    }
}
