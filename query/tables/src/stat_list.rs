//! All counters of the table `stats`: their names, how bad they are, who counted, and what they count. The names and their properties are the trace
//! processor's; a counter of our own begins with `ferretto_`.

use Severity::{DataLoss, Error, Info};
use Source::{Analysis, Trace};

/// How bad it is that a counter is not zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Severity {
    Info,
    DataLoss,
    Error,
}

impl Severity {
    /// As the table has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Info => "info",
            DataLoss => "data_loss",
            Error => "error",
        }
    }
}

/// Who counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Trace,
    Analysis,
}

impl Source {
    /// As the table has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Trace => "trace",
            Analysis => "analysis",
        }
    }
}

/// A counter.
pub(crate) type Stat = (&'static str, Severity, Source, &'static str);

/// Returns what is known of a counter.
pub(crate) fn find(name: &str) -> Option<&'static Stat> {
    let place = ALL.binary_search_by_key(&name, |stat| stat.0).ok()?;
    ALL.get(place)
}

/// In the order of their names.
#[rustfmt::skip]
const ALL: &[Stat] = &[
    ("clock_sync_failure", Error, Analysis, "Times of a clock that no snapshot relates to the trace's clock. Their packets are left out."),
    ("compact_sched_has_parse_errors", Error, Trace, "Bundles of compact scheduler events whose lists have different lengths."),
    ("compact_sched_switch_skipped", Info, Analysis, "Compact switches that came before the first switch of their CPU."),
    ("compact_sched_waking_skipped", Info, Analysis, "Compact wake-ups of CPUs from which no switch was known."),
    ("empty_chrome_metadata", Error, Trace, "Metadata of Chromium without a name or a value."),
    ("ferretto_flows_passed_over", DataLoss, Analysis, "Flows that have no arrows, as a million were open."),
    ("ferretto_names_passed_over", DataLoss, Analysis, "Names that became `(too many names)`."),
    ("filter_errors", Error, Trace, "Packets that the trace filter could not read and removed."),
    ("filter_input_bytes", Info, Trace, "Bytes that went into the trace filter."),
    ("filter_input_packets", Info, Trace, "Packets that went into the trace filter."),
    ("filter_output_bytes", Info, Trace, "Bytes that the trace filter left."),
    ("filter_time_taken_ns", Info, Trace, "The time that the trace filter took, in ns."),
    ("flow_duplicate_id", Error, Trace, "Flows that began although one of the same number was open."),
    ("flow_end_without_start", Info, Trace, "Ends of flows that had not begun."),
    ("flow_invalid_id", Error, Trace, "Flows without a number."),
    ("flow_no_enclosing_slice", Error, Trace, "Flows at a time at which no slice was open."),
    ("flow_step_without_start", Info, Trace, "Steps of flows that had not begun."),
    ("flow_without_direction", Error, Trace, "Events of the older form that name a flow and do not say in which direction it goes."),
    ("frame_timeline_event_parser_errors", Info, Analysis, "Events about frames that lack what they need."),
    ("frame_timeline_unpaired_end_event", Info, Analysis, "Ends of frames that had not begun."),
    ("ftrace_bundle_tokenizer_errors", Error, Analysis, "Bundles of kernel events that are damaged."),
    ("ftrace_cpu_has_data_loss", DataLoss, Trace, "Whether the kernel's buffer of the CPU lost events. A larger buffer or a shorter drain period helps."),
    ("ftrace_generic_descriptor_errors", Error, Analysis, "Descriptions of kernel events that are damaged."),
    ("ftrace_missing_event_id", Info, Analysis, "Kernel events without a kind."),
    ("ftrace_packet_before_tracing_start", Info, Analysis, "Kernel events from before the recording began. They are left out."),
    ("game_intervention_has_parse_errors", Error, Trace, "Whether the recording could not understand the list of games' settings."),
    ("game_intervention_has_read_errors", Error, Trace, "Whether the recording could not read the list of games' settings."),
    ("gpu_counters_invalid_spec", Error, Analysis, "Descriptions of a graphics processor's counters that lack what they need."),
    ("heapprofd_malformed_packet", Error, Trace, "Packets of a heap profile that are damaged."),
    ("interned_data_tokenizer_errors", Info, Analysis, "References to names or stacks that no packet gave. The packet that had them may be lost."),
    ("invalid_clock_snapshots", Error, Analysis, "Snapshots of clocks that contradict earlier ones. They are left out."),
    ("invalid_cpu_times", Error, Analysis, "Times of CPUs that went backwards."),
    ("meminfo_unknown_keys", Error, Analysis, "Counters of memory of an unknown kind."),
    ("mismatched_sched_switch_tids", Error, Analysis, "Switches from another thread than the one that was switched to on that CPU. Events in between are lost."),
    ("misplaced_end_event", DataLoss, Analysis, "Ends of slices that had not begun on their track."),
    ("packages_list_has_parse_errors", Error, Trace, "Whether the recording could not understand the list of packages."),
    ("packages_list_has_read_errors", Error, Trace, "Whether the recording could not read the list of packages."),
    ("perf_cpu_lost_records", DataLoss, Trace, "Samples that the kernel's buffer of the CPU lost."),
    ("perf_samples_skipped", Error, Analysis, "Samples that the recording left out, such as those of threads that were not asked for."),
    ("perf_samples_skipped_dataloss", DataLoss, Trace, "Samples that the recording left out because it could not keep up."),
    ("proc_stat_unknown_counters", Error, Analysis, "Counters of a process of an unknown kind."),
    ("process_tracker_errors", Error, Analysis, "Statements about processes and threads that contradict each other."),
    ("psi_unknown_resource", Error, Analysis, "Counters of pressure of an unknown resource."),
    ("slice_drop_overlapping_complete_event", Error, Trace, "Slices that neither nest within another of their track nor come after it. They are left out."),
    ("stackprofile_empty_callstack", Error, Trace, "Stacks without frames."),
    ("stackprofile_invalid_callstack_id", Error, Trace, "Stacks that no packet gave."),
    ("stackprofile_invalid_frame_id", Error, Trace, "Frames that no packet gave."),
    ("stackprofile_invalid_mapping_id", Error, Trace, "Mappings that no packet gave."),
    ("stackprofile_invalid_string_id", Error, Trace, "Names of stacks that no packet gave."),
    ("stackprofile_parser_error", Error, Trace, "Parts of a profile that lack what they need."),
    ("systrace_parse_failure", Error, Analysis, "Marks of programs in the kernel's trace that cannot be read."),
    ("task_state_invalid", Error, Analysis, "States of threads whose letters or bits mean nothing."),
    ("tokenizer_skipped_packets", Info, Analysis, "Packets that lack what they need, mostly because earlier packets of their sequence are lost."),
    ("trace_sorter_negative_timestamp_dropped", Error, Trace, "Events before the beginning of time. They are left out."),
    ("traced_buf_abi_violations", DataLoss, Trace, "Chunks that broke the rules of shared memory. They are lost."),
    ("traced_buf_buffer_size", Info, Trace, "The size of the buffer, in bytes."),
    ("traced_buf_bytes_filtered_out", Info, Trace, "Bytes of the buffer that the trace filter removed."),
    ("traced_buf_bytes_overwritten", Info, Trace, "Bytes that the ring buffer overwrote, or that a full buffer did not take."),
    ("traced_buf_bytes_read", Info, Trace, "Bytes that were read from the buffer."),
    ("traced_buf_bytes_written", Info, Trace, "Bytes that were written into the buffer."),
    ("traced_buf_chunks_committed_out_of_order", Info, Trace, "Chunks that came behind a later chunk of their writer."),
    ("traced_buf_chunks_discarded", Info, Trace, "Chunks that a full buffer did not take."),
    ("traced_buf_chunks_overwritten", Info, Trace, "Chunks that the ring buffer overwrote before they were read."),
    ("traced_buf_chunks_read", Info, Trace, "Chunks that were read from the buffer."),
    ("traced_buf_chunks_rewritten", Info, Trace, "Chunks that came again with more packets."),
    ("traced_buf_chunks_written", Info, Trace, "Chunks that were written into the buffer."),
    ("traced_buf_incremental_sequences_dropped", DataLoss, Analysis, "Sequences of the buffer of which nothing can be understood, as their beginnings are lost."),
    ("traced_buf_padding_bytes_cleared", Info, Trace, "Bytes of padding that were overwritten."),
    ("traced_buf_padding_bytes_written", Info, Trace, "Bytes of padding that were written into the buffer."),
    ("traced_buf_patches_failed", DataLoss, Trace, "Patches of chunks that were not in the buffer any more. Their packets are lost."),
    ("traced_buf_patches_succeeded", Info, Trace, "Patches of chunks in the buffer."),
    ("traced_buf_readaheads_failed", Info, Trace, "Sequences that could not be read further, as a chunk was missing or not complete."),
    ("traced_buf_readaheads_succeeded", Info, Trace, "Packets of several chunks that were read as a whole."),
    ("traced_buf_sequence_packet_loss", DataLoss, Analysis, "Times that packets of a sequence in the buffer are missing."),
    ("traced_buf_trace_writer_packet_loss", DataLoss, Trace, "Times that a writer had no shared memory left, so that its packets are lost. More shared memory helps."),
    ("traced_buf_write_wrap_count", Info, Trace, "How often the buffer was written from its beginning again."),
    ("traced_chunks_discarded", Info, Trace, "Chunks for buffers that do not exist or that the producer may not write."),
    ("traced_data_sources_registered", Info, Trace, "Data sources at the end of the recording."),
    ("traced_data_sources_seen", Info, Trace, "Data sources since the service started."),
    ("traced_final_flush_failed", DataLoss, Trace, "Whether a producer did not hand over its last data in time."),
    ("traced_final_flush_succeeded", Info, Trace, "Whether all producers handed over their last data."),
    ("traced_flushes_failed", DataLoss, Trace, "Flushes that a producer did not answer in time. Its data may be missing."),
    ("traced_flushes_requested", Info, Trace, "Flushes that were asked for."),
    ("traced_flushes_succeeded", Info, Trace, "Flushes that all producers answered."),
    ("traced_patches_discarded", Info, Trace, "Patches for buffers that do not exist or that the producer may not write."),
    ("traced_producers_connected", Info, Trace, "Producers at the end of the recording."),
    ("traced_producers_seen", Info, Trace, "Producers since the service started."),
    ("traced_total_buffers", Info, Trace, "Buffers of all sessions of the service."),
    ("traced_tracing_sessions", Info, Trace, "Sessions of the service."),
    ("track_event_parser_errors", Info, Analysis, "Track events that lack what they need."),
    ("track_event_tokenizer_errors", Info, Analysis, "Track events that are damaged, or that refer to what no packet gave."),
    ("truncated_sys_write_duration", Info, Analysis, "Writes that lasted beyond the beginning of the next system call of their thread."),
    ("vmstat_unknown_keys", Error, Analysis, "Counters of virtual memory of an unknown kind."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_found() {
        for stat in ALL {
            assert_eq!(find(stat.0), Some(stat));
        }
        assert_eq!(find("no_such_counter"), None);
    }
}
