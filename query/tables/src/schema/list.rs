//! The list of tables.

use super::{Column, Table, float, int, optional, text};

const ID: Column = int(
    "id",
    "The number of the row, in the order in which the trace processor would add it.",
);
const TS: Column = int("ts", "The time in ns on the clock of the trace.");
const DUR: Column = int("dur", "The duration in ns; -1 if the trace has no end of it.");
const UCPU: Column = int("ucpu", "The CPU, distinct over all machines.");
const ARG_SET: Column = optional(int("arg_set_id", "Its arguments, in `args`."));
const TRACK_NAME: Column = optional(text("name", "Its name."));
const TRACK_TYPE: Column = text("type", "What tracks it is one of.");
const PARENT: Column = optional(int("parent_id", "The track that it belongs to."));
const DIMENSIONS: Column = optional(int(
    "dimension_arg_set_id",
    "What distinguishes it from others of its type, in `args`.",
));
const SOURCE: Column = optional(int(
    "source_arg_set_id",
    "What the program said about it, in `args`.",
));
const UNIT: Column = optional(text("unit", "The unit of its values."));
const DESCRIPTION: Column = optional(text("description", "What the program said that it is."));
const MACHINE: Column = optional(int(
    "machine_id",
    "The machine; null for the one that recorded the trace.",
));

const CALLSITE: Column = optional(int("callsite_id", "Its stack, in `stack_profile_callsite`."));

const DISPLAY_TOKEN: Column = int("display_frame_token", "The number of the display's frame.");
const SURFACE_TOKEN: Column = optional(int(
    "surface_frame_token",
    "The number of the program's frame; null for one of the display.",
));
const LAYER: Column = optional(text("layer_name", "What the program draws on."));
const IN_TRACK: Column = int("track_id", "The track.");
const CATEGORY: Column = optional(text("category", "Always null."));
const NUMBER: Column = optional(text("name", "Its number."));
const WITHIN: Column = int("depth", "How many slices it is within.");
const OUTER: Column = optional(int("parent_id", "The slice that it is directly within."));

macro_rules! tables {
    ($($(#[differs = $differs:literal])? $name:ident = $table:literal, $about:literal, [$($column:expr),* $(,)?];)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Place { $($name),* }
        $(
            pub(crate) static $name: Table = Table {
                name: $table,
                about: $about,
                columns: &[$($column),*],
                differs: concat!("", $($differs)?),
                index: Place::$name as usize,
            };
        )*
        /// All tables.
        pub static TABLES: &[&Table] = &[$(&$name),*];
    };
}

tables! {
    PROCESS = "process", "A process. Two processes that had one `pid` after each other are two rows.", [
        int("upid", "The number of the process, distinct over time."),
        int("id", "The same as `upid`."),
        int("pid", "The number that the kernel gave it."),
        optional(text("name", "Its name: the first word of its command line, or what traces of it said last.")),
        optional(int("start_ts", "When it began.")),
        optional(int("end_ts", "When it ended.")),
        optional(int("parent_upid", "The process that began it.")),
        optional(int("uid", "The user that it runs as.")),
        optional(int("android_appid", "`uid` without its user, as Android counts.")),
        optional(int("android_user_id", "The user in `uid`, as Android counts.")),
        optional(text("cmdline", "Its command line.")),
        ARG_SET, MACHINE,
    ];
    THREAD = "thread", "A thread. Two threads that had one `tid` after each other are two rows.", [
        int("utid", "The number of the thread, distinct over time."),
        int("id", "The same as `utid`."),
        int("tid", "The number that the kernel gave it."),
        optional(text("name", "Its name.")),
        optional(int("start_ts", "When it began.")),
        optional(int("end_ts", "When it ended.")),
        optional(int("upid", "Its process.")),
        optional(int("is_main_thread", "Whether it is the main thread of its process.")),
        int("is_idle", "Whether it is what a CPU runs when it has nothing to do."),
        MACHINE,
    ];
    SCHED_SLICE = "sched_slice", "A thread on a CPU, from one switch to the next. Its rows come in the order of their ends.", [
        ID, TS, DUR,
        int("cpu", "The CPU."),
        int("utid", "The thread."),
        optional(text("end_state", "The thread's state when it left the CPU, in the kernel's letters.")),
        int("priority", "The thread's priority, as the kernel counts.") , UCPU,
    ];
    THREAD_STATE = "thread_state", "A thread in one state. Its rows come in the order of their ends.", [
        ID, TS, DUR,
        optional(int("cpu", "The CPU that runs it.")),
        int("utid", "The thread."),
        optional(text("state", "`Running`, or the kernel's letters.")),
        optional(int("io_wait", "Whether it waits for input or output.")),
        optional(text("blocked_function", "The function of the kernel in which it waits.")),
        optional(int("waker_utid", "The thread that woke it.")),
        optional(int("waker_id", "The row of that thread's state at that time.")),
        optional(int("irq_context", "Whether it was woken from an interrupt.")),
        optional(int("ucpu", "The CPU that runs it, distinct over all machines.")),
    ];
    SPURIOUS_SCHED_WAKEUP = "spurious_sched_wakeup", "A wake-up of a thread that was not asleep.", [
        ID, TS,
        int("thread_state_id", "The thread's state, in `thread_state`."),
        optional(int("irq_context", "Whether it came from an interrupt.")),
        int("utid", "The thread."),
        int("waker_utid", "The thread that woke it."),
    ];
    #[differs = "`stack_id` and `parent_stack_id` distinguish the same stacks, with other numbers. Arguments of extensions of track events are missing."]
    SLICE = "slice", "Something that took some time on a track, or a moment. Its rows come in the order of their ends.", [
        ID, TS, DUR,
        int("track_id", "The track."),
        optional(text("category", "Its categories, with commas between them.")),
        optional(text("name", "Its name.")),
        int("depth", "How many slices it is within."),
        int("stack_id", "The names and categories of it and of the slices that it is within, as one number."),
        int("parent_stack_id", "The `stack_id` of the slice that it is within; 0 if there is none."),
        optional(int("parent_id", "The slice that it is directly within.")),
        ARG_SET,
        optional(int("thread_ts", "The processor time of its thread when it began.")),
        optional(int("thread_dur", "The processor time of its thread that it took.")),
        optional(int("thread_instruction_count", "The instructions of its thread when it began.")),
        optional(int("thread_instruction_delta", "The instructions of its thread that it took.")),
        optional(text("cat", "The same as `category`.")),
        int("slice_id", "The same as `id`."),
    ];
    FLOW = "flow", "An arrow from one slice to another.", [
        ID,
        int("slice_out", "The slice that it begins at."),
        int("slice_in", "The slice that it ends at."),
        optional(int("trace_id", "The number that the program gave it.")),
        ARG_SET,
    ];
    CHROME_RAW = "__intrinsic_chrome_raw", "An event of Chromium that nothing else follows from, such as the value of a counter in the older form.", [
        ID, TS,
        text("name", "`track_event.legacy_event`, whose own name is in `args`, or `chrome_event.metadata` for what it says about the recording."),
        int("utid", "The thread."),
        ARG_SET,
    ];
    ANDROID_LOGS = "android_logs", "A message that a program logged, on any system.", [
        ID, TS,
        int("utid", "The thread."),
        int("prio", "How important it is, as Android counts: 2 is verbose, 4 is informative, 6 is an error."),
        optional(text("tag", "Where it comes from.")),
        text("msg", "The message."),
    ];
    COUNTER = "counter", "The value of a counter from a time on.", [
        ID, TS,
        int("track_id", "The counter's track."),
        float("value", "The value."),
        ARG_SET,
    ];
    TRACK = "track", "Where slices or values of a counter belong.", [
        ID, TRACK_NAME, TRACK_TYPE, DIMENSIONS, PARENT, SOURCE, MACHINE,
        optional(int("track_group_id", "Tracks of one group are shown as one.")),
    ];
    THREAD_TRACK = "thread_track", "A track of slices of a thread.", [
        ID, TRACK_NAME, TRACK_TYPE, PARENT, SOURCE, MACHINE, int("utid", "The thread."),
    ];
    PROCESS_TRACK = "process_track", "A track of slices of a process.", [
        ID, TRACK_NAME, TRACK_TYPE, PARENT, SOURCE, MACHINE, int("upid", "The process."),
    ];
    CPU_TRACK = "cpu_track", "A track of slices of a CPU.", [
        ID, TRACK_NAME, TRACK_TYPE, PARENT, SOURCE, MACHINE, int("cpu", "The CPU."),
    ];
    COUNTER_TRACK = "counter_track", "A track of a counter.", [
        ID, TRACK_NAME, PARENT, TRACK_TYPE, DIMENSIONS, SOURCE, MACHINE, UNIT, DESCRIPTION,
    ];
    THREAD_COUNTER_TRACK = "thread_counter_track", "A track of a counter of a thread.", [
        ID, TRACK_NAME, TRACK_TYPE, PARENT, SOURCE, MACHINE, UNIT, DESCRIPTION, int("utid", "The thread."),
    ];
    PROCESS_COUNTER_TRACK = "process_counter_track", "A track of a counter of a process.", [
        ID, TRACK_NAME, TRACK_TYPE, PARENT, SOURCE, MACHINE, UNIT, DESCRIPTION, int("upid", "The process."),
    ];
    CPU_COUNTER_TRACK = "cpu_counter_track", "A track of a counter of a CPU.", [
        ID, TRACK_NAME, TRACK_TYPE, PARENT, SOURCE, MACHINE, UNIT, DESCRIPTION, int("cpu", "The CPU."),
    ];
    GPU_COUNTER_TRACK = "gpu_counter_track", "A track of a counter of a graphics processor.", [
        ID, TRACK_NAME, TRACK_TYPE, PARENT, SOURCE, MACHINE, UNIT, DESCRIPTION, int("gpu_id", "The graphics processor."),
    ];
    GPU_COUNTER_GROUP = "gpu_counter_group", "A group that a counter of a graphics processor is in.", [
        ID,
        int("group_id", "The group, as the schema of counters has them: 0 is none, 1 system, 2 vertices, 3 fragments, 4 primitives, 5 memory, 6 compute, 7 ray tracing."),
        int("track_id", "The counter's track."),
    ];
    EXPECTED_FRAME_TIMELINE_SLICE = "expected_frame_timeline_slice", "A frame on Android, as the system foresaw it. It is also in `slice`.", [
        ID, TS, DUR, IN_TRACK, CATEGORY, NUMBER, WITHIN, OUTER, ARG_SET, DISPLAY_TOKEN, SURFACE_TOKEN, int("upid", "The process."), LAYER,
    ];
    ACTUAL_FRAME_TIMELINE_SLICE = "actual_frame_timeline_slice", "A frame on Android, as it came. It is also in `slice`.", [
        ID, TS, DUR, IN_TRACK, CATEGORY, NUMBER, WITHIN, OUTER, ARG_SET, DISPLAY_TOKEN, SURFACE_TOKEN, int("upid", "The process."), LAYER,
        text("present_type", "Whether it was shown on time."),
        int("on_time_finish", "Whether it was ready on time."),
        int("gpu_composition", "Whether the graphics processor put it together."),
        text("jank_type", "Why it was not as foreseen, as a list."),
        text("jank_severity_type", "How far it was not as foreseen."),
        text("prediction_type", "Whether what was foreseen still held."),
        text("jank_tag", "Whose fault that was."),
    ];
    PACKAGE_LIST = "package_list", "A package that is installed on Android.", [
        ID,
        text("package_name", "Its name."),
        int("uid", "The user that it runs as."),
        int("debuggable", "Whether it may be debugged."),
        int("profileable_from_shell", "Whether a shell may make profiles of it."),
        int("version_code", "Its version."),
    ];
    ANDROID_GAME_INTERVENTION_LIST = "android_game_intervention_list", "A game on Android, and what the system does to it in each of three modes.", [
        ID,
        text("package_name", "Its package."),
        int("uid", "The user that it runs as."),
        int("current_mode", "The mode: 1 is standard, 2 is performance, 3 is battery."),
        int("standard_mode_supported", "Whether it has the standard mode."),
        optional(float("standard_mode_downscale", "The resolution in it, as a part of the whole.")),
        optional(int("standard_mode_use_angle", "Whether ANGLE draws in it.")),
        optional(float("standard_mode_fps", "The most frames per second in it.")),
        int("perf_mode_supported", "Whether it has the performance mode."),
        optional(float("perf_mode_downscale", "The resolution in it, as a part of the whole.")),
        optional(int("perf_mode_use_angle", "Whether ANGLE draws in it.")),
        optional(float("perf_mode_fps", "The most frames per second in it.")),
        int("battery_mode_supported", "Whether it has the battery mode."),
        optional(float("battery_mode_downscale", "The resolution in it, as a part of the whole.")),
        optional(int("battery_mode_use_angle", "Whether ANGLE draws in it.")),
        optional(float("battery_mode_fps", "The most frames per second in it.")),
    ];
    #[differs = "Stacks that a sequence explains only after the sample that refers to them are missing, as are those in the oldest form of heap profiles."]
    PERF_SAMPLE = "perf_sample", "A sample of a thread, with the stack that it had.", [
        ID, TS,
        int("utid", "The thread."),
        int("cpu", "The CPU."),
        text("cpu_mode", "Whether the CPU ran the program or the kernel."),
        CALLSITE,
        optional(text("unwind_error", "Why the stack is not complete.")),
        int("perf_session_id", "The data source that made the sample, in `perf_session`."),
    ];
    PERF_SESSION = "perf_session", "A data source that sampled threads.", [
        ID,
        optional(text("cmdline", "The command line that began it.")),
        int("perf_session_id", "The same as `id`."),
    ];
    PERF_COUNTER_TRACK = "perf_counter_track", "A track of a counter that is read with each sample.", [
        ID, TRACK_NAME, TRACK_TYPE, PARENT, SOURCE, MACHINE, UNIT, DESCRIPTION,
        int("perf_session_id", "The data source that made the samples, in `perf_session`."),
        optional(int("cpu", "The CPU.")),
        int("is_timebase", "Whether this counter decides when a sample is made."),
    ];
    STACK_PROFILE_MAPPING = "stack_profile_mapping", "A part of a file in the memory of a process, as far as stacks have functions in it.", [
        ID,
        text("build_id", "What distinguishes the file from others of its name."),
        int("exact_offset", "Where the mapping begins in the file."),
        int("start_offset", "Where the file begins in the file that contains it."),
        int("start", "The first address."),
        int("end", "The address behind the last one."),
        int("load_bias", "How far addresses in the file are above their places in it."),
        text("name", "The path of the file."),
    ];
    STACK_PROFILE_FRAME = "stack_profile_frame", "A function in a mapping, at one address.", [
        ID,
        optional(text("name", "The name of the function, as the recording knew it.")),
        int("mapping", "The mapping, in `stack_profile_mapping`."),
        int("rel_pc", "The address, from the beginning of the file."),
        optional(int("symbol_set_id", "Its functions and lines, in `stack_profile_symbol`.")),
        optional(text("deobfuscated_name", "The name before it was obfuscated.")),
    ];
    STACK_PROFILE_CALLSITE = "stack_profile_callsite", "A frame together with the frames that called it.", [
        ID,
        int("depth", "How many frames called it."),
        optional(int("parent_id", "The call site that called it.")),
        int("frame_id", "The frame, in `stack_profile_frame`."),
    ];
    STACK_PROFILE_SYMBOL = "stack_profile_symbol", "A function and a line of an address. One address has several where functions are inlined.", [
        ID,
        int("symbol_set_id", "What belongs to one address, the innermost function first."),
        text("name", "The function."),
        optional(text("source_file", "The source file.")),
        optional(int("line_number", "The line in the source file.")),
    ];
    CPU_PROFILE_STACK_SAMPLE = "cpu_profile_stack_sample", "A sample that a program made of a thread of its own.", [
        ID, TS,
        int("callsite_id", "The stack, in `stack_profile_callsite`."),
        int("utid", "The thread."),
        int("process_priority", "The priority of the process, as the program gives it."),
    ];
    HEAP_PROFILE_ALLOCATION = "heap_profile_allocation", "What one stack has allocated or freed since the dump before.", [
        ID, TS,
        int("upid", "The process."),
        text("heap_name", "The heap."),
        int("callsite_id", "The stack, in `stack_profile_callsite`."),
        int("count", "How many allocations; negative if they were freed."),
        int("size", "Their bytes; negative if they were freed."),
    ];
    PROFILER_SMAPS = "profiler_smaps", "A mapping of a process, with what of it is in memory.", [
        ID,
        int("upid", "The process."),
        TS,
        optional(text("path", "What is mapped.")),
        int("size_kb", "Its size."),
        int("private_dirty_kb", "What only this process has, and has changed."),
        int("swap_kb", "What is swapped out."),
        optional(text("file_name", "The file.")),
        int("start_address", "The first address."),
        int("module_timestamp", "When the file was made."),
        optional(text("module_debugid", "What distinguishes the file from others of its name.")),
        optional(text("module_debug_path", "Where its symbols are.")),
        int("protection_flags", "What may be done with it."),
        int("private_clean_resident_kb", "What only this process has, and has not changed."),
        int("shared_dirty_resident_kb", "What other processes have too, and was changed."),
        int("shared_clean_resident_kb", "What other processes have too, and was not changed."),
        int("locked_kb", "What is locked into memory."),
        int("proportional_resident_kb", "What is in memory, divided by the processes that have it."),
    ];
    CPU = "cpu", "A CPU that the trace mentions.", [
        ID, UCPU,
        int("cpu", "Its number."),
        optional(int("cluster_id", "Its cluster, judged by capacities or else by the highest frequencies.")),
        optional(text("processor", "What it is.")),
        MACHINE,
        optional(int("capacity", "Its capacity as the kernel gives it.")),
        ARG_SET,
    ];
    MACHINE_TABLE = "machine", "The machine that recorded the trace.", [
        ID,
        int("raw_id", "Its number in the trace."),
        optional(text("sysname", "Its system.")),
        optional(text("release", "The release of its kernel.")),
        optional(text("version", "The version of its kernel.")),
        optional(text("arch", "Its architecture.")),
        optional(int("num_cpus", "How many CPUs it has.")),
        optional(text("android_build_fingerprint", "What distinguishes the build of Android.")),
        optional(text("android_device_manufacturer", "Who made it.")),
        optional(int("android_sdk_version", "The version of Android's interface.")),
    ];
    CPU_AVAILABLE_FREQUENCIES = "cpu_available_frequencies", "A frequency that a CPU can have.", [
        ID,
        int("cpu", "The CPU."),
        int("freq", "The frequency in kHz."),
        UCPU,
    ];
    FILEDESCRIPTOR = "filedescriptor", "A file that a process had open.", [
        ID,
        int("ufd", "Always 0 in traces of this form."),
        int("fd", "The number that the process has for it."),
        TS,
        int("upid", "The process."),
        optional(text("path", "The file.")),
    ];
    CLOCK_SNAPSHOT = "clock_snapshot", "The reading of one clock in a snapshot of several.", [
        ID, TS,
        int("clock_id", "The clock."),
        optional(text("clock_name", "The clock's name.")),
        int("clock_value", "What it showed."),
        int("snapshot_id", "The snapshot. All readings of one were made at one moment."),
        MACHINE,
    ];
    #[differs = "Only the keys that the trace's own packets give; not those of the trace processor about itself."]
    METADATA = "metadata", "What is known about the trace as a whole.", [
        ID,
        text("name", "The key."),
        text("key_type", "`single` if there is one row of it, `multi` if there may be several."),
        optional(int("int_value", "The value, if it is a number.")),
        optional(text("str_value", "The value, if it is text.")),
    ];
    TRACE_BOUNDS = "trace_bounds", "The time of the whole trace. There is one row; both times are 0 if the trace has no events.", [
        int("start_ts", "The time of the first event, in ns."),
        int("end_ts", "The time of the last event, in ns."),
    ];
    #[differs = "Only counters that are not zero. `description` has words of its own."]
    STATS = "stats", "A counter of what was read, and of what could not be.", [
        text("name", "The counter."),
        optional(int("idx", "The CPU or the buffer, for counters that exist once for each.")),
        text("severity", "`info`, `data_loss` if something is missing, or `error`."),
        text("source", "`trace` if the recording counted it, `analysis` if the reader did."),
        int("value", "The count."),
        text("description", "What it counts."),
    ];
    #[differs = "The trace processor has no such table."]
    LOSS = "ferretto_loss", "A part of the file that could not be read.", [
        ID,
        text("kind", "`damage`, `cut`, or `packets` for packets of a kind that is not read."),
        optional(int("offset", "Where it begins in the file, expanded.")),
        optional(int("bytes", "Its size.")),
        optional(int("packets", "The number of packets.")),
        text("detail", "What was found."),
    ];
    #[differs = "It is made only when it is asked for by name, or by `--ftrace-events`. The same holds for its rows in `args`, whose numbers begin at 500,000,000,000."]
    FTRACE_EVENT = "ftrace_event", "An event of the kernel as it was recorded, whatever follows from it.", [
        ID,
        TS,
        text("name", "The name of the tracepoint."),
        int("cpu", "The CPU."),
        int("utid", "The thread that the CPU ran; for `sched_switch` the one that leaves."),
        ARG_SET,
        int("common_flags", "The kernel's flags: what it was in. 0 where the recording leaves them out."),
        UCPU,
    ];
    #[differs = "Numbers of sets differ. Value types are `int`, `uint`, `string`, `real`, `bool`, `pointer` or `json`."]
    ARGS = "args", "An argument of an event, of a track or of something else.", [
        ID,
        int("arg_set_id", "The set that it belongs to. Equal sets are one."),
        text("flat_key", "The key without places in arrays."),
        text("key", "The key."),
        optional(int("int_value", "The value, if it is a whole number.")),
        optional(text("string_value", "The value, if it is text.")),
        optional(float("real_value", "The value, if it is a number with a fraction.")),
        optional(text("value_type", "Which of them it is.")),
        optional(text("display_value", "The value as text.")),
    ];
}
