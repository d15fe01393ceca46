//! Buffers: whether data sources find theirs, and how long what is recorded fits.

use ferretto_proto::messages::TraceConfig;
use ferretto_proto::messages::trace_config::BufferConfig;
use ferretto_proto::messages::trace_config::buffer_config::FillPolicy;
use ferretto_proto::text::nearest;
use ferretto_service::limits;

use super::known_sources::FTRACE;
use super::{Adviser, name_of, rates, target_of, time};

/// KB that a buffer has to have for any chunk to fit: one may be as large as a page of shared memory, and whoever writes fills
/// several before the oldest is read.
const SMALLEST_KB: u32 = 2 * limits::MAX_SMB_PAGE_SIZE as u32 / 1024;
/// A buffer that discards what comes late is meant for recordings shorter than this, in ms.
const LONG_MS: u64 = 10 * 60 * 1000;

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

/// For how long it is recorded, in ms; 0 if nobody knows.
fn duration(config: &TraceConfig) -> u64 {
    let triggers = &config.trigger_config;
    match config.duration_ms.unwrap_or_default() {
        0 => {
            let delay = triggers
                .triggers
                .iter()
                .filter_map(|trigger| trigger.stop_delay_ms)
                .max();
            u64::from(triggers.trigger_timeout_ms.unwrap_or_default()) + u64::from(delay.unwrap_or_default())
        }
        ms => ms.into(),
    }
}

fn size(adviser: &mut Adviser<'_>, path: &str, index: usize, buffer: &BufferConfig) {
    let config = adviser.config;
    let kb = buffer.size_kb.unwrap_or_default();
    // The service refuses it.
    if kb == 0 {
        return;
    }
    let size_path = format!("{path}.size_kb");
    if kb < SMALLEST_KB {
        adviser.warn(
            size_path,
            format!(
                "{kb} KB is less than two of the pieces that producers hand over: most of them will be lost"
            ),
            format!("write {SMALLEST_KB} or more"),
        );
        return;
    }
    let streams = config.write_into_file.unwrap_or_default();
    let discards = buffer.fill_policy == Some(FillPolicy::DISCARD);
    let rate: u64 = config
        .data_sources
        .iter()
        .filter(|source| name_of(source) == FTRACE && target_of(config, source) == Some(index))
        .map(|source| rates::ftrace(&source.config.ftrace_config, &adviser.surroundings.machine))
        .sum();
    let fits_ms = (u64::from(kb) * 1024 * 1000).checked_div(rate);
    // Enough for so long, and the double to have some to spare.
    let enough = |ms: u64| ((2 * rate * ms / 1000).div_ceil(1024)).next_power_of_two();
    let mb_s = format!("{:.1} MB/s", rate as f64 / 1e6);
    let duration = duration(config);
    if streams {
        let configured = config.file_write_period_ms.filter(|ms| *ms != 0).map(u64::from);
        let default = limits::DEFAULT_FILE_WRITE_PERIOD.as_millis() as u64;
        let least = limits::MIN_FILE_WRITE_PERIOD.as_millis() as u64;
        let period = configured.unwrap_or(default).max(least);
        // The period after the last write is one, too.
        if let Some(fits) = fits_ms.filter(|fits| *fits < period) {
            adviser.warn(
                size_path,
                format!(
                    "at about {mb_s} of kernel events {kb} KB fill up in {}, and are written into the file every {} only",
                    time(fits),
                    time(period)
                ),
                format!("write `size_kb: {}`, or a file_write_period_ms below {fits}", enough(period)),
            );
        }
    } else if discards {
        match fits_ms {
            Some(fits) if duration == 0 || fits < duration => adviser.warn(
                size_path,
                format!(
                    "at about {mb_s} of kernel events {kb} KB are full after {}, and fill_policy DISCARD drops what comes then",
                    time(fits)
                ),
                match duration {
                    0 => "use RING_BUFFER to keep the end, or write_into_file to keep everything".to_owned(),
                    _ => format!(
                        "write `size_kb: {}`, use RING_BUFFER to keep the end, or write_into_file to keep everything",
                        enough(duration)
                    ),
                },
            ),
            Some(_) => {}
            None if duration == 0 || duration >= LONG_MS => adviser.warn(
                format!("{path}.fill_policy"),
                "fill_policy DISCARD keeps the beginning of a long recording and drops the rest when the buffer is full",
                "use RING_BUFFER to keep the end, or write_into_file to keep everything",
            ),
            None => {}
        }
    } else if let Some(fits) = fits_ms.filter(|fits| *fits < 1000) {
        adviser.warn(
            size_path,
            format!(
                "at about {mb_s} of kernel events {kb} KB hold the last {} only",
                time(fits)
            ),
            format!("write `size_kb: {}` or more", enough(1000)),
        );
    }
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
            "make them smaller, or use write_into_file, which needs little memory for any length",
        );
    }
}
