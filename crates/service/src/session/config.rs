//! Checks of a config by itself, and values derived from it.
//!
//! `enable` refuses a config with these before anything of a session exists. `admission` checks a config against the other sessions and the
//! guardrails.

use std::time::Duration;

use ferretto_proto::messages::{Message, TraceConfig, trace_config};
use ferretto_wire::{Reader, Value, Writer};

use crate::limits;
use crate::ordered::OrderedMap;
use crate::session::{AfterWrite, FileSink, FlushStrategy, millis_or};
use crate::trace_buffer::{FillPolicy, TraceBuffer};
use crate::trace_filter::SessionFilter;

/// The driver's output file for a config with `write_into_file`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputFile {
    /// The consumer passed no descriptor.
    None,
    /// The consumer passed a descriptor.
    Passed,
    /// The driver made the file that `output_path` names.
    Created,
    /// The driver could not make it, or cannot write into it, for this reason.
    Unusable(String),
}

/// The filter that the config asks for.
pub(crate) fn trace_filter(config: &TraceConfig) -> Result<Option<Box<SessionFilter>>, String> {
    let Some(config) = config.trace_filter.as_option() else {
        return Ok(None);
    };
    SessionFilter::of(config)
        .map(Some)
        .map_err(|error| error.to_string())
}

pub(crate) fn check_bugreport_filename(config: &TraceConfig) -> Result<(), String> {
    let name = config.bugreport_filename.as_deref().unwrap_or_default();
    let harmless = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.chars().all(harmless) {
        return Ok(());
    }
    Err(format!(
        "bugreport_filename {name:?} contains invalid characters: use letters, digits and any of `-_.`"
    ))
}

pub(crate) fn check_config_sizes(config: &TraceConfig, encoded: &[Vec<u8>]) -> Result<(), String> {
    let too_large = |encoded: &&Vec<u8>| encoded.len() > limits::MAX_DATA_SOURCE_CONFIG_SIZE;
    let Some(index) = encoded.iter().position(|encoded| too_large(&encoded)) else {
        return Ok(());
    };
    let source = config.data_sources.get(index);
    let name = source.and_then(|source| source.config.name.as_deref());
    Err(format!(
        "data source {:?}: its config is {} bytes long, the limit is {}: producers could not be sent it",
        name.unwrap_or_default(),
        encoded[index].len(),
        limits::MAX_DATA_SOURCE_CONFIG_SIZE
    ))
}

/// Index of the buffer that each data source of the config writes into.
pub(crate) fn resolve_targets(config: &TraceConfig) -> Result<Vec<usize>, String> {
    let count = config.buffers.len();
    if count > limits::MAX_BUFFERS_PER_SESSION {
        return Err(format!(
            "too many buffers: {count}, the limit is {}",
            limits::MAX_BUFFERS_PER_SESSION
        ));
    }
    if config.data_sources.len() > limits::MAX_DATA_SOURCES_PER_CONFIG {
        return Err(format!(
            "too many data sources: {}, the limit is {}",
            config.data_sources.len(),
            limits::MAX_DATA_SOURCES_PER_CONFIG
        ));
    }
    let mut named = OrderedMap::new();
    for (index, buffer) in config.buffers.iter().enumerate() {
        let name = buffer.name.as_deref().unwrap_or_default();
        if !name.is_empty()
            && let Some(first) = named.insert(name, index)
        {
            return Err(format!(
                "duplicate buffer name {name:?} at index {index}, first at index {first}"
            ));
        }
    }
    let target = |source: &trace_config::DataSource| {
        let name = source.config.name.as_deref().unwrap_or_default();
        let mut index = source.config.target_buffer.unwrap_or_default() as usize;
        let wanted = source.config.target_buffer_name.as_deref().unwrap_or_default();
        if !wanted.is_empty() {
            let found = *named.get(wanted).ok_or_else(|| {
                format!("data source {name:?}: target_buffer_name {wanted:?} is the name of no buffer")
            })?;
            // An absent target_buffer reads as 0, so 0 says nothing.
            if index > 0 && index != found {
                return Err(format!(
                    "data source {name:?}: target_buffer {index} and target_buffer_name {wanted:?} (index {found}) \
                     name different buffers"
                ));
            }
            index = found;
        }
        if index >= count {
            return Err(format!(
                "data source {name:?}: target_buffer {index} is out of bounds ({count} buffers)"
            ));
        }
        Ok(index)
    };
    config.data_sources.iter().map(target).collect()
}

pub(crate) fn file_sink(config: &TraceConfig, file: &OutputFile) -> Result<Option<FileSink>, String> {
    if !config.write_into_file.unwrap_or_default() {
        return Ok(None);
    }
    match file {
        OutputFile::Passed | OutputFile::Created => {}
        OutputFile::None => {
            return Err(
                "write_into_file needs either a file descriptor or an output_path, and has neither".into(),
            );
        }
        OutputFile::Unusable(error) => return Err(error.clone()),
    }
    let period = millis_or(config.file_write_period_ms, limits::DEFAULT_FILE_WRITE_PERIOD);
    let max_size = config.max_file_size_bytes.filter(|size| *size != 0);
    let after_write = match config.fflush_post_write {
        Some(trace_config::FFlushMode::FFLUSH_ENABLED) => AfterWrite::Sync,
        _ => AfterWrite::LeaveToTheKernel,
    };
    Ok(Some(FileSink::new(
        period.max(limits::MIN_FILE_WRITE_PERIOD),
        max_size.unwrap_or(u64::MAX),
        after_write,
    )))
}

pub(crate) fn flush_strategy(config: &TraceConfig, file: Option<&FileSink>) -> FlushStrategy {
    let configured = match config.flush_period_ms {
        None | Some(0) => FlushStrategy::Never,
        Some(ms) => FlushStrategy::Every(Duration::from_millis(ms.into())),
    };
    let Some(file) = file else { return configured };
    match config.write_flush_mode {
        Some(trace_config::WriteFlushMode::WRITE_FLUSH_DISABLED) => configured,
        Some(trace_config::WriteFlushMode::WRITE_FLUSH_ENABLED) => FlushStrategy::BeforeEachFileWrite,
        _ if file.write_period() <= limits::DEFAULT_FILE_WRITE_PERIOD => {
            FlushStrategy::Every(limits::DEFAULT_FILE_WRITE_PERIOD)
        }
        _ => FlushStrategy::BeforeEachFileWrite,
    }
}

/// The name that the config gives to the trace.
pub(crate) fn trace_uuid(config: &TraceConfig) -> Option<u128> {
    let half = |half: Option<i64>| u128::from(half.unwrap_or_default() as u64);
    let uuid = half(config.trace_uuid_msb) << 64 | half(config.trace_uuid_lsb);
    (uuid != 0).then_some(uuid)
}

/// Whether `flush_period_ms` is set and does nothing: `write_flush_mode` has its own idea.
pub(crate) fn surplus_flush_period(config: &TraceConfig) -> bool {
    config.flush_period_ms.unwrap_or_default() != 0
        && config.write_into_file.unwrap_or_default()
        && config.write_flush_mode != Some(trace_config::WriteFlushMode::WRITE_FLUSH_DISABLED)
}

pub(crate) fn make_buffers(config: &TraceConfig) -> Result<Vec<TraceBuffer>, String> {
    let make = |(index, buffer): (usize, &trace_config::BufferConfig)| {
        let kb = buffer.size_kb.unwrap_or_default();
        let size = u64::from(kb) * 1024;
        if size == 0 || size > u64::from(u32::MAX) {
            return Err(format!(
                "buffers[{index}].size_kb: {kb} KB is not a valid size (1 KB to 4 GB)"
            ));
        }
        let discards = buffer.fill_policy == Some(trace_config::buffer_config::FillPolicy::DISCARD);
        let policy = match buffer.experimental_mode {
            Some(trace_config::buffer_config::ExperimentalMode::TRACE_BUFFER_V2) if discards => {
                FillPolicy::DiscardAtEnd
            }
            _ if discards => FillPolicy::Discard,
            _ if config.write_into_file.unwrap_or_default() => FillPolicy::StreamedRing,
            _ => FillPolicy::RingBuffer,
        };
        TraceBuffer::new(size, policy).map_err(|error| format!("buffers[{index}]: {error}"))
    };
    config.buffers.iter().enumerate().map(make).collect()
}

/// The bytes of each `TraceConfig.data_sources[i].config` as it was sent. If the field comes more than once, its parts follow each other, which means
/// the same to every decoder.
pub(crate) fn data_source_configs(trace_config: &[u8]) -> Vec<Vec<u8>> {
    let bytes_of = |message, number| {
        Reader::new(message)
            .filter_map(Result::ok)
            .filter_map(move |field| match field.value {
                Value::Bytes(bytes) if field.number == number => Some(bytes),
                _ => None,
            })
    };
    bytes_of(trace_config, TraceConfig::DATA_SOURCES)
        .map(|source| {
            bytes_of(source, trace_config::DataSource::CONFIG)
                .flatten()
                .copied()
                .collect()
        })
        .collect()
}

/// Whether two configs are the same except for the producer filters of their data sources. Their encodings are compared, because copying and
/// comparing messages field by field is a lot of code.
pub(crate) fn only_filters_differ(old: &TraceConfig, new: &TraceConfig) -> bool {
    without_filters(old) == without_filters(new)
}

/// The encoded config without the producer filters of its data sources.
fn without_filters(config: &TraceConfig) -> Vec<u8> {
    const FILTERS: [u32; 2] = [
        trace_config::DataSource::PRODUCER_NAME_FILTER,
        trace_config::DataSource::PRODUCER_NAME_REGEX_FILTER,
    ];
    let encoded = config.encode_to_vec();
    let mut rest = Writer::new();
    for field in Reader::new(&encoded).map_while(Result::ok) {
        match (field.number, field.value) {
            (TraceConfig::DATA_SOURCES, Value::Bytes(source)) => {
                rest.nested(TraceConfig::DATA_SOURCES, |rest| {
                    for field in Reader::new(source).map_while(Result::ok) {
                        if !FILTERS.contains(&field.number) {
                            rest.raw(field.raw);
                        }
                    }
                })
            }
            // Triggers set the duration of a session, whose config has none.
            (TraceConfig::DURATION_MS, _) if config.trigger_config.is_set() => {}
            _ => rest.raw(field.raw),
        }
    }
    rest.into_vec()
}

/// Which producers a data source may be of: `producer_name_filter` and `producer_name_regex_filter`.
pub(crate) type ProducerFilters = (Vec<String>, Vec<String>);

/// The producer filters of each data source: those of the new config, if it names the data source too.
pub(crate) fn adopted_filters(config: &TraceConfig, new: &TraceConfig) -> Vec<ProducerFilters> {
    // The first of a name counts.
    let by_name: OrderedMap<_, _> = new
        .data_sources
        .iter()
        .rev()
        .map(|source| (source.config.name.as_deref(), source))
        .collect();
    let adopted = config.data_sources.iter().map(|source| {
        let source = *by_name.get(&source.config.name.as_deref()).unwrap_or(&source);
        (
            source.producer_name_filter.clone(),
            source.producer_name_regex_filter.clone(),
        )
    });
    adopted.collect()
}

/// Swaps these filters with the filters of the data sources.
pub(crate) fn exchange_filters(config: &mut TraceConfig, filters: &mut [ProducerFilters]) {
    for (source, (names, expressions)) in config.data_sources.iter_mut().zip(filters) {
        std::mem::swap(&mut source.producer_name_filter, names);
        std::mem::swap(&mut source.producer_name_regex_filter, expressions);
    }
}
