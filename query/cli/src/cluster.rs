//! A cluster of [Ballista](https://datafusion.apache.org/ballista/)'s whose processes know the functions for tracing: `scheduler` and `executor` are what it is
//! made of, and `query --scheduler` and `report --scheduler` ask it.
//!
//! Ballista asks nobody who they are: a cluster belongs into a network of its own. All of its processes read the same folder, by the same path.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use ballista_core::extension::SessionStateExt;
use ballista_core::registry::BallistaFunctionRegistry;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::{SchedulerConfig, TaskDistributionPolicy};
use ballista_scheduler::scheduler_process::{create_scheduler, start_grpc_service_with_listener};
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use ferretto_sql::datafusion::error::Result as DataFusionResult;
use ferretto_sql::datafusion::execution::{SessionState, SessionStateBuilder};
use ferretto_sql::datafusion::prelude::{SessionConfig, SessionContext};
use ferretto_sql::{Engine, register_functions};
use tokio::net::TcpListener;

use crate::interrupt::{self, until_interrupted};

/// Hand out the parts of statements to executors
#[derive(Debug, clap::Args)]
pub(crate) struct SchedulerArgs {
    /// Where executors and programs that ask connect. Whoever can connect can read and write the files that executors can
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:50050")]
    listen: SocketAddr,
}

/// Run parts of statements for a scheduler
#[derive(Debug, clap::Args)]
pub(crate) struct ExecutorArgs {
    /// Where the scheduler listens
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:50050")]
    scheduler: SocketAddr,
    /// Where others fetch results. The next port is for the scheduler
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:50051")]
    listen: SocketAddr,
    /// How many parts run at a time [default: one for each processor]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    tasks: usize,
    /// The memory for sorts and joins, in MB. Larger ones use temporary files
    #[arg(long, value_name = "MB", default_value_t = 1024)]
    memory: u64,
    /// The folder for results between the steps of a statement [default: a temporary one]
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
    fn take_over(&self, state: SessionState) -> DataFusionResult<SessionState> {
        state.upgrade_for_ballista(format!("http://{}", self.scheduler))
    }
}

/// Returns what went wrong, as a sentence.
pub(crate) fn run_scheduler(arguments: &SchedulerArgs) -> Result<(), String> {
    interrupt::run(until_interrupted(async {
        let failed = |error| format!("cannot listen at {}: {error}", arguments.listen);
        let listener = TcpListener::bind(arguments.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let config = SchedulerConfig {
            bind_host: address.ip().to_string(),
            external_host: address.ip().to_string(),
            bind_port: address.port(),
            // Otherwise one executor gets all that it has room for, and others may get nothing.
            task_distribution: TaskDistributionPolicy::RoundRobin,
            override_session_builder: Some(Arc::new(|config| Ok(session(config)))),
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
    let Some(task_port) = arguments.listen.port().checked_add(1) else {
        return Err("port 65535 has no next one for the scheduler; choose another".to_owned());
    };
    // Of its own folder, Ballista would remove nothing.
    let temporary;
    let work_dir = match &arguments.work_dir {
        Some(folder) => folder.as_path(),
        None => {
            temporary =
                tempfile::tempdir().map_err(|error| format!("cannot make a temporary folder: {error}"))?;
            temporary.path()
        }
    };
    let work_dir = work_dir
        .to_str()
        .ok_or_else(|| format!("{} is not UTF-8; choose another folder", work_dir.display()))?;
    let functions = BallistaFunctionRegistry::from(&session(SessionConfig::new()));
    let config = ExecutorProcessConfig {
        bind_host: arguments.listen.ip().to_string(),
        external_host: Some(arguments.listen.ip().to_string()),
        port: arguments.listen.port(),
        grpc_port: task_port,
        scheduler_host: arguments.scheduler.ip().to_string(),
        scheduler_port: arguments.scheduler.port(),
        vcores: arguments.tasks,
        work_dir: Some(work_dir.to_owned()),
        memory_pool_size: Some(arguments.memory.saturating_mul(1 << 20)),
        override_function_registry: Some(Arc::new(functions)),
        ..ExecutorProcessConfig::default()
    };
    interrupt::run(until_interrupted(async {
        start_executor_process(Arc::new(config)).await.map_err(|error| {
            format!(
                "the executor of the scheduler at {} cannot work: {error}",
                arguments.scheduler
            )
        })
    }))
}

/// A session that knows the functions for tracing.
fn session(config: SessionConfig) -> SessionState {
    let state = SessionStateBuilder::new()
        .with_config(config)
        .with_default_features()
        .build();
    let context = SessionContext::new_with_state(state);
    register_functions(&context);
    context.state()
}
