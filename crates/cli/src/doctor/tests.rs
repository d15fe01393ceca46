//! The checks, on machines made of text.

mod machine;
mod profiles;
mod service;
mod tracefs;

use super::fake::{Fake, PROBES};
use super::finding::{Finding, Mark, worst};
use super::*;
use crate::machine::Answer;
use crate::stdout::Style;

/// Returns the only finding on this topic.
fn found(fake: &Fake, topic: &str) -> Finding {
    let mut findings: Vec<_> = all(fake, topic);
    assert_eq!(findings.len(), 1, "{topic}: {findings:#?}");
    findings.remove(0)
}

/// Returns all findings on this topic.
fn all(fake: &Fake, topic: &str) -> Vec<Finding> {
    examine(fake)
        .into_iter()
        .filter(|finding| finding.topic == topic)
        .collect()
}

/// Asserts that the finding is good and contains this text.
#[track_caller]
fn assert_ok(finding: &Finding, text: &str) {
    assert_eq!(finding.mark, Mark::Ok, "{finding:#?}");
    assert!(finding.what.contains(text), "{finding:#?}");
    assert_eq!((&finding.costs, finding.mend.as_slice()), (&None, &[][..]));
}

/// Asserts a note with this text, its consequences, and the commands that fix it.
#[track_caller]
fn assert_note(finding: &Finding, text: &str, costs: &str, mend: &[&str]) {
    assert_eq!(finding.mark, Mark::Note, "{finding:#?}");
    assert!(finding.what.contains(text), "{finding:#?}");
    assert!(
        finding.costs.as_ref().is_some_and(|told| told.contains(costs)),
        "{finding:#?}"
    );
    assert_eq!(finding.mend, mend);
}

#[test]
fn a_healthy_machine_has_nothing_to_mend() {
    let findings = examine(&Fake::healthy());
    assert_eq!(worst(&findings), Mark::Ok, "{findings:#?}");
    let text = report(&findings, 100, Style::Plain);
    assert!(text.lines().count() < 30, "more than a screen:\n{text}");
    for topic in [
        "kernel",
        "user",
        "tracefs",
        "ftrace",
        "buffers",
        "events",
        "symbols",
        "processes",
        "counters",
        "profiles",
        "service",
        "sources",
        "memory",
        "disk",
        "limits",
        "clock",
        "ui",
    ] {
        assert_eq!(
            findings.iter().filter(|finding| finding.topic == topic).count(),
            1,
            "{topic}"
        );
    }
}

#[test]
fn a_service_with_probes_is_all_that_a_user_needs() {
    let mut fake = Fake::of_maria();
    fake.close("/proc/1");
    let findings = examine(&fake);
    assert_eq!(worst(&findings), Mark::Ok, "{findings:#?}");
}

#[test]
fn an_unprivileged_user_without_a_service_can_record() {
    let fake = Fake::of_maria().without_service();
    let findings = examine(&fake);
    assert_eq!(worst(&findings), Mark::Note, "{findings:#?}");
    let notes: Vec<_> = findings
        .iter()
        .filter(|finding| finding.mark != Mark::Ok)
        .map(|finding| finding.topic)
        .collect();
    assert_eq!(notes, ["tracefs", "profiles", "service"]);
}

#[test]
fn every_note_says_what_it_costs_and_topics_fit_their_column() {
    let machines = [
        Fake::healthy(),
        Fake::of_maria(),
        Fake::healthy().without_service(),
        Fake::of_maria().without_service(),
        Fake::empty(),
    ];
    for (number, fake) in machines.iter().enumerate() {
        for finding in examine(fake) {
            assert_eq!(
                finding.mark == Mark::Note,
                finding.costs.is_some(),
                "{number}: {finding:#?}"
            );
            assert!(finding.topic.len() <= 10, "{finding:#?}");
        }
    }
}

#[test]
fn without_proc_there_is_still_a_report() {
    let mut fake = Fake::empty();
    fake.user(0, "0");
    assert_note(
        &found(&fake, "kernel"),
        "/proc",
        "no processes",
        &["mount -t proc proc /proc"],
    );
    let silent = examine(&Fake::empty());
    assert_eq!(silent[0].mend, ["sudo mount -t proc proc /proc"]);
}
