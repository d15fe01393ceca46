//! How recordings end: with the service, the file or a flush, or not at all.

use super::*;

#[test]
fn a_recording_that_the_service_ended_lacks_the_rest() {
    let mut evidence = Evidence::default();
    event(&mut evidence, 1000, |event| {
        event.tracing_started(true);
    });
    event(&mut evidence, 2200, |event| {
        event.service_ended(true);
    });
    event(&mut evidence, 2300, |event| {
        event.tracing_disabled(true);
    });
    let config = asking_for(&["my.own"]);
    let account = judged(&config, Some(&evidence), None);
    let sentence =
        "everything after 1.2 s: the recording ended then, because the tracing service was told to end";
    assert_eq!(missing(&account), [("service_ended", sentence.to_owned())]);
    assert!(!account.is_void && !account.is_whole());
    assert!(account.findings[0].advice.is_some());
    // A clone has everything that the session had when it was cloned.
    event(&mut evidence, 2300, |event| {
        event.clone_started(true);
    });
    assert_eq!(missing(&judged(&config, Some(&evidence), None)), []);
}

#[test]
fn a_service_may_have_ended_at_an_unknown_time() {
    let mut evidence = Evidence::default();
    event(&mut evidence, 2200, |event| {
        event.service_ended(true);
    });
    let account = judged(&asking_for(&["my.own"]), Some(&evidence), None);
    assert!(missing(&account)[0].1.starts_with("the rest: "), "{account:?}");
}

#[test]
fn a_session_that_began_and_did_not_end_is_not_whole() {
    let mut evidence = Evidence::default();
    event(&mut evidence, 1, |event| {
        event.tracing_started(true);
    });
    let whole = |evidence: &Evidence| judged(&TraceConfig::default(), Some(evidence), None).is_whole();
    assert!(!whole(&evidence));
    event(&mut evidence, 2, |event| {
        event.tracing_disabled(true);
    });
    assert!(whole(&evidence));
}

#[test]
fn a_failed_flush_is_reported_once() {
    let config = TraceConfig::default();
    let found = |stats: Option<&TraceStats>, last_flush| {
        let account = Account::of(&Case {
            stats,
            last_flush,
            ..Case::of(&config, Wording::Config)
        });
        let findings = account.findings.into_iter();
        findings
            .map(|finding| (finding.cause, finding.what))
            .collect::<Vec<_>>()
    };
    let failed = |what: &str| vec![("flush_failed", what.to_owned())];
    let counted = TraceStats {
        flushes_requested: Some(2),
        flushes_failed: Some(1),
        ..Default::default()
    };
    assert_eq!(
        found(Some(&counted), LastFlush::AsCounted),
        failed("1 flush of 2")
    );
    assert_eq!(
        found(Some(&counted), LastFlush::Failed),
        failed("1 flush of 2, the last one among them")
    );
    let silent = TraceStats::default();
    for stats in [None, Some(&silent)] {
        assert_eq!(found(stats, LastFlush::Failed), failed("the last flush"));
        assert_eq!(found(stats, LastFlush::AsCounted), []);
    }
}

#[test]
fn a_clone_has_no_end_whether_or_not_it_is_marked() {
    let mut evidence = Evidence::default();
    event(&mut evidence, 1, |event| {
        event.tracing_started(true);
    });
    let config = TraceConfig::default();
    let clone = Account::of(&Case {
        evidence: Some(&evidence),
        subject: Subject::Clone,
        ..Case::of(&config, Wording::Config)
    });
    assert_eq!(clone.findings, []);
    assert!(!judged(&config, Some(&evidence), None).is_whole());
}

#[test]
fn a_file_that_is_full_does_not_break_off() {
    let mut evidence = Evidence::default();
    event(&mut evidence, 1, |event| {
        event.tracing_started(true);
    });
    let config = TraceConfig {
        write_into_file: Some(true),
        max_file_size_bytes: Some(10 << 20),
        ..Default::default()
    };
    let found = |evidence: &Evidence, wording, size, state| {
        let account = Account::of(&Case {
            evidence: Some(evidence),
            file: Some(TraceFile { size, state }),
            ..Case::of(&config, wording)
        });
        let finding = account.findings.into_iter().next();
        finding.map(|finding| {
            (
                finding.severity,
                finding.cause,
                finding.advice.unwrap_or_default(),
            )
        })
    };
    let full = |advice: &str| Some((Severity::Note, "file_full", advice.to_owned()));
    let broken = Some((Severity::Loss, "no_end", String::new()));
    let (near, far) = ((10 << 20) - 1000, 5 << 20);
    let raise = "for a longer one raise max_file_size_bytes from 10485760 to 20971520";
    assert_eq!(
        found(&evidence, Wording::Config, near, FileState::Unknown),
        full(raise)
    );
    assert_eq!(
        found(&evidence, Wording::Flags, near, FileState::Complete),
        full("for a longer one write -s 20mb")
    );
    assert_eq!(found(&evidence, Wording::Config, far, FileState::Unknown), broken);
    assert_eq!(
        found(&evidence, Wording::Config, far, FileState::Complete),
        full(raise),
        "a large packet did not fit"
    );
    event(&mut evidence, 2, |event| {
        event.tracing_disabled(true);
    });
    assert_eq!(
        found(&evidence, Wording::Config, near, FileState::Complete),
        None,
        "there was room for the end"
    );
}
