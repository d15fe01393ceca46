//! The producer of `traced_probes`: all data sources of this crate.
//!
//! The daemon calls [`add_sources`] once. The [`Runtime`] drives the data sources and the connection to the
//! service.

use std::sync::Arc;
use std::time::Duration;

use ferretto_client::runtime::instance_threads::ThreadPerInstance;
use ferretto_client::runtime::probe::{Probes, standalone};
use ferretto_client::runtime::{MemoryOptions, ProducerProgram, Runtime};

use crate::ftrace::frozen::{self, FrozenFtrace};
use crate::ftrace::instances::{Ftrace, Listeners, TracefsPolicy};
use crate::ftrace::restore::JournalDir;
use crate::inode_file_map::{self, InodeFileMap, KnownFiles};
use crate::journald::Journald;
use crate::kernel_files::KernelRoots;
use crate::metatrace::{self, Metatrace};
use crate::process_stats::{self, ProcessStats};
use crate::sys_stats::{self, SysStats};
use crate::sysfs_power::{self, SysfsPower};
use crate::system_info::{self, SystemInfo};

/// The producer's name, by which consumers find these data sources.
pub const PRODUCER_NAME: &str = "perfetto.traced_probes";

/// The sizes of shared memory that the producer asks for, as upstream's does.
pub const MEMORY: MemoryOptions = MemoryOptions {
    size: 2 * 1024 * 1024,
    page_size: 32 * 1024,
    batch_commits: Duration::ZERO,
};

/// Offers all data sources. Returns `linux.ftrace`, whose descriptors the caller has to watch.
pub fn add_sources(
    runtime: &mut Runtime,
    program: &Arc<dyn ProducerProgram>,
    journal_dir: Option<JournalDir>,
    tracefs: TracefsPolicy,
) -> Arc<Ftrace> {
    let roots = KernelRoots::default();
    let process_stats = Probes::new(process_stats::descriptor(), program.clone(), {
        let roots = roots.clone();
        move |instance| ProcessStats::from_config(&instance.config, &roots).map_err(|error| error.to_string())
    });
    let sys_stats = Probes::new(standalone(sys_stats::NAME), program.clone(), {
        let roots = roots.clone();
        move |instance| Ok(SysStats::from_config(&instance.config, &roots))
    });
    let sysfs_power = Probes::new(standalone(sysfs_power::NAME), program.clone(), {
        let roots = roots.clone();
        let program = program.clone();
        move |instance| Ok(SysfsPower::new(&roots, program.clone(), instance.serial))
    });
    let inode_file_map = Probes::new(standalone(inode_file_map::NAME), program.clone(), {
        let roots = roots.clone();
        let known = Arc::new(KnownFiles::default());
        move |instance| Ok(InodeFileMap::from_config(&instance.config, &roots, known.clone()))
    });
    let system_info = Probes::new(standalone(system_info::NAME), program.clone(), move |instance| {
        Ok(SystemInfo::from_config(&instance.config, &roots))
    });
    let metatrace = Probes::new(standalone(metatrace::NAME), program.clone(), |_| {
        Ok(Metatrace::default())
    });
    let frozen_ftrace = Probes::new(standalone(frozen::NAME), program.clone(), {
        let program = program.clone();
        move |instance| FrozenFtrace::find(&instance.config, tracefs, &*program)
    });
    let journald = ThreadPerInstance::new(program.clone(), Journald::new(program.clone()));
    let process_stats = Arc::new(process_stats);
    let inode_file_map = Arc::new(inode_file_map);
    let listeners = Listeners {
        process_stats: process_stats.clone(),
        inode_file_map: inode_file_map.clone(),
    };
    let ftrace = Ftrace::new(program.clone(), listeners, journal_dir, tracefs);
    let ftrace = Arc::new(ftrace);
    // `linux.ftrace` is added first, so that at a common deadline threads are seen before they are sampled.
    runtime.add_source(None, ftrace.clone());
    runtime.add_source(None, process_stats);
    runtime.add_source(None, Arc::new(sys_stats));
    runtime.add_source(None, Arc::new(sysfs_power));
    runtime.add_source(None, Arc::new(system_info));
    runtime.add_source(None, Arc::new(metatrace));
    runtime.add_source(None, Arc::new(journald));
    runtime.add_source(None, inode_file_map);
    runtime.add_source(None, Arc::new(frozen_ftrace));
    ftrace
}
