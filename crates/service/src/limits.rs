//! Every limit of the service in one place, with upstream's values where upstream has one.

use std::time::Duration;

/// Sessions at once.
pub const MAX_SESSIONS: usize = 15;
/// Sessions at once that consumers of one user may own.
pub const MAX_SESSIONS_PER_UID: usize = 5;
/// Sessions that were given up and still complete their files (upstream: none, its only thread writes them at once).
pub const MAX_COMPLETING_SESSIONS: usize = 15;
/// Those of one user among them.
pub const MAX_COMPLETING_SESSIONS_PER_UID: usize = 5;
/// Clones of sessions at once that consumers of one user may own or wait for. Upstream counts them as sessions, and
/// makes any number of them.
pub const MAX_CLONES_PER_UID: usize = 64;
/// Memory of all clones together where the machine's is not known.
pub const DEFAULT_CLONE_MEMORY: u64 = 1 << 30;

/// Bytes that the buffers of one user's clones may take, of what those of all may: there has to be some left for others.
pub fn clone_memory_per_uid(all: u64) -> u64 {
    all / 4 * 3
}

/// Bytes that the buffers of all clones together may take: half of the machine's memory. Upstream copies until there is
/// none left.
pub fn clone_memory(ram_bytes: Option<u64>) -> u64 {
    ram_bytes.map_or(DEFAULT_CLONE_MEMORY, |bytes| bytes / 2)
}

/// Bytes that the shared memory of one user's producers may have: a quarter of the machine's memory. Whoever comes when there is no more
/// gets no more than the usual size (upstream: no limit).
pub fn shared_memory_per_uid(ram_bytes: Option<u64>) -> usize {
    let quarter = usize::try_from(ram_bytes.unwrap_or_default() / 4);
    quarter.unwrap_or(usize::MAX).max(MIN_SHARED_MEMORY_PER_UID)
}

/// Trace buffers in one config.
pub const MAX_BUFFERS_PER_SESSION: usize = 128;
/// Data sources in one config. Upstream has no limit and can be made to spend minutes on one config.
pub const MAX_DATA_SOURCES_PER_CONFIG: usize = 4096;
/// Data sources that one producer may have registered at once (upstream: none).
pub const MAX_DATA_SOURCES_PER_PRODUCER: usize = 1024;
/// Bytes of descriptors that one producer may have registered at once (upstream: no limit).
pub const MAX_DESCRIPTOR_BYTES_PER_PRODUCER: usize = 8 * 1024 * 1024;
/// Bytes of a producer's name, and of its version; the rest is cut off. A program's path has no more, and everything that is said of a
/// producer repeats its name (upstream: no limit).
pub const MAX_PRODUCER_NAME: usize = 4096;
/// Instances of data sources that one producer has in one session: as many as a config can want, so only who registers names more than
/// once gets there (upstream: no limit).
pub const MAX_INSTANCES_PER_PRODUCER: usize = MAX_DATA_SOURCES_PER_CONFIG;
/// Data sources that all producers of one user may have registered at once (upstream: no limit). Each takes some hundred bytes, however
/// short its descriptor.
pub const MAX_DATA_SOURCES_PER_UID: usize = 64 * 1024;
/// Bytes of descriptors that all producers of one user may have registered at once (upstream: no limit).
pub const MAX_DESCRIPTOR_BYTES_PER_UID: usize = 256 * 1024 * 1024;
/// Instances of data sources that all producers of one user have in one session: setting them up, flushing and stopping them is done
/// at once, and what a config wants of many, many processes can offer (upstream: no limit).
pub const MAX_INSTANCES_PER_UID: usize = 32 * 1024;
/// Bytes of the configs that go to all of those, and of their names.
pub const MAX_INSTANCE_BYTES_PER_UID: usize = 64 * 1024 * 1024;
/// Offers of data sources that are held against those of a config when it begins or changes: how often the config wants a name, times
/// how often that is offered (upstream: no limit).
pub const MAX_OFFERS_COMPARED: usize = 4 * 1024 * 1024;
/// Producers at once.
pub const MAX_PRODUCERS: usize = 0xffff;
/// The last id of a producer; then they go round, skipping those in use. Traces have 31 bits for them.
pub const MAX_PRODUCER_ID: u32 = i32::MAX as u32;
/// Relays of other machines at once, with those that are gone and whose machines' data sessions may hold (upstream: no limit).
pub const MAX_RELAYS: usize = 256;
/// Bytes in what a relay says of its machine (upstream: what fits a frame).
pub const MAX_SYSTEM_INFO: usize = 16 * 1024;
/// Clocks that a relay reads at once (upstream: no limit). There are ten in the schema.
pub const MAX_CLOCKS_PER_EXCHANGE: usize = 64;
/// Exchanges of readings with a relay that are kept, the latest ones.
pub const MAX_CLOCK_EXCHANGES: usize = 5;
/// Machines that one trace tells of (upstream: no limit).
pub const MAX_MACHINES_PER_TRACE: usize = 256;
/// Longest session.
pub const MAX_DURATION: Duration = Duration::from_secs(7 * 24 * 3600);

/// Longest session with `enable_extra_guardrails`.
pub const GUARDRAIL_MAX_DURATION: Duration = Duration::from_secs(24 * 3600);
/// KB of all buffers of a session with `enable_extra_guardrails`, unless `guardrail_overrides` allows more.
pub const GUARDRAIL_MAX_BUFFERS_KB: u32 = 128 * 1024;
/// After so many whole seconds, a session of the same name with `enable_extra_guardrails` may not begin yet.
pub const GUARDRAIL_MIN_SECONDS_BETWEEN_SESSIONS: u64 = 5 * 60;
/// Sessions of one user with `enable_extra_guardrails` and different names that may begin within that time (upstream: none).
pub const MAX_GUARDED_STARTS_PER_UID: usize = 128;
/// Highest `priority_boost` of the ordinary policy: 20 above the usual `nice` value 0.
pub const MAX_BOOST_OTHER: u32 = 20;
/// Highest `priority_boost` of the real-time policy.
pub const MAX_BOOST_FIFO: u32 = 99;

/// Shared memory of a producer that states no wish.
pub const DEFAULT_SMB_SIZE: usize = 256 * 1024;
/// Bytes of the shared memory of one user's producers where the machine's memory is not known, and on small ones.
pub const MIN_SHARED_MEMORY_PER_UID: usize = 512 * 1024 * 1024;
/// Bytes of their shared memory that are scraped for one flush: what producers hold usually is a chunk for each thread (upstream: no limit).
pub const MAX_SCRAPED_PER_UID: usize = 64 * 1024 * 1024;
/// Pages of it that are looked at, twice each, for one flush: 1 GB, of the smallest (upstream: no limit).
pub const MAX_PAGES_SCRAPED_PER_UID: usize = 1 << 18;
/// Page size of a producer that states no wish.
pub const DEFAULT_SMB_PAGE_SIZE: usize = 4096;
/// Largest shared memory that is granted.
pub const MAX_SMB_SIZE: usize = 32 * 1024 * 1024;
/// Largest page that is granted. The ABI would allow 64 KB; chunks of that size do not fit into upstream's buffers,
/// and its clients were tested with this limit.
pub const MAX_SMB_PAGE_SIZE: usize = 32 * 1024;
/// Smallest page of the ABI, and the unit of all sizes.
pub const MIN_SMB_PAGE_SIZE: usize = 4096;

/// How long producers have to acknowledge a flush when neither request nor config says.
pub const DEFAULT_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long producers have to acknowledge a stop when the config does not say.
pub const DEFAULT_STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Flushes of one session that may be under way at once.
pub const MAX_PENDING_FLUSHES: usize = 1000;
/// After this long the data sources that have not started are named in the trace.
pub const ALL_STARTED_TIMEOUT: Duration = Duration::from_secs(20);
/// Data sources listed in such an event.
pub const MAX_LISTED_DATA_SOURCES: usize = 32;
/// Bytes of each name listed there (upstream: no limit).
pub const MAX_LISTED_NAME: usize = 1024;
/// Of one user's producers, those whose data sources ended while a session recorded and are yet to be told of in its trace; older ones
/// make room.
pub const MAX_GONE_PER_OWNER: usize = 64;
/// Flushes that were not acknowledged in time and are yet to be told of in the trace; older ones make room (upstream: no
/// limit).
pub const MAX_SLOW_FLUSHES: usize = 16;

/// Writers of which the statistics of a session tell, in all of its buffers (upstream: no limit).
pub const MAX_WRITERS_IN_STATS: usize = 1 << 16;
/// Interval of clock snapshots, sync markers and statistics when the config does not say.
pub const DEFAULT_SNAPSHOT_INTERVAL: Duration = Duration::from_secs(10);
/// Clock snapshots that wait for the next read-back.
pub const MAX_PENDING_CLOCK_SNAPSHOTS: usize = 16;
/// Changes of other sessions that wait for the next read-back; those that follow are not recorded.
pub const MAX_CONCURRENT_SESSION_EVENTS: usize = 4096;
/// Bytes of names in them (upstream: no limit).
pub const MAX_CONCURRENT_SESSION_NAME_BYTES: usize = 4 * 1024 * 1024;
/// Interval of writes into the output file when the config does not say.
pub const DEFAULT_FILE_WRITE_PERIOD: Duration = Duration::from_millis(5000);
/// Shortest such interval.
pub const MIN_FILE_WRITE_PERIOD: Duration = Duration::from_millis(100);

/// Patches of one chunk in one request; more are refused.
pub const MAX_PATCHES_PER_CHUNK: usize = 1024;
/// Bytes of one `DataSourceConfig` in a trace config. It goes to producers in one frame of 128 KB, with what the service
/// adds to it.
pub const MAX_DATA_SOURCE_CONFIG_SIZE: usize = 127 * 1024;

/// Triggers in one config (upstream: no limit).
pub const MAX_TRIGGERS_PER_CONFIG: usize = 1024;
/// Different `producer_name_regex` of the triggers in one config (upstream: no limit).
pub const MAX_TRIGGER_REGEXES_PER_CONFIG: usize = 64;
/// Bytes in the name of a trigger in a config.
pub const MAX_TRIGGER_NAME: usize = 1024;
/// Bytes of a producer's name that are kept with the triggers it activates.
pub const MAX_TRIGGER_PRODUCER_NAME: usize = 1024;
/// Triggers that a producer may activate at once; what is more is ignored (upstream: no limit).
pub const TRIGGER_BURST: u64 = 1000;
/// Triggers that a producer may activate per second, after that burst.
pub const TRIGGERS_PER_SECOND: u64 = 100;
/// Triggers that a session keeps for its trace and clones.
pub const MAX_TRIGGERS_RECEIVED: usize = 1024;
/// Snapshots of a session that triggers have asked for and that are not due yet.
pub const MAX_PENDING_SNAPSHOTS: usize = 256;
/// Names of triggers whose activations within 24 hours are counted.
pub const MAX_TRIGGERS_REMEMBERED: usize = 1024;
/// Longest regular expression in a config.
pub const MAX_REGEX_LENGTH: usize = 4096;
/// Bytes of a producer's name times bytes of the automaton that an expression is (upstream: no limit): at worst some 10 ms.
pub const MAX_NAME_WORK: u64 = 1 << 27;
/// How long matching names with expressions may take in all, of the thread's own time, when a config, a data source or triggers come
/// (upstream: no limit). From then on no name matches; if a config came, those of each user's producers may take [`MAX_NAME_WORK`] more.
pub const MAX_MATCHING_TIME: Duration = Duration::from_millis(200);
/// Different `producer_name_regex_filter` of the data sources in one config (upstream: no limit).
pub const MAX_REGEXES_PER_CONFIG: usize = 256;
/// Bytes of all regular expressions of one kind in a config: filters of names, triggers, rules for strings (upstream: no limit). While
/// they are compiled everybody waits, up to a microsecond for each.
pub const MAX_REGEX_TEXT: usize = 32 * 1024;
/// Bytes that the automata of all of one kind may take together, for it takes time to make them...
pub const MAX_REGEX_MEMORY: usize = 2 << 20;
/// ...except that each may take this much.
pub const MIN_REGEX_MEMORY: usize = 16 * 1024;
/// What each may take again when it is searched for, as it needs it; or this much, for with less it would be slow.
pub const MIN_REGEX_CACHE: usize = 64 * 1024;

/// Messages, fields and ranges of fields in a trace filter (upstream: no limit). The filter that lets the whole schema pass
/// has some 30,000.
pub const MAX_FILTER_TABLE_ENTRIES: usize = 1 << 20;
/// How deep messages may be nested in a packet that is filtered (upstream: no limit). Protobuf's own readers stop at 100.
pub const MAX_FILTER_DEPTH: usize = 1000;
/// Rules for strings in a trace filter, with those that others take the place of (upstream: no limit).
pub const MAX_STRING_FILTER_RULES: usize = 512;
/// Bytes of a string times bytes of the automaton that looks at it (upstream: no limit): at worst 200 ms.
pub const MAX_SEARCH_WORK: u64 = 1 << 31;
/// How long searching the strings of a packet may take, of the thread's own time (upstream: no limit). What is left of such a packet is
/// nothing.
pub const MAX_FILTER_TIME_PER_PACKET: Duration = Duration::from_millis(100);
/// After this time a batch of packets that are filtered is complete, however small it is.
pub const MAX_FILTER_TIME_PER_BATCH: Duration = Duration::from_millis(20);
/// Bytes that may be looked at to search one string again and again (upstream: no limit): enough for 32 KiB, the largest
/// chunk of a producer, whatever they hold.
pub const MAX_FILTER_SEARCH_BYTES: u64 = 1 << 29;
/// About so many bytes of packets become one compressed packet when a consumer reads: what the service's only thread
/// compresses at once. Larger ones compress hardly better.
pub const COMPRESSED_BATCH: usize = 64 * 1024;
/// A batch that is longer, because of one long packet, goes to the consumer as it is. Upstream compresses it, however
/// long that takes.
pub const MAX_COMPRESSED_BATCH: usize = 4 * COMPRESSED_BATCH;
/// Higher levels of zstd count as this one when a consumer reads: the highest would take 30 ms for a batch instead of 1,
/// for a few percent.
pub const MAX_ZSTD_LEVEL_WHILE_SERVING: i32 = 9;
/// How long the file of a session that nobody waits for any more may take no data, until it is given up. Upstream, which
/// writes on its only thread, waits for ever.
pub const ABANDONED_FILE_PATIENCE: Duration = Duration::from_secs(30);
/// Threads that write trace files at once: enough for all sessions and the clones of a user. Beyond that, some hang in writes
/// for sessions that were given up.
pub const MAX_FILE_THREADS: usize = 128;

/// Largest `memory_limit_kb` of a `protovm_config` (upstream: no limit). The state is written into one packet, and those are
/// limited to 256 MB.
pub const MAX_PROTOVM_MEMORY_KB: u32 = 128 * 1024;
/// All of them in one config together.
pub const MAX_PROTOVM_MEMORY_KB_PER_SESSION: u32 = MAX_PROTOVM_MEMORY_KB;
/// The same of all programs of a trace buffer: there may be several for one data source. Clones copy their states at once.
pub const MAX_PROTOVM_MEMORY_KB_PER_BUFFER: u32 = 2 * MAX_PROTOVM_MEMORY_KB;
/// When the states in a packet have come to this many bytes, those that follow go into another (upstream: one packet for all).
pub const PROTOVMS_PACKET: usize = 64 * 1024 * 1024;
/// Programs that may merge what is overwritten in one trace buffer (upstream: no limit).
pub const MAX_PROTOVMS_PER_BUFFER: usize = 32;
/// Different programs among them that producers may bring for one data source: each may take the memory that the config says
/// (upstream: no limit).
pub const MAX_PROTOVM_VERSIONS: usize = 8;
/// Producers that may bring the same of them, those that are gone included: what they wrote may still be there to be merged (upstream: no
/// limit).
pub const MAX_PROTOVM_PRODUCERS: usize = 0xffff;
/// Instructions and parts of paths in such a program (upstream: no limit).
pub const MAX_PROTOVM_INSTRUCTIONS: usize = 4096;
/// How deep they may be nested (upstream: until its stack overflows). Recursion is as deep.
pub const MAX_PROTOVM_DEPTH: usize = 128;
/// Bytes of a packet in several chunks that is put together to be merged (upstream: no limit).
pub const MAX_PROTOVM_PACKET: usize = 32 * 1024 * 1024;
/// Units of work that a program earns with each packet: instructions, steps of paths, fields looked at (upstream: no limit
/// to any of this). A unit takes a few nanoseconds.
pub const PROTOVM_WORK_PER_PACKET: u64 = 1000;
/// What it earns with each byte of it.
pub const PROTOVM_WORK_PER_BYTE: u64 = 64;
/// What it may have saved up.
pub const MAX_PROTOVM_WORK: u64 = 1 << 24;
/// What all programs may use for what one request overwrites, however much that has earned.
pub const MAX_PROTOVM_WORK_AT_ONCE: u64 = 1 << 25;

/// Connections at once, where the process may have as many descriptors as they take (upstream: no limit).
pub const MAX_CONNECTIONS: usize = 16 * 1024;
/// Connections at once of one user, and never more than half of all: one user cannot keep the others out.
pub const MAX_CONNECTIONS_PER_UID: usize = 8 * 1024;
/// Bytes that the connections of one user may leave in the host: parts of requests, and replies that are not read. Beyond that, the
/// one that leaves the most is closed (upstream: no limit).
pub const MAX_HELD_BYTES_PER_UID: usize = 256 * 1024 * 1024;
/// Descriptors that a connection may come to cost: its socket, its shared memory, and two that it passes.
pub const DESCRIPTORS_PER_CONNECTION: usize = 4;
/// Descriptors that are left for listeners, trace files and the program itself; half of all if that is less.
pub const RESERVED_DESCRIPTORS: usize = 128;
