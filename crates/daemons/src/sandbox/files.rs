//! Files, ports and signals, with Landlock (Linux 5.13). Descriptors that are open already, or that clients pass, are not affected.
//!
//! A process under Landlock may not look into processes outside of it, whatever its capabilities and its rules: `/proc/PID/root`, `exe`, `mem` and the
//! links of `fd` are closed, and to those without CAP_PERFMON `maps` and `smaps_rollup`, too, as to all on older kernels. So only a daemon that looks into
//! no other process has [`Files`].

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ferretto_ipc::Address;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};

use crate::log;

/// The newest rights that are taken away. Every later version of Landlock brings more, each of which may take something that the daemons need.
const RIGHTS: ABI = ABI::V6;

/// The files that a daemon may use. Those that do not exist are left out.
#[derive(Debug, Default)]
pub struct Files {
    /// Files and folders that it reads.
    pub read: Vec<PathBuf>,
    /// Folders in which it makes, reads, writes and removes files.
    pub output: Vec<PathBuf>,
    /// Folders out of which it removes its own files.
    pub remove: Vec<PathBuf>,
    /// TCP ports that it connects to.
    pub connect: Vec<u16>,
}

impl Files {
    /// The files of a daemon that only passes bytes on: it connects to this address, and removes its own sockets at its end. To be called in the folder in
    /// which the daemon was started. `None` if the address has a name: to look that up, the C library reads files of its own choice, and connects as it
    /// likes.
    pub fn of_forwarder(to: &Address, own: &[Address]) -> Option<Files> {
        let connect = match to {
            Address::Tcp { host, port } => {
                host.parse::<IpAddr>().ok()?;
                vec![*port]
            }
            Address::Unix(_) | Address::Abstract(_) | Address::Vsock { .. } => Vec::new(),
        };
        let sockets = own.iter().filter_map(Address::path);
        let sockets = sockets.filter_map(|path| std::path::absolute(path).ok());
        Some(Files {
            remove: sockets
                .filter_map(|path| path.parent().map(Path::to_owned))
                .collect(),
            connect,
            ..Files::default()
        })
    }

    pub(super) fn enforce(self) {
        match self.restrict() {
            Ok(RulesetStatus::FullyEnforced) => {}
            Ok(RulesetStatus::PartiallyEnforced) => log::info(format_args!(
                "sandbox: this kernel's Landlock is older than Linux 6.12, and restricts files only in part"
            )),
            Ok(RulesetStatus::NotEnforced) => log::info(format_args!(
                "sandbox: files are not restricted, because this kernel has no Landlock"
            )),
            Err(error) => log::warning(format_args!("sandbox: files are not restricted: {error}")),
        }
    }

    fn restrict(self) -> Result<RulesetStatus, RulesetError> {
        let read: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::ReadDir;
        let remove: BitFlags<AccessFs> = AccessFs::RemoveFile.into();
        let output = read | remove | AccessFs::WriteFile | AccessFs::MakeReg | AccessFs::Truncate;
        let ports = self.connect.into_iter();
        let connect = ports.map(|port| Ok::<_, RulesetError>(NetPort::new(port, AccessNet::ConnectTcp)));
        let status = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(RIGHTS))?
            // None is granted but for these connections: the sockets that listen are open by now.
            .handle_access(AccessNet::from_all(RIGHTS))?
            .scope(Scope::Signal)?
            .create()?
            .add_rules(path_beneath_rules(self.read, read))?
            .add_rules(path_beneath_rules(self.output, output))?
            .add_rules(path_beneath_rules(self.remove, remove))?
            .add_rules(connect)?
            .restrict_self()?;
        Ok(status.ruleset)
    }
}
