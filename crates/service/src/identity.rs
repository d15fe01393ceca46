//! The description of a service and its machine in every trace. The driver of the service collects it once, at the start.

use ferretto_proto::messages::{SystemInfo, Utsname};

use crate::ids::MachineId;

/// The description of the service and its machine in every trace.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// User of the service: the trusted uid of its own packets.
    pub uid: u32,
    /// Version line, as `--version` prints it.
    pub version: String,
    /// Name of this machine, by which a config may pick it (`machine_name_filter`); `host` does as well.
    pub machine_name: String,
    /// The machine of its own packets. [`MachineId::HOST`], unless the service records for one program that distinguishes its traces by an id; then
    /// the program's producers are of that machine, too.
    pub machine: MachineId,
    /// Facts for the `SystemInfo` packet.
    pub system: SystemFacts,
    /// Schemas of extensions that are written into every trace.
    pub extension_descriptors: Vec<ExtensionDescriptor>,
}

impl Identity {
    /// The message that describes the machine.
    pub fn system_info(&self) -> SystemInfo {
        let facts = &self.system;
        let utsname = facts.utsname.clone();
        SystemInfo {
            tracing_service_version: Some(self.version.clone()),
            timezone_off_mins: facts.timezone_offset_minutes,
            utsname: utsname
                .map(|[sysname, release, version, machine]| Utsname {
                    sysname: Some(sysname),
                    release: Some(release),
                    version: Some(version),
                    machine: Some(machine),
                    ..Default::default()
                })
                .into(),
            page_size: facts.page_size,
            system_ram_bytes: facts.ram_bytes,
            num_cpus: facts.cpus,
            ..Default::default()
        }
    }
}

/// The schema of extensions that producers of this machine use, so that the trace can be understood without them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtensionDescriptor {
    /// Its origin; may be empty.
    pub name: String,
    /// A `FileDescriptorSet`.
    pub bytes: Vec<u8>,
    /// The encoding of `bytes`.
    pub encoding: DescriptorEncoding,
}

/// The encoding of an [`ExtensionDescriptor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DescriptorEncoding {
    /// As they are.
    Plain,
    /// Compressed, as `gzip` does it.
    Gzip,
}

/// The machine's description in `SystemInfo`; absent facts are left out.
#[derive(Clone, Debug, Default)]
pub struct SystemFacts {
    /// `uname`: system name, release, version, machine.
    pub utsname: Option<[String; 4]>,
    /// Offset of local time from UTC in minutes, until [`Service::local_time_offset`](crate::Service::local_time_offset) tells another.
    pub timezone_offset_minutes: Option<i32>,
    /// Size of a memory page in bytes.
    pub page_size: Option<u32>,
    /// Processors that are configured.
    pub cpus: Option<u32>,
    /// Memory in bytes.
    pub ram_bytes: Option<u64>,
}
