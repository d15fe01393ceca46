//! Upstream's `traceconv text`, and how its text of a trace is compared with ours.
//!
//! Included by tests of this crate and of the command line. The program is `pftext`, beside the `tpq` that `FERRETTO_TPQ` names.
//! It is of an older release than our schema, and of a larger schema: what one of the two has under a number and the other
//! under a name is counted, and otherwise has to be the same.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The program.
pub(crate) struct Traceconv(PathBuf);

impl Traceconv {
    /// `None` if it is not there, and a line that says that the test is skipped.
    pub(crate) fn find() -> Option<Traceconv> {
        let program = std::env::var_os("FERRETTO_TPQ").map(|tpq| Path::new(&tpq).with_file_name("pftext"));
        let program = program.filter(|path| path.exists());
        if program.is_none() {
            println!(
                "skipped: no traceconv; name the program tpq, which has pftext beside it, in FERRETTO_TPQ"
            );
        }
        program.map(Traceconv)
    }

    /// Its text of a trace.
    pub(crate) fn text(&self, trace: &Path) -> String {
        let output = Command::new(&self.0).arg(trace).output().expect("pftext starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", trace.display());
        String::from_utf8(output.stdout).expect("only ASCII")
    }
}

/// The findings of a comparison.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Comparison {
    /// Lines that are the same, or the same number with more digits.
    pub(crate) same: usize,
    /// Fields that they have under a number and we under a name.
    pub(crate) newer: usize,
    /// Fields that we have under a number and they under a name.
    pub(crate) unknown: usize,
}

/// Compares the texts of one trace; panics at the first difference that is none of those.
pub(crate) fn compare(theirs: &str, ours: &str) -> Comparison {
    let mut comparison = Comparison::default();
    let (theirs, ours) = (parse(theirs), parse(ours));
    comparison.fields(&theirs, &ours, "");
    comparison
}

#[derive(Debug, PartialEq)]
struct Field<'a> {
    name: &'a str,
    value: Content<'a>,
}

#[derive(Debug, PartialEq)]
enum Content<'a> {
    Scalar(&'a str),
    Message(Vec<Field<'a>>),
}

impl Field<'_> {
    fn is_number(&self) -> bool {
        self.name.bytes().all(|byte| byte.is_ascii_digit())
    }
}

fn parse(text: &str) -> Vec<Field<'_>> {
    let mut open: Vec<(&str, Vec<Field<'_>>)> = vec![("", Vec::new())];
    // Theirs has blank lines where a message or a packed field is empty.
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(name) = line.strip_suffix(" {") {
            open.push((name, Vec::new()));
            continue;
        }
        let field = if line == "}" {
            let (name, fields) = open.pop().expect("what is closed was opened");
            Field {
                name,
                value: Content::Message(fields),
            }
        } else {
            let (name, value) = line
                .split_once(": ")
                .unwrap_or_else(|| panic!("no field: {line}"));
            Field {
                name,
                value: Content::Scalar(value),
            }
        };
        let (_, fields) = open
            .last_mut()
            .unwrap_or_else(|| panic!("nothing was opened: {line}"));
        fields.push(field);
    }
    let (_, fields) = open.pop().expect("the root");
    assert!(open.is_empty(), "{} messages are not closed", open.len());
    fields
}

impl Comparison {
    fn fields(&mut self, theirs: &[Field<'_>], ours: &[Field<'_>], place: &str) {
        let (mut their, mut our) = (0, 0);
        while let (Some(theirs_now), Some(ours_now)) = (theirs.get(their), ours.get(our)) {
            let place = format!("{place}.{}", ours_now.name);
            (their, our) = (their + 1, our + 1);
            match (&theirs_now.value, &ours_now.value) {
                _ if theirs_now.is_number() && !ours_now.is_number() => {
                    self.newer += 1;
                    our += values_in_one(&theirs_now.value, ours_now, &ours[our..]);
                }
                _ if ours_now.is_number() && !theirs_now.is_number() => {
                    self.unknown += 1;
                    their += values_in_one(&ours_now.value, theirs_now, &theirs[their..]);
                }
                (Content::Message(inner_theirs), Content::Message(inner_ours))
                    if theirs_now.name == ours_now.name =>
                {
                    self.same += 1;
                    self.fields(inner_theirs, inner_ours, &place);
                }
                (Content::Scalar(their_value), Content::Scalar(our_value))
                    if theirs_now.name == ours_now.name && is_same(ours_now.name, their_value, our_value) =>
                {
                    self.same += 1;
                }
                _ => panic!("{place}: theirs is {theirs_now:?}, ours {ours_now:?}"),
            }
        }
        assert_eq!(
            (theirs.get(their), ours.get(our)),
            (None, None),
            "{place} has more"
        );
    }
}

/// For a packed field that one side does not know, the other has as many lines as values: how many of `further` are values of
/// the field `known`, which on the other side is `whole`.
fn values_in_one(whole: &Content<'_>, known: &Field<'_>, further: &[Field<'_>]) -> usize {
    let is_string = |value: &Content<'_>| matches!(value, Content::Scalar(value) if value.starts_with('"'));
    let is_packed = is_string(whole) && matches!(known.value, Content::Scalar(_)) && !is_string(&known.value);
    let same = further.iter().take_while(|field| field.name == known.name);
    if is_packed { same.count() } else { 0 }
}

/// Whether a value of theirs is ours, which may have more digits, and be a number where theirs is of an older type.
fn is_same(name: &str, theirs: &str, ours: &str) -> bool {
    const WAS_BOOL: &str = "previous_packet_dropped";
    const HAD_32_BITS: [&str; 1] = ["tid"];
    if name == WAS_BOOL {
        return (theirs == "true") == (ours != "0");
    }
    if HAD_32_BITS.contains(&name)
        && ours
            .parse()
            .is_ok_and(|ours: i64| (ours as i32).to_string() == theirs)
    {
        return true;
    }
    let rounded = |ours: &str| {
        let double = ours.parse::<f64>().map(|value| format!("{value:.6}"));
        let float = ours.parse::<f32>().map(|value| format!("{value:.6}"));
        double.as_deref() == Ok(theirs) || float.as_deref() == Ok(theirs)
    };
    theirs == ours || theirs.contains('.') && rounded(ours)
}
