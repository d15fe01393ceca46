//! Reports the fate of each data source in the config.
//!
//! [`Account`] calls it. The service's notifications during the recording take precedence over marks in the trace. Missing packets are the last
//! resort: they prove something only if no buffer has holes and the config has no trace filter.

use std::time::Duration;

use ferretto_probes::ftrace::request::DEFAULT_BUFFER_KIB;
use ferretto_probes::{journald, process_stats, sys_stats, sysfs_power, system_info};
use ferretto_proto::messages::TraceConfig;

use super::counters::has_holes;
use super::evidence::{Departure, Evidence, Failed, SourceOf};
use super::watch::unique;
use super::{Account, Case, Severity, Wording, heaps, listed, producer_name, samples};
use crate::config::advice::known_sources::{FTRACE, HEAP, TRACK_EVENT};
use crate::config::advice::{SCAN_ALL, looks_at_no_process};
use crate::figures::{Counted, Elapsed};

/// Data sources that `ferretto` adds to those that the flags request; `perfetto` adds some of them.
const OVERVIEW: [&str; 3] = [process_stats::NAME, sys_stats::NAME, system_info::NAME];

/// Whether producers of a data source usually connect and disconnect during a recording. Applications that run for a while do, and their data is
/// complete nevertheless.
pub(super) fn comes_and_goes(source: &str) -> bool {
    source == TRACK_EVENT
}

impl Departure {
    /// Returns the message for the time of the disconnection: `traced_probes went away after 3.2 s (linux.ftrace); what it had handed over by then is
    /// kept`.
    pub(crate) fn notice(&self) -> String {
        format!(
            "{} went away{} ({}); what it had handed over by then is kept",
            producer_name(&self.producer),
            after(self.after),
            listed(&self.sources, String::clone).unwrap_or_default()
        )
    }
}

fn after(time: Option<Duration>) -> String {
    time.map(|time| format!(" after {}", Elapsed(time)))
        .unwrap_or_default()
}

/// Adds findings about missing data sources and lost kernel events.
pub(super) fn add_to(case: &Case<'_>, account: &mut Account) {
    let sources = Sources { case };
    sources.kernel(account);
    if let Some(evidence) = case.evidence {
        samples::add_to(&evidence.samples, account);
        heaps::add_to(&evidence.samples.heaps, account);
    }
    sources.failures(account);
    sources.departures(account);
    let mut fates = Vec::new();
    for name in sources.names() {
        let fate = sources.fate(&name);
        sources.tell(&name, fate, account);
        fates.push((name, fate));
    }
    sources.late(account);
    // The user asked for the sources that flags name. Sources added to these count only if flags name none.
    let named = |name: &str| case.wording == Wording::Config || !OVERVIEW.contains(&name);
    let asked_for: Vec<_> = match fates.iter().any(|(name, _)| named(name)) {
        true => fates.iter().filter(|(name, _)| named(name)).collect(),
        false => fates.iter().collect(),
    };
    account.is_void = !asked_for.is_empty() && asked_for.iter().all(|(_, fate)| fate.is_void());
}

/// The fate of a data source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It was recorded, as far as is known.
    Recorded,
    /// It wrote nothing. Perhaps there was nothing to write.
    Silent,
    /// No producer offered it.
    NotOffered,
    /// No producer acknowledged its start.
    NotStarted,
    /// It was offered, and the trace has nothing of it, for reasons that other findings give.
    Failed,
    /// It should have written something, and did not.
    Absent,
}

impl Fate {
    fn is_void(self) -> bool {
        !matches!(self, Fate::Recorded | Fate::Silent)
    }
}

struct Sources<'a> {
    case: &'a Case<'a>,
}

impl Sources<'_> {
    /// Returns the names of all data sources in the config.
    fn names(&self) -> Vec<String> {
        let sources = self.case.config.data_sources.iter();
        unique(sources.filter_map(|source| source.config.name.clone()))
    }

    fn fate(&self, name: &str) -> Fate {
        let packets = self
            .evidence_of_absence()
            .and_then(|evidence| evidence.has_packets_of(name));
        if self.is_not_offered(name) && packets != Some(true) {
            return Fate::NotOffered;
        }
        if name == FTRACE && self.ftrace_is_void() {
            return Fate::Failed;
        }
        // Another instance, or that of another producer, may have recorded something.
        let has_run = match (name, packets) {
            // One that has failed starts, too, and all others begin with a packet.
            (sys_stats::NAME, Some(false)) => false,
            _ => self.has_started(name) == Some(true),
        };
        if self.has_failed(name) && packets != Some(true) && !has_run {
            return Fate::Failed;
        }
        if self.is_not_started(name) {
            return Fate::NotStarted;
        }
        match packets {
            // `linux.ftrace` always writes its statistics.
            Some(false) if name == FTRACE => match self.departed(name) {
                true => Fate::Failed,
                false => Fate::Absent,
            },
            Some(false) => Fate::Silent,
            _ => Fate::Recorded,
        }
    }

    fn is_not_offered(&self, name: &str) -> bool {
        let marked = self
            .case
            .evidence
            .is_some_and(|evidence| evidence.not_offered.contains(name));
        marked || self.case.watch.and_then(|watch| watch.was_offered(name)) == Some(false)
    }

    /// Whether a producer says that an instance of it records nothing.
    fn has_failed(&self, name: &str) -> bool {
        let evidence = self.case.evidence;
        evidence.is_some_and(|evidence| evidence.failed.iter().any(|failed| failed.source == name))
    }

    /// Whether an instance of it has started, if that is known.
    fn has_started(&self, name: &str) -> Option<bool> {
        self.case.watch.and_then(|watch| watch.has_started(name))
    }

    /// Whether an instance of it is known to have started.
    fn has_run(&self, name: &str) -> bool {
        let all_started = self.case.evidence.is_some_and(|evidence| evidence.all_started);
        self.has_started(name).unwrap_or(all_started)
    }

    fn is_not_started(&self, name: &str) -> bool {
        let left_something = self.case.evidence.is_some_and(|evidence| match name {
            FTRACE => evidence.has_kernel_events(),
            _ => evidence.has_packets_of(name) == Some(true),
        });
        // A source that stops before it has said that it started, as after an early Ctrl-C, may have recorded all the same.
        if left_something {
            return false;
        }
        if let Some(has_started) = self.has_started(name) {
            return !has_started;
        }
        self.case.evidence.is_some_and(|evidence| {
            let was_late = evidence.late_to_start.iter().any(|late| late.source == name);
            was_late && !evidence.all_started
        })
    }

    /// Whether the trace has no kernel events for a known reason.
    fn ftrace_is_void(&self) -> bool {
        let Some(evidence) = self.evidence_of_absence() else {
            return false;
        };
        if evidence.has_kernel_events() {
            return false;
        }
        !evidence.kernel.troubles().is_empty() || all_unavailable(self.case.config, evidence)
    }

    fn departed(&self, name: &str) -> bool {
        let mut sources = self.all_departures().iter().flat_map(|gone| &gone.sources);
        sources.any(|source| source == name)
    }

    /// Returns the departures from the notifications, which include returns; without those, the departures marked in the trace.
    fn all_departures(&self) -> &[Departure] {
        let told = self.case.watch.map(|watch| watch.departures());
        let marked = self.case.evidence.map(|evidence| &*evidence.departures);
        match (told, marked) {
            (Some(told), _) if !told.is_empty() => told,
            (_, Some(marked)) => marked,
            _ => &[],
        }
    }

    /// Returns the evidence, if the trace has every packet that was written.
    fn evidence_of_absence(&self) -> Option<&Evidence> {
        let holes = self.case.stats.is_some_and(has_holes);
        let filtered = self.case.config.trace_filter.is_set();
        self.case.evidence.filter(|_| !holes && !filtered)
    }

    fn tell(&self, name: &str, fate: Fate, account: &mut Account) {
        let what = match name {
            FTRACE => "kernel events (linux.ftrace)".to_owned(),
            _ => format!("the data source {name}"),
        };
        let advice = match name {
            FTRACE => {
                "kernel events need root (sudo), a running traced_probes, and tracefs; `ferretto doctor` finds out what is missing"
            }
            process_stats::NAME if fate == Fate::Silent && self.looks_at_no_process() => SCAN_ALL,
            sysfs_power::NAME if fate == Fate::Silent => {
                "see whether this machine has a battery: `ls /sys/class/power_supply`"
            }
            journald::NAME if fate == Fate::NotStarted => {
                "reading the journal takes libsystemd.so.0, a journal, and root or the group systemd-journal"
            }
            ferretto_profile::source::NAME if fate == Fate::Silent && self.has_run(name) => {
                "it ran, but what it counts was too rare or too short for a sample: sample more often, and see its log"
            }
            ferretto_profile::source::NAME => {
                "CPU profiles need a running traced_perf (`ferretto traced_perf &`), which samples other users' processes as root only"
            }
            HEAP if fate == Fate::Silent => {
                "only programs that carry the client are profiled: `ferretto heap -- COMMAND` starts one with it, and LD_PRELOAD=libferretto_heap.so does so for others"
            }
            HEAP => {
                "heap profiles need a running heapprofd (`ferretto heapprofd &`); `ferretto heap` starts its own if no tracing service runs"
            }
            _ if name.starts_with("linux.") => {
                "check that traced_probes is running with the privileges it needs: `ferretto doctor`"
            }
            _ => "see whether a producer offers it: `ferretto list sources`",
        };
        let (severity, cause, why) = match fate {
            Fate::Recorded | Fate::Failed => return,
            Fate::NotOffered => (
                Severity::Missing,
                "data_source_not_offered",
                format!("no producer offered {name} while it was recorded"),
            ),
            Fate::NotStarted => {
                let of = self.producers_that_did_not_start(name);
                let of = listed(&of, |producer| producer_name(producer).to_owned());
                let who = of.unwrap_or_else(|| "its producer".to_owned());
                (
                    Severity::Missing,
                    "data_source_not_started",
                    format!("{who} never said that it had started"),
                )
            }
            Fate::Absent => (
                Severity::Missing,
                "data_source_silent",
                "the config asks for them, and nothing of linux.ftrace is in the trace, not even its statistics".to_owned(),
            ),
            // Track events may be from programs whose silence is normal; while recording, this is no finding.
            Fate::Silent if self.case.watch.is_some() && comes_and_goes(name) => return,
            Fate::Silent => (
                Severity::Note,
                "data_source_silent",
                "the config asks for it, and the trace has no packet of its kinds".to_owned(),
            ),
        };
        let what = match fate {
            Fate::Silent => format!("nothing of {what}"),
            _ => what,
        };
        account.add(severity, cause, what, why, Some(advice.to_owned()));
    }

    fn looks_at_no_process(&self) -> bool {
        let config = self.case.config;
        let mut sources = config.data_sources.iter().map(|source| &source.config);
        sources.any(|source| {
            source.name.as_deref() == Some(process_stats::NAME)
                && looks_at_no_process(config, &source.process_stats_config)
        })
    }

    fn producers_that_did_not_start(&self, name: &str) -> Vec<String> {
        let late: Vec<SourceOf> = match (self.case.watch, self.case.evidence) {
            (Some(watch), _) => watch.not_started(),
            (None, Some(evidence)) => evidence.late_to_start.clone(),
            (None, None) => Vec::new(),
        };
        unique(
            late.into_iter()
                .filter(|late| late.source == name)
                .map(|late| late.producer),
        )
    }

    /// Adds what producers say of data sources that they could not set up or start.
    fn failures(&self, account: &mut Account) {
        let failed = self.case.evidence.map_or(&[][..], |evidence| evidence.failed());
        for Failed { source, failure } in failed {
            let what = format!("the data source {source}");
            account.add(Severity::Missing, "data_source_failed", what, failure, None);
        }
    }

    fn departures(&self, account: &mut Account) {
        let (usual, gone): (Vec<&Departure>, Vec<&Departure>) = self
            .all_departures()
            .iter()
            .partition(|departure| departure.sources.iter().all(|source| comes_and_goes(source)));
        for departure in gone {
            let Departure {
                producer,
                after: at,
                back,
                ..
            } = departure;
            let sources = listed(&departure.sources, String::clone).unwrap_or_default();
            let until = back.map(|back| format!(" until it was back after {}", Elapsed(back)));
            let what = format!("{sources}{}{}", after(*at), until.unwrap_or_default());
            let why = format!(
                "{} went away; what it had handed over by then is kept",
                producer_name(producer)
            );
            let advice = "see its log, or the kernel's (`dmesg`), for why it ended".to_owned();
            account.add(Severity::Missing, "data_source_gone", what, why, Some(advice));
        }
        if let Some(names) = listed(&usual, |departure| producer_name(&departure.producer).to_owned()) {
            let what = Counted(usual.len() as u64, "producer").to_string();
            let why = format!(
                "went away while recording, as applications do ({names}); what they had handed over is kept"
            );
            account.add(Severity::Note, "producer_gone", what, why, None);
        }
    }

    /// Adds data sources that started in the end, but after others had begun to record.
    fn late(&self, account: &mut Account) {
        let Some(evidence) = self.case.evidence else {
            return;
        };
        let in_the_end: Vec<&SourceOf> = evidence
            .late_to_start
            .iter()
            .filter(|late| self.fate(&late.source) == Fate::Recorded)
            .collect();
        if let Some(late) = listed(&in_the_end, ToString::to_string) {
            let what = format!("the beginning of {late}");
            let why = "it started after the others, so its beginning is missing";
            account.add(Severity::Note, "data_source_late", what, why, None);
        }
    }

    /// Adds the findings from the notes of `linux.ftrace` about itself.
    fn kernel(&self, account: &mut Account) {
        let Some(evidence) = self.case.evidence else {
            return;
        };
        let why = "the kernel's buffers were full before they were read";
        let lost = evidence.kernel.lost().or_else(|| {
            (evidence.bundles_after_a_loss > 0).then(|| {
                format!(
                    "kernel events, {}",
                    Counted(evidence.bundles_after_a_loss, "time")
                )
            })
        });
        if let Some(what) = lost {
            let advice = larger_kernel_buffer(self.case);
            account.add(Severity::Loss, "kernel_buffer_overrun", what, why, Some(advice));
        }
        if evidence.kernel_page_errors > 0 {
            let what = Counted(evidence.kernel_page_errors, "page").to_string() + " of kernel events";
            let why = "could not be parsed";
            account.add(Severity::Loss, "kernel_page_unreadable", what, why, None);
        }
        for trouble in evidence.kernel.troubles() {
            let why = trouble.trim_end_matches('.');
            account.add(Severity::Missing, "ftrace_trouble", "kernel events", why, None);
        }
        for (names, why) in evidence.kernel.unavailable() {
            account.add(Severity::Missing, "kernel_event_unavailable", names, why, None);
        }
        let breaks_off = evidence.has_ended
            && self.case.evidence_of_session().is_some()
            && evidence.has_kernel_events()
            && !evidence.kernel.has_end
            && evidence.kernel.troubles().is_empty()
            && !self.departed(FTRACE)
            && self.evidence_of_absence().is_some();
        if breaks_off {
            let what = "the end of the kernel events";
            let why = "linux.ftrace did not write its last statistics: traced_probes went away, or did not stop in time";
            account.add(Severity::Missing, "kernel_events_break_off", what, why, None);
        }
    }
}

/// Whether the config names kernel events, and all of them are unavailable.
fn all_unavailable(config: &TraceConfig, evidence: &Evidence) -> bool {
    let configs = config.data_sources.iter().map(|source| &source.config);
    let mut asked_for = configs
        .filter(|config| config.name.as_deref() == Some(FTRACE))
        .map(|config| &config.ftrace_config)
        .peekable();
    asked_for.peek().is_some()
        && asked_for.all(|ftrace| {
            let mut events = ftrace.ftrace_events.iter();
            !ftrace.ftrace_events.is_empty()
                && ftrace.atrace_categories.is_empty()
                && events.all(|event| evidence.kernel.is_unavailable(event))
        })
}

fn larger_kernel_buffer(case: &Case<'_>) -> String {
    let ftrace = case
        .config
        .data_sources
        .iter()
        .find_map(|source| source.config.ftrace_config.as_option());
    let buffer = ftrace
        .and_then(|config| config.buffer_size_kb)
        .filter(|size| *size > 0)
        .map(u64::from);
    // The larger of the two defaults, because the trace does not say how much memory the machine has.
    let default = DEFAULT_BUFFER_KIB.1;
    let is_lower_bound = ftrace.and_then(|config| config.buffer_size_lower_bound) == Some(true);
    let least = if is_lower_bound { default } else { 0 };
    let larger = match buffer {
        Some(size) => format!(
            "raise ftrace_config.buffer_size_kb from {size} to {}",
            super::roomy(2 * size.max(least))
        ),
        None => format!("set ftrace_config.buffer_size_kb: {} (per CPU)", 2 * default),
    };
    let period = ftrace
        .and_then(|config| config.drain_period_ms)
        .filter(|period| *period > 100);
    match period {
        Some(period) => format!(
            "{larger}, or lower ftrace_config.drain_period_ms from {period} to {}",
            period / 2
        ),
        None if case.wording == Wording::Flags => {
            format!("ask for fewer events, or {}", case.wording.in_config(larger))
        }
        None => format!("{larger}, or ask for fewer events"),
    }
}
