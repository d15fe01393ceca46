//! Every limit of the service in one place. Its comment says what it protects, upstream's value, and the test that meets it;
//! `every_limit_is_met_by_a_test` holds them to that.

use std::time::Duration;

// Sessions, and how long they last.

/// Sessions at once: each has buffers and takes part in every flush. As upstream's.
///
/// Met by `more_sessions_than_a_user_or_the_service_may_have`.
pub const MAX_SESSIONS: usize = 15;
/// Sessions at once that consumers of one user may own, so that others can record too. As upstream's, which gives Android's statsd ten.
///
/// Met by `more_sessions_than_a_user_or_the_service_may_have`.
pub const MAX_SESSIONS_PER_UID: usize = 5;
/// Sessions that were given up and still complete their files: they hold their buffers for as long. Upstream: none, its only thread
/// writes them at once.
///
/// Met by `so_many_ended_sessions_may_still_write_into_their_files`.
pub const MAX_COMPLETING_SESSIONS: usize = 15;
/// Completing sessions of one user, so that others can record too. Upstream: none.
///
/// Met by `so_many_ended_sessions_may_still_write_into_their_files`.
pub const MAX_COMPLETING_SESSIONS_PER_UID: usize = 5;
/// Longest session: a forgotten one ends. As upstream's.
///
/// Met by `durations_beyond_a_week`.
pub const MAX_DURATION: Duration = Duration::from_secs(7 * 24 * 3600);
/// Longest session with `enable_extra_guardrails`, because nobody supervises it. As upstream's.
///
/// Met by `guardrails_bound_the_duration`.
pub const GUARDRAIL_MAX_DURATION: Duration = Duration::from_secs(24 * 3600);
/// KB of all buffers of a session with `enable_extra_guardrails`, unless `guardrail_overrides` allows more, because nobody supervises the session. As
/// upstream's.
///
/// Met by `guardrails_bound_the_buffers_unless_overridden`.
pub const GUARDRAIL_MAX_BUFFERS_KB: u32 = 128 * 1024;
/// Whole seconds after which a session of the same name with `enable_extra_guardrails` may begin again: otherwise it could record all the time. As
/// upstream's.
///
/// Met by `guardrails_keep_sessions_of_one_name_minutes_apart`.
pub const GUARDRAIL_MIN_SECONDS_BETWEEN_SESSIONS: u64 = 5 * 60;
/// Sessions of one user with `enable_extra_guardrails` and different names that may begin within that time: the names are remembered.
/// Upstream: no limit.
///
/// Met by `guarded_sessions_of_one_user_do_not_keep_those_of_others_from_beginning`.
pub const MAX_GUARDED_STARTS_PER_UID: usize = 128;
/// Highest `priority_boost` of the ordinary policy: 20 above the usual `nice` value 0, the most that the kernel has. As upstream's.
///
/// Met by `boosts_that_cannot_be_are_refused`.
pub const MAX_BOOST_OTHER: u32 = 20;
/// Highest `priority_boost` of the real-time policy, the most that the kernel has. As upstream's.
///
/// Met by `boosts_that_cannot_be_are_refused`.
pub const MAX_BOOST_FIFO: u32 = 99;

// Clones of sessions.

/// Clones of sessions at once that consumers of one user may own or wait for: each has copies of buffers. Upstream counts them as
/// sessions, and makes any number of them.
///
/// Met by `the_clones_of_one_user_are_limited`.
pub const MAX_CLONES_PER_UID: usize = 64;
/// Memory of all clones together where the machine's is not known: half of a small machine's. Upstream: no limit.
///
/// Met by `the_clones_of_one_user_leave_memory_for_those_of_others`.
pub const DEFAULT_CLONE_MEMORY: u64 = 1 << 30;

/// Bytes that the buffers of one user's clones may take, given the limit for all clones: some has to be left for others. Upstream: no limit.
///
/// Met by `the_clones_of_one_user_leave_memory_for_those_of_others`.
pub fn clone_memory_per_uid(all: u64) -> u64 {
    all / 4 * 3
}

/// Bytes that the buffers of all clones together may take: half of the machine's memory. Upstream copies until there is none left.
///
/// Met by `the_clones_of_one_user_leave_memory_for_those_of_others`.
pub fn clone_memory(ram_bytes: Option<u64>) -> u64 {
    ram_bytes.map_or(DEFAULT_CLONE_MEMORY, |bytes| bytes / 2)
}

// Configs.

/// Trace buffers in one config: all sessions share 65,535 ids of them. As upstream's.
///
/// Met by `buffers_that_cannot_be`.
pub const MAX_BUFFERS_PER_SESSION: usize = 128;
/// Data sources in one config: all clients wait while they are set up. Upstream has no limit and can be made to spend minutes on one
/// config.
///
/// Met by `more_data_sources_than_a_config_may_have`.
pub const MAX_DATA_SOURCES_PER_CONFIG: usize = 4096;
/// Bytes of one `DataSourceConfig` in a trace config. It goes to producers in one frame of 128 KB, with the fields that the service adds. Upstream:
/// no limit, and its producers hang up when a frame is longer.
///
/// Met by `the_config_of_a_data_source_fits_into_a_message`.
pub const MAX_DATA_SOURCE_CONFIG_SIZE: usize = 127 * 1024;

// Producers.

/// Producers at once: the service keeps the description and the data sources of each. As upstream's.
///
/// Met by `so_many_producers_are_connected_at_once_and_none_has_the_id_of_an_earlier_one`.
pub const MAX_PRODUCERS: usize = 0xffff;
/// The last id of a producer; then ids go round, skipping those in use. Traces have 31 bits for them. Upstream: 0xffff, so an id comes again sooner.
///
/// Met by `behind_the_last_id_of_a_producer_comes_the_first_that_is_not_in_use`.
pub const MAX_PRODUCER_ID: u32 = i32::MAX as u32;
/// Bytes of a producer's name, and of its version; the rest is cut off. A program's path has no more, and everything that is said of a
/// producer repeats its name. Upstream: no limit.
///
/// Met by `names_of_producers_are_cut_between_characters`.
pub const MAX_PRODUCER_NAME: usize = 4096;

// The data sources that producers offer, and their instances in sessions.

/// Data sources that one producer may have registered at once: the service keeps each. Upstream: no limit.
///
/// Met by `a_producer_registers_as_many_data_sources_as_the_limit`.
pub const MAX_DATA_SOURCES_PER_PRODUCER: usize = 1024;
/// Bytes of descriptors that one producer may have registered at once: the service keeps them. Upstream: no limit.
///
/// Met by `descriptors_of_a_producer_fit_exactly`.
pub const MAX_DESCRIPTOR_BYTES_PER_PRODUCER: usize = 8 * 1024 * 1024;
/// Instances of data sources that one producer has in one session: as many as a config can want, so only a producer that registers names more than
/// once gets there. Upstream: no limit.
///
/// Met by `the_instances_of_a_producer_in_a_session_are_limited_and_others_are_not_kept_out`.
pub const MAX_INSTANCES_PER_PRODUCER: usize = MAX_DATA_SOURCES_PER_CONFIG;
/// Data sources that all producers of one user may have registered at once. Each takes some hundred bytes, however short its
/// descriptor. Upstream: no limit.
///
/// Met by `the_data_sources_of_the_producers_of_a_user_are_limited`.
pub const MAX_DATA_SOURCES_PER_UID: usize = 64 * 1024;
/// Bytes of descriptors that all producers of one user may have registered at once: many processes offer many. Upstream: no limit.
///
/// Met by `the_descriptors_of_a_user_are_bounded_in_all`.
pub const MAX_DESCRIPTOR_BYTES_PER_UID: usize = 256 * 1024 * 1024;
/// Instances of data sources that all producers of one user have in one session: setting them up, flushing and stopping them is done at once, and
/// many processes can offer a data source that a config wants many times. Upstream: no limit.
///
/// Met by `the_instances_of_the_producers_of_a_user_in_a_session_are_limited`.
pub const MAX_INSTANCES_PER_UID: usize = 32 * 1024;
/// Bytes of the configs that go to all these instances, and of their names: each gets a copy. Upstream: no limit.
///
/// Met by `the_configs_that_go_to_the_producers_of_a_user_are_bounded`.
pub const MAX_INSTANCE_BYTES_PER_UID: usize = 64 * 1024 * 1024;
/// Comparisons of offered data sources with a config when it begins or changes: how often the config wants a name, times how often it is offered. All
/// clients wait for it. Upstream: no limit.
///
/// Met by `offers_of_a_name_are_compared_up_to_a_number`.
pub const MAX_OFFERS_COMPARED: usize = 4 * 1024 * 1024;

// Other machines.

/// Relays of other machines at once, including disconnected ones whose machines may have data in sessions: the service keeps their descriptions and
/// clocks. Upstream: no limit.
///
/// Met by `gone_relays_make_room_for_new_ones`.
pub const MAX_RELAYS: usize = 256;
/// Bytes of a relay's description of its machine: each trace repeats it. Upstream: what fits a frame.
///
/// Met by `statements_of_a_relay_are_bounded`.
pub const MAX_SYSTEM_INFO: usize = 16 * 1024;
/// Clocks that a relay reads at once. There are ten in the schema. Upstream: no limit.
///
/// Met by `statements_of_a_relay_are_bounded`.
pub const MAX_CLOCKS_PER_EXCHANGE: usize = 64;
/// Exchanges of readings with a relay that are kept, the latest ones: each trace has them. As upstream's.
///
/// Met by `the_latest_exchanges_are_kept`.
pub const MAX_CLOCK_EXCHANGES: usize = 5;
/// Machines that one trace describes: relays that come and go can name ever new ones. Upstream: no limit.
///
/// Met by `the_machines_in_a_trace_are_limited`.
pub const MAX_MACHINES_PER_TRACE: usize = 256;

// Shared memory: how much there is, and how much of it is scraped.

/// Shared memory of a producer that states no wish: enough for most, and every process that traces has it. As upstream's.
///
/// Met by `shared_memory_is_granted_up_to_its_limits`.
pub const DEFAULT_SMB_SIZE: usize = 256 * 1024;
/// Page size of a producer that states no wish: a thread that writes little holds no more. As upstream's.
///
/// Met by `shared_memory_is_granted_up_to_its_limits`.
pub const DEFAULT_SMB_PAGE_SIZE: usize = 4096;
/// Largest shared memory that is granted, because producers choose the size and it is the machine's memory. As upstream's.
///
/// Met by `shared_memory_is_granted_up_to_its_limits`, `memory_that_producers_offer_keeps_the_same_limits`.
pub const MAX_SMB_SIZE: usize = 32 * 1024 * 1024;
/// Largest page that is granted. The ABI would allow 64 KB; chunks of that size do not fit into upstream's buffers, and its clients
/// were tested with this limit. As upstream's.
///
/// Met by `shared_memory_is_granted_up_to_its_limits`, `memory_that_producers_offer_keeps_the_same_limits`.
pub const MAX_SMB_PAGE_SIZE: usize = 32 * 1024;
/// Smallest page of the ABI, and the unit of all sizes. As upstream's.
///
/// Met by `shared_memory_is_granted_up_to_its_limits`.
pub const MIN_SMB_PAGE_SIZE: usize = 4096;
/// Bytes of the shared memory of one user's producers where the machine's memory is not known, and on small ones: sixteen producers
/// get the largest. Upstream: no limit.
///
/// Met by `the_shared_memory_of_a_user_is_bounded_and_all_get_some`.
pub const MIN_SHARED_MEMORY_PER_UID: usize = 512 * 1024 * 1024;

/// Bytes that the shared memory of one user's producers may have: a quarter of the machine's memory. A producer that comes when it is used up gets
/// the usual size at most. Upstream: no limit.
///
/// Met by `the_shared_memory_of_a_user_is_bounded_and_all_get_some`.
pub fn shared_memory_per_uid(ram_bytes: Option<u64>) -> usize {
    let quarter = usize::try_from(ram_bytes.unwrap_or_default() / 4);
    quarter.unwrap_or(usize::MAX).max(MIN_SHARED_MEMORY_PER_UID)
}

/// Bytes of one user's shared memory that are scraped for one flush, while all clients wait: usually producers hold one chunk for each thread.
/// Upstream: no limit.
///
/// Met by `the_memory_of_a_user_that_a_flush_scrapes_is_limited`.
pub const MAX_SCRAPED_PER_UID: usize = 64 * 1024 * 1024;
/// Pages of it that are looked at, twice each, for one flush: 1 GB, of the smallest. Looking takes time even if nothing is there to be
/// taken. Upstream: no limit.
///
/// Met by `the_pages_of_a_user_that_a_flush_looks_at_are_limited`.
pub const MAX_PAGES_SCRAPED_PER_UID: usize = 1 << 18;
/// Patches of one chunk in one request; more are refused, because no chunk has as many places to be patched. As upstream's.
///
/// Met by `the_patches_of_a_chunk_in_one_request_are_limited`.
pub const MAX_PATCHES_PER_CHUNK: usize = 1024;

// Flushes, and other waits for producers.

/// How long producers have to acknowledge a flush when neither request nor config says: one that hangs holds up the others no longer. As upstream's.
///
/// Met by `an_ending_service_waits_for_slow_producers_no_longer_than_otherwise`.
pub const DEFAULT_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long producers have to acknowledge a stop when the config does not say, for the same reason. As upstream's.
///
/// Met by `a_data_source_in_every_state_of_its_session_at_every_event`.
pub const DEFAULT_STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Flushes of one session that may be under way at once: each is remembered until it is acknowledged. As upstream's.
///
/// Met by `so_many_flushes_are_under_way_at_once`.
pub const MAX_PENDING_FLUSHES: usize = 1000;
/// After this long the trace names the data sources that have not started, so that readers know what is missing. As upstream's.
///
/// Met by `data_sources_that_do_not_start_within_20_s_are_named`.
pub const ALL_STARTED_TIMEOUT: Duration = Duration::from_secs(20);

// The packets that the service writes into traces itself.

/// Data sources listed in one event of the service: it is one packet. As upstream's.
///
/// Met by `no_more_data_sources_are_named_than_the_limit`.
pub const MAX_LISTED_DATA_SOURCES: usize = 32;
/// Bytes of each name listed there, because it is repeated in every event. Upstream: no limit.
///
/// Met by `of_flushes_that_were_slow_some_are_kept_and_of_names_the_beginning`.
pub const MAX_LISTED_NAME: usize = 1024;
/// Producers of one user whose data sources ended while a session recorded, and that its trace has yet to name; older ones make room, and never those
/// of other users. Upstream: none, it does not tell of them.
///
/// Met by `gone_producers_of_one_user_do_not_hide_those_of_another`.
pub const MAX_GONE_PER_OWNER: usize = 64;
/// Flushes that were not acknowledged in time and that the trace has yet to name; older ones make room. Upstream: no limit, but it forgets them with
/// each flush that begins.
///
/// Met by `of_flushes_that_were_slow_some_are_kept_and_of_names_the_beginning`.
pub const MAX_SLOW_FLUSHES: usize = 16;
/// Writers of which the statistics of a session tell, in all of its buffers: they are one packet, made at once. No buffer counts more.
/// Upstream: no limit.
///
/// Met by `the_writers_in_the_statistics_of_a_session_are_limited`.
pub const MAX_WRITERS_IN_STATS: usize = 1 << 16;
/// Interval of clock snapshots, sync markers and statistics when the config does not say: they take room in the trace. As upstream's.
///
/// Met by `clocks_are_read_every_ten_seconds_unless_the_config_says`.
pub const DEFAULT_SNAPSHOT_INTERVAL: Duration = Duration::from_secs(10);
/// Clock snapshots that wait for the next read-back, because there may be none. As upstream's.
///
/// Met by `so_many_clock_snapshots_wait_for_a_read_back`.
pub const MAX_PENDING_CLOCK_SNAPSHOTS: usize = 16;
/// Changes of other sessions that wait for the next read-back; further ones are not recorded. As upstream's.
///
/// Met by `events_of_other_sessions_are_recorded_up_to_a_number`.
pub const MAX_CONCURRENT_SESSION_EVENTS: usize = 4096;
/// Bytes of names in them: others choose the names. Upstream: no limit.
///
/// Met by `names_of_other_sessions_are_kept_up_to_a_size`.
pub const MAX_CONCURRENT_SESSION_NAME_BYTES: usize = 4 * 1024 * 1024;

// Files.

/// Interval of writes into the output file when the config does not say: a crash of the machine costs the data since. As upstream's.
///
/// Met by `files_are_written_no_more_often_than_the_shortest_period`.
pub const DEFAULT_FILE_WRITE_PERIOD: Duration = Duration::from_millis(5000);
/// Shortest such interval: each write walks the buffers, and may flush. As upstream's.
///
/// Met by `files_are_written_no_more_often_than_the_shortest_period`.
pub const MIN_FILE_WRITE_PERIOD: Duration = Duration::from_millis(100);
/// How long the file of an abandoned session may take no data, until it is given up. Upstream, which writes on its only thread, waits for ever.
///
/// Met by `a_file_that_takes_nothing_after_its_consumer_left_is_given_up`.
pub const ABANDONED_FILE_PATIENCE: Duration = Duration::from_secs(30);
/// Threads that write trace files at once: enough for all sessions and the clones of a user. Beyond that, some hang in writes for
/// sessions that were given up. Upstream: none, its only thread writes.
///
/// Met by `threads_are_limited_and_there_is_room_again_when_some_end`.
pub const MAX_FILE_THREADS: usize = 128;

// Compression while a consumer reads.

/// Bytes of packets (about) that become one compressed packet when a consumer reads: the service's only thread compresses them in one go. Larger ones
/// compress hardly better. Upstream: about 32 KB, the size of one of its reads.
///
/// Met by `compressed_batches_for_a_consumer_are_bounded`.
pub const COMPRESSED_BATCH: usize = 64 * 1024;
/// A batch that is longer, because of one long packet, goes to the consumer as it is. Upstream compresses it, however long that takes.
///
/// Met by `a_batch_that_would_take_long_to_compress_goes_to_the_consumer_as_it_is`.
pub const MAX_COMPRESSED_BATCH: usize = 4 * COMPRESSED_BATCH;
/// Higher levels of zstd count as this one when a consumer reads: the highest would take 30 ms for a batch instead of 1, for a few
/// percent. Upstream: no limit.
///
/// Met by `levels_that_take_long_are_not_for_the_thread_of_the_service`.
pub const MAX_ZSTD_LEVEL_WHILE_SERVING: i32 = 9;

// Triggers.

/// Triggers in one config: the service keeps them for as long as the session lasts. Upstream: no limit.
///
/// Met by `more_triggers_or_longer_names_than_a_config_may_have`.
pub const MAX_TRIGGERS_PER_CONFIG: usize = 1024;
/// Different `producer_name_regex` of the triggers in one config: all clients wait while they are compiled. Upstream: no limit.
///
/// Met by `expressions_that_do_not_compile_explode_or_are_too_many`.
pub const MAX_TRIGGER_REGEXES_PER_CONFIG: usize = 64;
/// Bytes in the name of a trigger in a config: it is kept with every activation. Upstream: no limit.
///
/// Met by `more_triggers_or_longer_names_than_a_config_may_have`.
pub const MAX_TRIGGER_NAME: usize = 1024;
/// Bytes of a producer's name that are kept with the triggers it activates: each has a copy. Upstream: no limit.
///
/// Met by `a_long_name_of_a_producer_is_cut`.
pub const MAX_TRIGGER_PRODUCER_NAME: usize = 1024;
/// Triggers that a producer may activate at once; further ones are ignored. A trigger can stop or clone a session. Upstream: no limit.
///
/// Met by `a_producer_that_floods_is_cut_to_its_budget_and_named_once`.
pub const TRIGGER_BURST: u64 = 1000;
/// Triggers that a producer may activate per second, after that burst. Upstream: no limit.
///
/// Met by `it_recovers_at_its_rate_and_is_reported_again_once_it_has`.
pub const TRIGGERS_PER_SECOND: u64 = 100;
/// Triggers that a session keeps for its trace and clones, because it may never be read. Upstream: no limit.
///
/// Met by `a_session_keeps_no_more_triggers_than_the_limit_and_says_so`.
pub const MAX_TRIGGERS_RECEIVED: usize = 1024;
/// Snapshots of a session that triggers have asked for and that are not due yet: each has a timer. Upstream: no limit.
///
/// Met by `no_more_snapshots_wait_than_the_limit`.
pub const MAX_PENDING_SNAPSHOTS: usize = 256;
/// Names of triggers whose activations within 24 hours are counted; the one that was silent for longest is forgotten. Upstream: no
/// limit.
///
/// Met by `of_too_many_names_the_one_that_was_silent_for_longest_is_forgotten`.
pub const MAX_TRIGGERS_REMEMBERED: usize = 1024;

// Regular expressions in configs.

/// Longest regular expression in a config: all clients wait while it is compiled. Upstream: no limit.
///
/// Met by `expressions_are_compiled_up_to_a_length`.
pub const MAX_REGEX_LENGTH: usize = 4096;
/// Different `producer_name_regex_filter` of the data sources in one config: every name of a producer is held against them. Upstream: no
/// limit.
///
/// Met by `all_expressions_of_a_config_share_its_limits`.
pub const MAX_REGEXES_PER_CONFIG: usize = 256;
/// Bytes of all regular expressions of one kind in a config: filters of names, triggers, rules for strings. While they are compiled all clients wait,
/// up to a microsecond for each byte. Upstream: no limit.
///
/// Met by `all_of_a_kind_share_length_and_memory`, `the_total_length_of_patterns_is_limited`.
pub const MAX_REGEX_TEXT: usize = 32 * 1024;
/// Bytes that the automata of all of one kind may take together, for it takes time to make them... Upstream: no limit.
///
/// Met by `all_of_a_kind_share_length_and_memory`.
pub const MAX_REGEX_MEMORY: usize = 2 << 20;
/// ...except that each may take this much, or none would compile where there are many. Upstream: no limit.
///
/// Met by `all_of_a_kind_share_length_and_memory`.
pub const MIN_REGEX_MEMORY: usize = 16 * 1024;
/// Bytes that searches for an expression may take besides its automaton, at least; else as many as the automaton. With less they would be slow.
/// Upstream: no limit.
///
/// Met by no test: with another cache a search is slower or faster, and finds the same.
pub const MIN_REGEX_CACHE: usize = 64 * 1024;
/// Bytes of a producer's name times bytes of the automaton that an expression is: at worst some 10 ms. Upstream: no limit.
///
/// Met by `a_name_that_takes_too_long_is_not_matched`.
pub const MAX_NAME_WORK: u64 = 1 << 27;
/// The same for all names that are matched with expressions when a config, a data source or triggers come: at worst some 300 ms. After that no
/// name matches; if a config came, the names of each user's producers may take [`MAX_NAME_WORK`] more. Upstream: no limit.
///
/// Met by `the_work_to_match_producers_names_when_a_data_source_comes_is_limited`.
pub const MAX_MATCHING_WORK: u64 = 1 << 32;

// Trace filters.

/// Messages, fields and ranges of fields in a trace filter: they take memory for as long as the session lasts. The filter that lets the
/// whole schema pass has some 30,000. Upstream: no limit.
///
/// Met by `a_table_takes_no_more_memory_than_is_allowed`.
pub const MAX_FILTER_TABLE_ENTRIES: usize = 1 << 20;
/// How deep messages may be nested in a packet that is filtered: the filter has a stack of them. Protobuf's own readers stop at 100.
/// Upstream: no limit.
///
/// Met by `messages_may_be_nested_up_to_the_limit`.
pub const MAX_FILTER_DEPTH: usize = 1000;
/// Rules for strings in a trace filter, replaced ones included: all clients wait while they are compiled. Upstream: no limit.
///
/// Met by `there_is_a_limit_to_rules`.
pub const MAX_STRING_FILTER_RULES: usize = 512;
/// Bytes of a string times bytes of the automaton that looks at it: at worst 200 ms. Upstream: no limit.
///
/// Met by `a_pattern_that_looks_at_each_byte_for_long_looks_at_few`.
pub const MAX_SEARCH_WORK: u64 = 1 << 31;
/// Time of the thread for searching the strings of a packet. A packet that takes longer is dropped. Upstream: no limit.
///
/// Met by `a_packet_whose_strings_take_too_long_is_given_up_and_the_next_one_is_not`.
pub const MAX_FILTER_TIME_PER_PACKET: Duration = Duration::from_millis(100);
/// After this time a batch of packets that are filtered is complete, however small it is, and others have their turn. Upstream: no
/// limit.
///
/// Met by `text_that_takes_long_ends_a_batch_and_too_much_of_it_a_packet`.
pub const MAX_FILTER_TIME_PER_BATCH: Duration = Duration::from_millis(20);
/// Bytes that may be looked at in repeated searches of one string: enough for 32 KiB, the largest chunk of a producer, whatever its contents.
/// Upstream: no limit.
///
/// Met by `a_search_that_takes_too_long_is_given_up`.
pub const MAX_FILTER_SEARCH_BYTES: u64 = 1 << 29;

// Packets.

/// A packet of more bytes is checked and copied out of its buffer in parts of about this size, one in each turn, so that others do not wait for all of
/// it. Upstream: no limit, and a packet is sent in one task.
///
/// Met by `a_large_packet_is_read_in_parts_and_goes_out_whole`.
pub const LARGE_PACKET: usize = 1 << 20;
/// Fragments of one packet. They are found in one turn, so their number bounds the time for which others wait. Full chunks of 4 KiB make a packet of
/// 256 MB, and the smallest chunks of such a page one of 18 MB. Upstream: no limit.
///
/// Met by `a_packet_of_more_fragments_than_any_honest_one_has_is_lost_and_marked`.
pub const MAX_FRAGMENTS_PER_PACKET: usize = 1 << 16;

// ProtoVM programs, which merge packets that ring buffers overwrite.

/// Largest `memory_limit_kb` of a `protovm_config`. The state is written into one packet, and packets are limited to 256 MB. Upstream: no limit.
///
/// Met by `a_memory_limit_beyond_what_a_packet_holds_is_refused`.
pub const MAX_PROTOVM_MEMORY_KB: u32 = 128 * 1024;
/// All of these in one config together: the programs may use all memory that they may have. Upstream: no limit.
///
/// Met by `the_states_of_programs_of_a_config_are_bounded_in_all`.
pub const MAX_PROTOVM_MEMORY_KB_PER_SESSION: u32 = MAX_PROTOVM_MEMORY_KB;
/// The same for all programs of a trace buffer: there may be several for one data source. Clones copy their states at once. Upstream: no limit.
///
/// Met by `a_buffer_has_as_many_programs_as_it_may`.
pub const MAX_PROTOVM_MEMORY_KB_PER_BUFFER: u32 = 2 * MAX_PROTOVM_MEMORY_KB;
/// When the states in a packet have come to this many bytes, further ones go into another packet. Upstream: one packet for all.
///
/// Met by no test: the states would take 64 MB. `instances_go_into_one_packet_until_they_are_enough` splits smaller ones.
pub const PROTOVMS_PACKET: usize = 64 * 1024 * 1024;
/// Programs that may merge overwritten packets of one trace buffer: each of them may look at all packets. Upstream: no limit.
///
/// Met by `a_buffer_has_as_many_programs_as_it_may`.
pub const MAX_PROTOVMS_PER_BUFFER: usize = 32;
/// Different programs among them that producers may bring for one data source: each may take the memory that the config says. Upstream:
/// no limit.
///
/// Met by `a_buffer_has_as_many_programs_as_it_may`.
pub const MAX_PROTOVM_VERSIONS: usize = 8;
/// Producers that may bring the same program, gone ones included: their packets may still be there to be merged. Upstream: no limit.
///
/// Met by `the_producers_with_the_same_program_are_limited`.
pub const MAX_PROTOVM_PRODUCERS: usize = 0xffff;
/// Instructions and parts of paths in such a program: it is decoded and kept. Upstream: no limit.
///
/// Met by `a_program_has_as_many_parts_as_it_may`.
pub const MAX_PROTOVM_INSTRUCTIONS: usize = 4096;
/// How deep they may be nested. Recursion is as deep. Upstream: until its stack overflows.
///
/// Met by `a_program_is_as_deep_as_it_may_be_and_runs_on_a_small_stack`.
pub const MAX_PROTOVM_DEPTH: usize = 128;
/// Bytes of a packet in several chunks that is put together to be merged: it is copied for that. Upstream: no limit.
///
/// Met by `packets_are_put_together_up_to_a_limit`.
pub const MAX_PROTOVM_PACKET: usize = 32 * 1024 * 1024;
/// Units of work that a program earns with each packet: instructions, steps of paths, fields looked at. A unit takes a few nanoseconds.
/// Upstream: no limit to any of this.
///
/// Met by `work_is_saved_up_to_a_limit_and_a_request_for_more_than_that_gets_nothing`.
pub const PROTOVM_WORK_PER_PACKET: u64 = 1000;
/// Units of work that a program earns with each byte of a packet. Upstream: no limit.
///
/// Met by `work_is_saved_up_to_a_limit_and_a_request_for_more_than_that_gets_nothing`.
pub const PROTOVM_WORK_PER_BYTE: u64 = 64;
/// Units of work that a program may have saved up. Upstream: no limit.
///
/// Met by `work_is_saved_up_to_a_limit_and_a_request_for_more_than_that_gets_nothing`.
pub const MAX_PROTOVM_WORK: u64 = 1 << 24;
/// Units of work that all programs may use for the packets that one request overwrites, however much they have earned: all clients wait for it.
/// Upstream: no limit.
///
/// Met by `packets_that_one_request_overwrites_are_merged_within_bounds_and_later_ones_begin_afresh`.
pub const MAX_PROTOVM_WORK_AT_ONCE: u64 = 1 << 25;

// Connections.

/// Connections at once, where the process may have as many descriptors as they take: each takes memory. Upstream: no limit.
///
/// Met by `however_many_descriptors_there_are_connections_are_bounded`.
pub const MAX_CONNECTIONS: usize = 16 * 1024;
/// Connections at once of one user, half of all, and never more than half of the process's descriptors: one user cannot keep the others out.
/// Upstream: no limit.
///
/// Met by `however_many_descriptors_there_are_connections_are_bounded`.
pub const MAX_CONNECTIONS_PER_UID: usize = 8 * 1024;
/// Bytes that the connections of one user may leave in the host: parts of requests, and replies that are not read. Beyond that, the
/// one that leaves the most is closed. Upstream: no limit.
///
/// Met by `the_bytes_held_for_the_connections_of_a_user_are_bounded`.
pub const MAX_HELD_BYTES_PER_UID: usize = 256 * 1024 * 1024;
/// Descriptors that a connection may come to cost: its socket, its shared memory, and two that it passes. So the process does not run
/// out of them. Upstream: no limit.
///
/// Met by `no_user_gets_more_than_half_of_the_connections`.
pub const DESCRIPTORS_PER_CONNECTION: usize = 4;
/// Descriptors that are left for listeners, trace files and the program itself; half of all if that is less. Upstream: none.
///
/// Met by `no_user_gets_more_than_half_of_the_connections`.
pub const RESERVED_DESCRIPTORS: usize = 128;
