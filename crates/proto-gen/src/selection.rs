//! Which parts of the schema become what: the one place to edit when more of it is needed in Rust.

/// Messages and what they reach, less some.
#[derive(Debug)]
pub struct Selection {
    /// Full names of messages (`.perfetto.protos.TraceConfig`), and of enums that no field has as its type.
    pub roots: &'static [&'static str],
    /// Full names of messages or fields that are left out.
    pub without: &'static [&'static str],
    /// Messages of which only these fields are kept.
    pub only: &'static [(&'static str, &'static [&'static str])],
}

impl Selection {
    /// Whether the message or field of this full name is kept.
    #[must_use]
    pub fn keeps(&self, name: &str) -> bool {
        let listed = name.rsplit_once('.').and_then(|(message, field)| {
            let fields = self.fields_of(message)?;
            Some(fields.contains(&field))
        });
        listed.unwrap_or_else(|| !self.without.contains(&name))
    }

    /// The only fields of this message that are kept, if not all are.
    #[must_use]
    pub fn fields_of(&self, message: &str) -> Option<&'static [&'static str]> {
        let (_, fields) = self.only.iter().find(|(name, _)| *name == message)?;
        Some(fields)
    }
}

/// Owned structs. Data sources' configs of others than us stay in the unknown fields of `DataSourceConfig`:
/// the service passes them on, it never looks inside.
pub const MESSAGES: Selection = Selection {
    roots: &[
        // The socket protocol.
        ".perfetto.protos.IPCFrame",
        ".perfetto.protos.InitRelayRequest",
        ".perfetto.protos.InitializeConnectionRequest",
        ".perfetto.protos.InitializeConnectionResponse",
        ".perfetto.protos.RegisterDataSourceRequest",
        ".perfetto.protos.RegisterDataSourceResponse",
        ".perfetto.protos.UpdateDataSourceRequest",
        ".perfetto.protos.UpdateDataSourceResponse",
        ".perfetto.protos.UnregisterDataSourceRequest",
        ".perfetto.protos.UnregisterDataSourceResponse",
        ".perfetto.protos.RegisterTraceWriterRequest",
        ".perfetto.protos.RegisterTraceWriterResponse",
        ".perfetto.protos.UnregisterTraceWriterRequest",
        ".perfetto.protos.UnregisterTraceWriterResponse",
        ".perfetto.protos.CommitDataRequest",
        ".perfetto.protos.CommitDataResponse",
        ".perfetto.protos.NotifyDataSourceStartedRequest",
        ".perfetto.protos.NotifyDataSourceStartedResponse",
        ".perfetto.protos.NotifyDataSourceStoppedRequest",
        ".perfetto.protos.NotifyDataSourceStoppedResponse",
        ".perfetto.protos.ActivateTriggersRequest",
        ".perfetto.protos.ActivateTriggersResponse",
        ".perfetto.protos.GetAsyncCommandRequest",
        ".perfetto.protos.GetAsyncCommandResponse",
        ".perfetto.protos.SyncRequest",
        ".perfetto.protos.SyncResponse",
        ".perfetto.protos.EnableTracingRequest",
        ".perfetto.protos.EnableTracingResponse",
        ".perfetto.protos.StartTracingRequest",
        ".perfetto.protos.StartTracingResponse",
        ".perfetto.protos.ChangeTraceConfigRequest",
        ".perfetto.protos.ChangeTraceConfigResponse",
        ".perfetto.protos.DisableTracingRequest",
        ".perfetto.protos.DisableTracingResponse",
        ".perfetto.protos.ReadBuffersRequest",
        ".perfetto.protos.ReadBuffersResponse",
        ".perfetto.protos.FreeBuffersRequest",
        ".perfetto.protos.FreeBuffersResponse",
        ".perfetto.protos.FlushRequest",
        ".perfetto.protos.FlushResponse",
        ".perfetto.protos.DetachRequest",
        ".perfetto.protos.DetachResponse",
        ".perfetto.protos.AttachRequest",
        ".perfetto.protos.AttachResponse",
        ".perfetto.protos.GetTraceStatsRequest",
        ".perfetto.protos.GetTraceStatsResponse",
        ".perfetto.protos.ObserveEventsRequest",
        ".perfetto.protos.ObserveEventsResponse",
        ".perfetto.protos.QueryServiceStateRequest",
        ".perfetto.protos.ActivateTriggersRequest",
        ".perfetto.protos.QueryServiceStateResponse",
        ".perfetto.protos.RegisterDataSourceRequest",
        ".perfetto.protos.UnregisterDataSourceRequest",
        ".perfetto.protos.QueryCapabilitiesRequest",
        ".perfetto.protos.QueryCapabilitiesResponse",
        ".perfetto.protos.SaveTraceForBugreportRequest",
        ".perfetto.protos.SaveTraceForBugreportResponse",
        ".perfetto.protos.CloneSessionRequest",
        ".perfetto.protos.CloneSessionResponse",
        ".perfetto.protos.InitRelayRequest",
        ".perfetto.protos.InitRelayResponse",
        ".perfetto.protos.SyncClockRequest",
        ".perfetto.protos.SyncClockResponse",
        // What users of the SDK give of their own.
        ".perfetto.protos.TrackDescriptor",
        // What is read from and written into traces.
        ".perfetto.protos.Trace",
        // Bits of fields that are plain numbers.
        ".perfetto.protos.TracePacket.SequenceFlags",
        ".perfetto.protos.TracePacket.DataLossReason",
        // Numbers in stack samples, which are only written.
        ".perfetto.protos.StackSample.Mode",
        ".perfetto.protos.StackSample.Unit",
        ".perfetto.protos.StackSample.CounterDescriptor.Scope",
        // Numbers in descriptors.
        ".perfetto.protos.FieldDescriptorProto.Label",
        ".perfetto.protos.FieldDescriptorProto.Type",
    ],
    without: &[
        ".perfetto.protos.DataSourceConfig.java_hprof_config",
        ".perfetto.protos.DataSourceConfig.android_power_config",
        ".perfetto.protos.DataSourceConfig.android_log_config",
        ".perfetto.protos.DataSourceConfig.gpu_counter_config",
        ".perfetto.protos.DataSourceConfig.android_game_intervention_list_config",
        ".perfetto.protos.DataSourceConfig.packages_list_config",
        ".perfetto.protos.DataSourceConfig.vulkan_memory_config",
        ".perfetto.protos.DataSourceConfig.android_polled_state_config",
        ".perfetto.protos.DataSourceConfig.android_system_property_config",
        ".perfetto.protos.DataSourceConfig.statsd_tracing_config",
        ".perfetto.protos.DataSourceConfig.v8_config",
        ".perfetto.protos.DataSourceConfig.network_packet_trace_config",
        ".perfetto.protos.DataSourceConfig.surfaceflinger_layers_config",
        ".perfetto.protos.DataSourceConfig.surfaceflinger_transactions_config",
        ".perfetto.protos.DataSourceConfig.android_sdk_sysprop_guard_config",
        ".perfetto.protos.DataSourceConfig.etw_config",
        ".perfetto.protos.DataSourceConfig.protolog_config",
        ".perfetto.protos.DataSourceConfig.android_input_event_config",
        ".perfetto.protos.DataSourceConfig.pixel_modem_config",
        ".perfetto.protos.DataSourceConfig.windowmanager_config",
        ".perfetto.protos.DataSourceConfig.chromium_system_metrics",
        ".perfetto.protos.DataSourceConfig.kernel_wakelocks_config",
        ".perfetto.protos.DataSourceConfig.gpu_renderstages_config",
        ".perfetto.protos.DataSourceConfig.chromium_histogram_samples",
        ".perfetto.protos.DataSourceConfig.app_wakelocks_config",
        ".perfetto.protos.DataSourceConfig.cpu_per_uid_config",
        ".perfetto.protos.DataSourceConfig.user_list_config",
        ".perfetto.protos.DataSourceConfig.inputmethod_config",
        ".perfetto.protos.DataSourceConfig.android_aflags_config",
        ".perfetto.protos.DataSourceConfig.display_video_config",
        ".perfetto.protos.DataSourceConfig.chromium_stack_sampling_profiler",
        ".perfetto.protos.DataSourceConfig.chromium_sampling_heap_profiler",
        ".perfetto.protos.DataSourceConfig.qnx_config",
        ".perfetto.protos.DataSourceConfig.chrome_config",
        ".perfetto.protos.DataSourceConfig.interceptor_config",
        ".perfetto.protos.DataSourceConfig.for_testing",
        ".perfetto.protos.DataSourceDescriptor.gpu_counter_descriptor",
        ".perfetto.protos.ExtensionDescriptor.extension_set",
        ".perfetto.protos.TracePacket.streaming_profile_packet",
        ".perfetto.protos.TracePacket.stack_sample",
        ".perfetto.protos.TracePacketDefaults.stack_sample_defaults",
        ".perfetto.protos.InternedData.stack_sample_task_contexts",
        ".perfetto.protos.InternedData.stack_sample_execution_contexts",
        ".perfetto.protos.InternedData.stack_sample_counter_descriptors",
        ".perfetto.protos.InternedData.stack_sample_async_context_descriptors",
    ],
    // The tests compare these of 600 kernel events with the kernel's own rendering.
    only: &[(
        ".perfetto.protos.FtraceEvent",
        &[
            "timestamp",
            "pid",
            "common_flags",
            "print",
            "sched_switch",
            "cpu_idle",
            "sched_waking",
            "softirq_entry",
            "softirq_exit",
            "softirq_raise",
            "workqueue_execute_start",
            "task_newtask",
            "task_rename",
            "sched_process_exec",
            "sched_process_exit",
            "sched_process_fork",
            "generic",
            "sys_enter",
            "sys_exit",
            "kprobe_event",
        ],
    )],
};

/// Those roots of [`MESSAGES`] that only who reads traces needs. What no other root, and no writer, reaches is compiled with the
/// feature `trace` of `ferretto-proto` alone.
pub const ONLY_IN_TRACES: &[&str] = &[".perfetto.protos.Trace"];

/// Fields of [`MESSAGES`] that belong to data sources of the daemons. Types that only these fields reach are compiled with the feature
/// `probes` of `ferretto-proto`, like the fields. Without it the fields stay unknown, as the configs of others' data sources always do.
pub const ONLY_FOR_PROBES: &[&str] = &[
    ".perfetto.protos.DataSourceConfig.ftrace_config",
    ".perfetto.protos.DataSourceConfig.process_stats_config",
    ".perfetto.protos.DataSourceConfig.sys_stats_config",
    ".perfetto.protos.DataSourceConfig.system_info_config",
    ".perfetto.protos.DataSourceConfig.journald_config",
    ".perfetto.protos.DataSourceConfig.inode_file_config",
    ".perfetto.protos.DataSourceConfig.frozen_ftrace_config",
    ".perfetto.protos.DataSourceConfig.perf_event_config",
    ".perfetto.protos.DataSourceConfig.heapprofd_config",
];

/// Folders of the schema whose [`WRITERS`] need that feature too, and so do the writers that no other one reaches.
pub const FOLDERS_OF_PROBES: &[&str] = &[
    "perfetto/trace/ftrace",
    "perfetto/trace/generic_kernel",
    "perfetto/trace/profiling",
    "perfetto/trace/ps",
    "perfetto/trace/sys_stats",
    "perfetto/trace/system_info",
];

/// Writers in these folders that every build has all the same: programs write call stacks, too.
pub const OF_PROGRAMS: &[&str] = &[
    ".perfetto.protos.Callstack",
    ".perfetto.protos.Frame",
    ".perfetto.protos.InternedString",
    ".perfetto.protos.Mapping",
    ".perfetto.protos.StackSample",
    ".perfetto.protos.StackSample.CounterDescriptor",
    ".perfetto.protos.StackSample.ExecutionContext",
    ".perfetto.protos.StackSample.TaskContext",
    ".perfetto.protos.StackSampleDefaults",
];

/// Those of [`MESSAGES`] whose structs have the numbers of their fields as constants, because code reads or writes them field by field as
/// well. Messages with a typed writer have the numbers there.
pub const NUMBERED: &[&str] = &[
    // Configs.
    ".perfetto.protos.TraceConfig",
    ".perfetto.protos.TraceConfig.BufferConfig",
    ".perfetto.protos.TraceConfig.CompressionConfig",
    ".perfetto.protos.TraceConfig.DataSource",
    ".perfetto.protos.TraceConfig.IncrementalStateConfig",
    ".perfetto.protos.TraceConfig.TraceFilter.StringFilterRule",
    ".perfetto.protos.TraceConfig.TriggerConfig",
    ".perfetto.protos.TraceConfig.TriggerConfig.Trigger",
    ".perfetto.protos.DataSourceConfig",
    ".perfetto.protos.FtraceConfig",
    ".perfetto.protos.PerfEventConfig.CallstackSampling",
    ".perfetto.protos.TrackEventConfig",
    ".perfetto.protos.VmInstruction",
    ".perfetto.protos.VmOpRegLoad",
    ".perfetto.protos.VmOpSelect",
    // What the service and its clients say to each other.
    ".perfetto.protos.AttachResponse",
    ".perfetto.protos.ChangeTraceConfigRequest",
    ".perfetto.protos.DataSourceDescriptor",
    ".perfetto.protos.EnableTracingRequest",
    ".perfetto.protos.GetAsyncCommandResponse",
    ".perfetto.protos.GetAsyncCommandResponse.ClearIncrementalState",
    ".perfetto.protos.GetAsyncCommandResponse.Flush",
    ".perfetto.protos.GetAsyncCommandResponse.SetupDataSource",
    ".perfetto.protos.GetAsyncCommandResponse.SetupTracing",
    ".perfetto.protos.GetAsyncCommandResponse.StartDataSource",
    ".perfetto.protos.GetAsyncCommandResponse.StopDataSource",
    ".perfetto.protos.InitRelayRequest",
    ".perfetto.protos.InitializeConnectionRequest",
    ".perfetto.protos.ActivateTriggersRequest",
    ".perfetto.protos.QueryServiceStateResponse",
    ".perfetto.protos.RegisterDataSourceRequest",
    ".perfetto.protos.UnregisterDataSourceRequest",
    ".perfetto.protos.TracingServiceState",
    ".perfetto.protos.TracingServiceState.DataSource",
];

/// What text configs may name, and what traces are printed with: a trace has its config in it.
pub const TEXT: Selection = Selection {
    roots: &[".perfetto.protos.Trace"],
    without: &[],
    only: &[],
};

/// Typed writers for packets on their way into a trace, for the frames that are sent most, and for descriptors, which are read field by
/// field too.
pub const WRITERS: Selection = Selection {
    roots: &[
        ".perfetto.protos.Trace",
        ".perfetto.protos.IPCFrame",
        ".perfetto.protos.CommitDataRequest",
        ".perfetto.protos.ReadBuffersResponse",
        ".perfetto.protos.FileDescriptorSet",
    ],
    without: &[
        ".perfetto.protos.FieldOptions.uninterpreted_option",
        ".perfetto.protos.OneofDescriptorProto.options",
        // Passed on as bytes that somebody else encoded.
        ".perfetto.protos.TracePacket.trace_config",
        ".perfetto.protos.TracePacket.ProtoVms.Instance.program",
        ".perfetto.protos.TracePacket.ProtoVms.Instance.state",
        ".perfetto.protos.ExtensionDescriptor.extension_set",
        ".perfetto.protos.TracePacket.streaming_profile_packet",
        ".perfetto.protos.InternedData.stack_sample_async_context_descriptors",
    ],
    // The probes write kernel events by the table that `ftrace_events` makes. These are the events that code treats by name.
    only: &[(
        ".perfetto.protos.FtraceEvent",
        &[
            "timestamp",
            "pid",
            "common_flags",
            "sched_switch",
            "sched_waking",
            "task_rename",
            "generic",
            "sys_enter",
            "sys_exit",
            "kprobe_event",
        ],
    )],
};
