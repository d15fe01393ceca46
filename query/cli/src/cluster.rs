//! A cluster of [Ballista](https://datafusion.apache.org/ballista/)'s whose processes know the functions for tracing: `scheduler` and `executor` are what it is
//! made of, and `query --scheduler` and `report --scheduler` ask it.
//!
//! Ballista asks nobody who they are: a cluster belongs into a network of its own. All of its processes read the same folder, by the same path.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use ballista_core::extension::{SessionConfigExt, SessionStateExt};
use ballista_core::registry::BallistaFunctionRegistry;
use ballista_core::serde::{BallistaLogicalExtensionCodec, BallistaPhysicalExtensionCodec};
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::{SchedulerConfig, TaskDistributionPolicy};
use ballista_scheduler::scheduler_process::{create_scheduler, start_grpc_service_with_listener};
use datafusion_proto::logical_plan::LogicalExtensionCodec;
use datafusion_proto::physical_plan::PhysicalExtensionCodec;
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use ferretto_sql::Engine;
use ferretto_sql::cluster::{Codec, session};
use ferretto_sql::datafusion::error::Result as DataFusionResult;
use ferretto_sql::datafusion::execution::SessionState;
use ferretto_sql::datafusion::prelude::SessionConfig;
use futures::FutureExt;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::interrupt::{self, End, until_ended, until_interrupted};

/// How often an executor looks for results that nobody has removed, and how old they are then, in seconds. The scheduler has the results of a statement removed
/// some minutes after its end; those of a scheduler that ended itself are left.
const CLEAN_EVERY: u64 = 3600;
const LEFT_AFTER: u64 = 24 * 3600;

/// Hand out the parts of statements to executors
#[derive(Debug, clap::Args)]
pub(crate) struct SchedulerArgs {
    /// Where executors and programs that ask connect. Whoever can connect can read and write files, as the user of each executor
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:50050")]
    listen: SocketAddr,
    /// The address by which executors reach the scheduler [default: that of --listen]
    #[arg(long, value_name = "IP")]
    advertise: Option<IpAddr>,
}

/// Run parts of statements for a scheduler
#[derive(Debug, clap::Args)]
pub(crate) struct ExecutorArgs {
    /// Where the scheduler listens
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:50050")]
    scheduler: SocketAddr,
    /// Where others fetch results. The next port is for the scheduler. Whoever can connect can read and write files, as the user of this program
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:50051")]
    listen: SocketAddr,
    /// The address by which the others reach this executor [default: that of --listen]
    #[arg(long, value_name = "IP")]
    advertise: Option<IpAddr>,
    /// How many parts run at a time [default: one for each processor]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    tasks: usize,
    /// The memory for sorts and joins, in MB. Larger ones use temporary files. 0 sets no bound
    #[arg(long, value_name = "MB", default_value_t = 1024)]
    memory: u64,
    /// The folder in which a new one for results between the steps of a statement is made, and removed at the end [default: that for temporary files]
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
}

/// Which scheduler runs a statement.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Scheduler {
    /// Have the executors of this scheduler run the statements. They read the folder of tables by the same path
    #[arg(long, value_name = "IP:PORT")]
    scheduler: Option<SocketAddr>,
}

impl Scheduler {
    /// Returns where plans run, if not here.
    pub(crate) fn engine(&self) -> Option<Arc<dyn Engine>> {
        let scheduler = self.scheduler?;
        Some(Arc::new(Ballista { scheduler }))
    }
}

struct Ballista {
    scheduler: SocketAddr,
}

impl Engine for Ballista {
    fn take_over(&self, mut state: SessionState) -> DataFusionResult<SessionState> {
        let config = std::mem::take(state.config_mut());
        *state.config_mut() = config.with_ballista_logical_extension_codec(logical_codec());
        state.upgrade_for_ballista(format!("http://{}", self.scheduler))
    }
}

/// Returns what went wrong, as a sentence.
pub(crate) fn run_scheduler(arguments: &SchedulerArgs) -> Result<(), String> {
    let advertised = advertised(arguments.listen, arguments.advertise)?;
    interrupt::run(until_interrupted(async {
        let failed = |error| format!("cannot listen at {}: {error}", arguments.listen);
        let listener = TcpListener::bind(arguments.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let config = SchedulerConfig {
            bind_host: host(address.ip()),
            external_host: advertised,
            bind_port: address.port(),
            // Otherwise one executor gets all that it has room for, and others may get nothing.
            task_distribution: TaskDistributionPolicy::RoundRobin,
            override_session_builder: Some(Arc::new(|config| Ok(session(config)))),
            override_logical_codec: Some(logical_codec()),
            override_physical_codec: Some(physical_codec()),
            ..SchedulerConfig::default()
        };
        let failed = |error| format!("the scheduler cannot work: {error}");
        let cluster = BallistaCluster::new_from_config(&config).await.map_err(failed)?;
        let scheduler = create_scheduler::<LogicalPlanNode, PhysicalPlanNode>(cluster, Arc::new(config))
            .await
            .map_err(failed)?;
        println!("listening at {address}");
        start_grpc_service_with_listener(listener, scheduler)
            .await
            .map_err(failed)
    }))
}

/// Returns what went wrong, as a sentence.
pub(crate) fn run_executor(arguments: &ExecutorArgs) -> Result<(), String> {
    let listen = arguments.listen;
    let advertised = advertised(listen, arguments.advertise)?;
    let task_port = match listen.port() {
        0 => return Err("an executor is found by its port; choose another one than 0".to_owned()),
        port => port
            .checked_add(1)
            .ok_or("port 65535 has no next one for the scheduler; choose another")?,
    };
    // Ballista would end without a word where it cannot listen.
    for (port, what) in [
        (listen.port(), "results are fetched"),
        (task_port, "the scheduler gives work"),
    ] {
        let address = SocketAddr::new(listen.ip(), port);
        std::net::TcpListener::bind(address)
            .map_err(|error| format!("cannot listen at {address}, where {what}: {error}"))?;
    }
    // Ballista removes all folders from its own: one that has nothing else.
    let mut work_dir = tempfile::Builder::new();
    work_dir.prefix("ferretto-executor-");
    let work_dir = match &arguments.work_dir {
        Some(folder) => work_dir
            .tempdir_in(folder)
            .map_err(|error| format!("cannot make a folder in {}: {error}", folder.display()))?,
        None => work_dir
            .tempdir()
            .map_err(|error| format!("cannot make a temporary folder: {error}"))?,
    };
    let work_path = work_dir.path().to_str().ok_or_else(|| {
        format!(
            "{} is not UTF-8; choose another folder",
            work_dir.path().display()
        )
    })?;
    let functions = BallistaFunctionRegistry::from(&session(SessionConfig::new()));
    let config = ExecutorProcessConfig {
        bind_host: host(listen.ip()),
        external_host: Some(advertised),
        port: listen.port(),
        grpc_port: task_port,
        scheduler_host: host(arguments.scheduler.ip()),
        scheduler_port: arguments.scheduler.port(),
        vcores: arguments.tasks,
        work_dir: Some(work_path.to_owned()),
        job_data_ttl_seconds: LEFT_AFTER,
        job_data_clean_up_interval_seconds: CLEAN_EVERY,
        memory_pool_size: Some(arguments.memory.saturating_mul(1 << 20)),
        override_function_registry: Some(Arc::new(functions)),
        override_physical_codec: Some(physical_codec()),
        ..ExecutorProcessConfig::default()
    };
    let scheduler = arguments.scheduler;
    interrupt::run(async {
        // Ballista hears these signals itself, and says goodbye to the scheduler.
        let mut terminated = signal(SignalKind::terminate())
            .map_err(|error| format!("SIGTERM cannot be listened for: {error}"))?;
        let work = async {
            start_executor_process(Arc::new(config))
                .await
                .map_err(|error| format!("the executor of the scheduler at {scheduler} cannot work: {error}"))
        };
        match until_ended(work).await? {
            End::ByItself if terminated.recv().now_or_never().is_none() => Err(format!(
                "the executor of the scheduler at {scheduler} has ended: the scheduler stopped it, or a part of it failed"
            )),
            _ => Ok(()),
        }
    })
}

/// Returns a host as it stands in a URL.
fn host(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// Returns the host by which others reach an address.
fn advertised(listen: SocketAddr, advertise: Option<IpAddr>) -> Result<String, String> {
    let ip = advertise.unwrap_or(listen.ip());
    match ip.is_unspecified() {
        true => Err(format!(
            "{ip} is every address of this machine, and the others need one of them: name it with --advertise"
        )),
        false => Ok(host(ip)),
    }
}

/// How the plans that the program that asks sends to the scheduler are written.
fn logical_codec() -> Arc<dyn LogicalExtensionCodec> {
    Arc::new(Codec(BallistaLogicalExtensionCodec::default()))
}

/// How the plans that the scheduler sends to executors are written.
fn physical_codec() -> Arc<dyn PhysicalExtensionCodec> {
    Arc::new(Codec(BallistaPhysicalExtensionCodec::default()))
}
