//! Advice on buffers: whether data sources find theirs, and how many seconds of data fit.
//!
//! [`advise`](super::advise) calls it. It judges the time that fits only where the data rate is known ([`rates`]).

use ferretto_proto::messages::trace_config::buffer_config::{ExperimentalMode, FillPolicy};
use ferretto_proto::messages::trace_config::{BufferConfig, DataSource};
use ferretto_proto::text::nearest;
use ferretto_service::limits;

use super::known_sources::{FTRACE, TELL_NAMES_ONCE};
use super::{Adviser, ConfigOrigin, name_of, rates, target_of, time};
use crate::config::length::{file_write_period, longest};

/// From this size on, streaming into a file is better than a larger buffer.
pub(crate) const LARGE_BUFFER_KB: u64 = 1 << 20;

/// KB below which a buffer may not hold every chunk. A chunk may be as large as a page of shared memory, and producers fill several before the oldest
/// is read.
const SMALLEST_KB: u32 = 2 * limits::MAX_SMB_PAGE_SIZE as u32 / 1024;
/// A DISCARD buffer suits recordings shorter than this, in ms.
const LONG_MS: u64 = 10 * 60 * 1000;
/// The last resort, if no allowed buffer size is enough.
const FEWER: &str = "ask for fewer events";

pub(super) fn advise(adviser: &mut Adviser<'_>) {
    targets(adviser);
    let config = adviser.config;
    for (index, buffer) in config.buffers.iter().enumerate() {
        let path = format!("buffers[{index}]");
        let used = config
            .data_sources
            .iter()
            .any(|source| target_of(config, source) == Some(index));
        if !used && !config.data_sources.is_empty() {
            adviser.warn(
                path.as_str(),
                "no data source writes into this buffer",
                format!("leave it out, or write `target_buffer: {index}` into the config of a data source"),
            );
        }
        size(adviser, &path, index, buffer);
    }
    forgotten_names(adviser);
    memory(adviser);
}

fn targets(adviser: &mut Adviser<'_>) {
    let config = adviser.config;
    for (index, source) in config.data_sources.iter().enumerate() {
        if target_of(config, source).is_some() {
            continue;
        }
        let path = format!("data_sources[{index}].config");
        let wanted = source.config.target_buffer_name.as_deref().unwrap_or_default();
        let number = source.config.target_buffer.unwrap_or_default();
        let names = || config.buffers.iter().filter_map(|buffer| buffer.name.as_deref());
        if config.buffers.is_empty() {
            adviser.warn(
                path,
                "there is no buffer that the data source could write into",
                "add `buffers { size_kb: 32768 }`",
            );
        } else if wanted.is_empty() {
            let last = config.buffers.len() - 1;
            adviser.warn(
                format!("{path}.target_buffer"),
                format!("there is no buffer {number}: they are counted from 0, and the last is {last}"),
                match last {
                    0 => "write 0, or add a buffer".to_owned(),
                    _ => format!("write 0 to {last}, or add a buffer"),
                },
            );
        } else if names().any(|name| name == wanted) {
            adviser.warn(
                format!("{path}.target_buffer"),
                format!("target_buffer {number} is not the buffer with the name \"{wanted}\""),
                "leave one of the two out",
            );
        } else {
            adviser.warn(
                format!("{path}.target_buffer_name"),
                format!("no buffer has the name \"{wanted}\""),
                match nearest(wanted, names()) {
                    Some(similar) => format!("did you mean \"{similar}\"?"),
                    None => format!("write `name: \"{wanted}\"` into one of the buffers"),
                },
            );
        }
    }
}

/// The time for which a buffer's data fit.
struct Fit {
    kb: u32,
    volume: rates::Volume,
    /// In ms; `None` if the rate is unknown.
    ms: Option<u64>,
}

impl Fit {
    fn of(adviser: &Adviser<'_>, index: usize, kb: u32) -> Fit {
        let config = adviser.config;
        let volume: rates::Volume = config
            .data_sources
            .iter()
            .filter(|source| name_of(source) == FTRACE && target_of(config, source) == Some(index))
            .map(|source| rates::ftrace(&source.config.ftrace_config, &adviser.surroundings.machine))
            .sum();
        let ms = (u64::from(kb) * 1024 * 1000).checked_div(volume.rate);
        Fit { kb, volume, ms }
    }

    /// Formats the rate: `at about 10.0 MB/s of kernel events`, or the rate when one program is busy.
    fn rate(&self) -> String {
        let mb_s = self.volume.rate as f64 / 1e6;
        match self.volume.when_busy {
            true => format!("one busy program makes about {mb_s:.1} MB/s of these kernel events, at which"),
            false => format!("at about {mb_s:.1} MB/s of kernel events"),
        }
    }

    /// Returns a size that holds twice the data of `ms`: as a field, or as a flag if the config came from flags. `None` if no buffer should be that
    /// large.
    fn enough(&self, ms: u64, adviser: &Adviser<'_>) -> Option<String> {
        let kb = (2 * self.volume.rate * ms / 1000)
            .div_ceil(1024)
            .max(1024)
            .next_power_of_two();
        let most = match adviser.surroundings.machine.memory_kb {
            0 => LARGE_BUFFER_KB,
            memory => LARGE_BUFFER_KB.min(memory / 2),
        };
        (kb <= most).then(|| match adviser.origin {
            ConfigOrigin::Flags => format!("`-b {}mb`", kb / 1024),
            ConfigOrigin::Text { .. } | ConfigOrigin::Encoded { .. } => format!("`size_kb: {kb}`"),
        })
    }
}

fn size(adviser: &mut Adviser<'_>, path: &str, index: usize, buffer: &BufferConfig) {
    let kb = buffer.size_kb.unwrap_or_default();
    // The service refuses such a buffer.
    if kb == 0 {
        return;
    }
    if kb < SMALLEST_KB {
        adviser.warn(
            format!("{path}.size_kb"),
            format!(
                "{kb} KB is less than two of the pieces that producers hand over: most of them will be lost"
            ),
            format!("write {SMALLEST_KB} or more"),
        );
        return;
    }
    let fit = Fit::of(adviser, index, kb);
    let discards = buffer.fill_policy == Some(FillPolicy::DISCARD);
    match (adviser.config.write_into_file.unwrap_or_default(), discards) {
        (true, true) => {
            streamed_and_discarding(adviser, path, buffer);
            streamed(adviser, path, &fit);
        }
        (true, false) => streamed(adviser, path, &fit),
        (false, true) => discarding(adviser, path, &fit),
        (false, false) => ring(adviser, path, &fit),
    }
}

/// Warns if data are overwritten before the service moves them from the buffer into the file, which it does periodically. Such data are missing from
/// the middle of the file.
fn streamed(adviser: &mut Adviser<'_>, path: &str, fit: &Fit) {
    let least = limits::MIN_FILE_WRITE_PERIOD.as_millis() as u64;
    let period = file_write_period(adviser.config).as_millis() as u64;
    let Some(fits) = fit.ms.filter(|fits| *fits < period) else {
        return;
    };
    let more_often = match adviser.origin {
        ConfigOrigin::Text { .. } | ConfigOrigin::Encoded { .. } if fits >= least => {
            Some(format!("a file_write_period_ms below {fits}"))
        }
        _ => None,
    };
    let change = match (fit.enough(period, adviser), more_often) {
        (Some(larger), Some(more_often)) => format!("write {larger}, or {more_often}"),
        (Some(larger), None) => format!("write {larger} or more"),
        (None, Some(more_often)) => format!("write {more_often}, or ask for fewer events"),
        (None, None) => FEWER.to_owned(),
    };
    adviser.warn(
        format!("{path}.size_kb"),
        format!(
            "{} {} KB fill up in {}, but the file is written every {} only: later data is missing in the file",
            fit.rate(),
            fit.kb,
            time(fits),
            time(period)
        ),
        change,
    );
}

/// Warns of DISCARD in a file that is written while recording, where it gains nothing: an overrun loses data either way, and with DISCARD it may lose
/// the rest.
fn streamed_and_discarding(adviser: &mut Adviser<'_>, path: &str, buffer: &BufferConfig) {
    let path = format!("{path}.fill_policy");
    let change = "leave fill_policy out: then only what comes in that moment is lost";
    match buffer.experimental_mode {
        Some(ExperimentalMode::TRACE_BUFFER_V2) => adviser.warn(
            path,
            format!(
                "with TRACE_BUFFER_V2 and DISCARD the buffer takes {} KB in all, whatever has been written into the file since",
                buffer.size_kb.unwrap_or_default()
            ),
            "leave fill_policy out, or experimental_mode",
        ),
        _ => adviser.hint(
            path,
            "a buffer with DISCARD that is full once, before it is written into the file, takes nothing more after that",
            change,
        ),
    }
}

fn discarding(adviser: &mut Adviser<'_>, path: &str, fit: &Fit) {
    const STREAM: &str = "use RING_BUFFER to keep the end, or `write_into_file: true` with RING_BUFFER for a file of any length";
    let duration = longest(adviser.config).map(|duration| duration.as_millis() as u64);
    match (fit.ms, duration) {
        (Some(fits), duration) if duration.is_none_or(|duration| fits < duration) => adviser.warn(
            format!("{path}.size_kb"),
            format!(
                "{} {} KB are full after {}, and fill_policy DISCARD drops all later data",
                fit.rate(),
                fit.kb,
                time(fits)
            ),
            match duration {
                None => STREAM.to_owned(),
                Some(duration) => match fit.enough(duration, adviser) {
                    Some(larger) => format!("write {larger}, {STREAM}"),
                    None => STREAM.to_owned(),
                },
            },
        ),
        (None, duration) if duration.is_none_or(|duration| duration >= LONG_MS) => adviser.warn(
            format!("{path}.fill_policy"),
            "fill_policy DISCARD keeps the beginning of a long recording and drops the rest when the buffer is full",
            STREAM,
        ),
        _ => {}
    }
}

fn ring(adviser: &mut Adviser<'_>, path: &str, fit: &Fit) {
    if let Some(fits) = fit.ms.filter(|fits| *fits < 1000) {
        adviser.warn(
            format!("{path}.size_kb"),
            format!("{} {} KB hold the last {} only", fit.rate(), fit.kb, time(fits)),
            match fit.enough(1000, adviser) {
                Some(larger) => format!("write {larger} or more"),
                None => FEWER.to_owned(),
            },
        );
    }
}

/// Warns of a ring buffer that loses names. A program writes each name once, and later track events refer to it. A ring buffer that wraps loses the
/// names, and readers skip every event that refers to a lost one, so nothing of the ring can be read. A file that is written while recording keeps
/// the names.
fn forgotten_names(adviser: &mut Adviser<'_>) {
    let config = adviser.config;
    let period = config.incremental_state_config.clear_period_ms;
    if config.write_into_file.unwrap_or_default() || period.unwrap_or_default() != 0 {
        return;
    }
    let forgets = |source: &&DataSource| {
        let ring = target_of(config, source)
            .and_then(|index| config.buffers.get(index))
            .is_some_and(|buffer| buffer.fill_policy != Some(FillPolicy::DISCARD));
        ring && TELL_NAMES_ONCE.contains(&name_of(source))
    };
    let Some(source) = config.data_sources.iter().find(forgets) else {
        return;
    };
    adviser.warn(
        "incremental_state_config.clear_period_ms",
        format!(
            "\"{}\" tells names once: when the ring buffer is full they are overwritten, and events that refer to them cannot be read",
            name_of(source)
        ),
        "add `incremental_state_config { clear_period_ms: 5000 }`",
    );
}

fn memory(adviser: &mut Adviser<'_>) {
    let all: u64 = adviser
        .config
        .buffers
        .iter()
        .map(|buffer| u64::from(buffer.size_kb.unwrap_or_default()))
        .sum();
    let memory = adviser.surroundings.machine.memory_kb;
    if memory > 0 && all > memory / 2 {
        adviser.warn(
            "buffers[0].size_kb",
            format!(
                "the buffers take {} MB when they are full, and this machine has {} MB",
                all / 1024,
                memory / 1024
            ),
            "make them smaller; with `write_into_file: true` they need to hold only the data of one file_write_period_ms",
        );
    }
}
