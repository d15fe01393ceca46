//! This machine, as far as recording depends on it. Everything here only looks; nothing changes the machine.
//!
//! The checks of `doctor` judge it; `list`, `status` and `open` report it. [`ThisMachine`] is the real one; tests have one made of text.

mod ftrace_use;
mod identity;
mod ports;
mod processes;

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ferretto_client::consumer::{ConsumerEndpoint, StateScope};
use ferretto_ipc::socket_names::{self, SocketNameError};
use ferretto_ipc::transport::{PeerCredentials, TransportError};
use ferretto_ipc::{Address, Stream};
use ferretto_proto::messages::TracingServiceState;
use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;

use crate::ask;
use crate::figures::Word;
pub(crate) use ftrace_use::{FtraceUse, Reader};
pub(crate) use identity::{Identity, Namespace, user_name};
pub(crate) use ports::{Listening, holder_of, listening};
pub(crate) use processes::{Holder, all_processes, process_named, with_socket};

/// The most bytes of a file that are read. The longest files in practice are tables of mounts and sockets.
const LONGEST_FILE: u64 = 4 << 20;
/// The time that a service has to report its state. A working service answers at once, except on an overloaded machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// A kind of access of this user to a file or folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Read the file, list the folder.
    Read,
    /// Write to the file, make files in the folder, connect to the socket.
    Write,
    /// Reach the files in the folder.
    Enter,
}

/// The owner and permissions of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The lower twelve bits of the mode.
    pub(crate) mode: u32,
}

/// The answer at a consumer socket.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// A service reported its state.
    Service {
        state: Box<TracingServiceState>,
        /// The process that listens, at the time when it began to.
        listener: Option<PeerCredentials>,
    },
    /// There is no such socket.
    Absent,
    /// The socket exists, but nobody listens any more.
    Stale,
    /// This user may not connect.
    Denied,
    /// A process listens, but is of no use for this reason.
    Useless(String),
}

/// The operations by which the checks examine a machine.
pub(crate) trait Machine {
    /// Reads the text of a file, up to a limit.
    fn read(&self, path: &str) -> io::Result<String>;
    /// Returns the names in a folder.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;
    /// Returns the target of a symbolic link.
    fn link(&self, path: &str) -> io::Result<String>;
    /// Returns the owner and permissions of a file.
    fn owner(&self, path: &str) -> io::Result<Owner>;
    /// Succeeds if this user has this access.
    fn allows(&self, path: &str, access: Access) -> io::Result<()>;
    /// Returns the bytes that this user can still write to the file system of this folder.
    fn free_space(&self, folder: &str) -> io::Result<u64>;
    /// Returns an environment variable.
    fn variable(&self, name: &str) -> Option<String>;
    /// Returns the address at which consumers look for the service.
    fn consumer_address(&self) -> Result<Address, SocketNameError>;
    /// Returns the addresses at which a service expects producers.
    fn producer_addresses(&self) -> Result<Vec<Address>, SocketNameError>;
    /// Returns the command for `ferretto` that also works for root, whose `PATH` may differ.
    fn program(&self) -> String;
    /// Asks the service at a consumer socket for its state.
    fn ask(&self, address: &Address) -> Answer;
}

/// The machine on which this process runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ThisMachine;

impl Machine for ThisMachine {
    fn read(&self, path: &str) -> io::Result<String> {
        let mut bytes = Vec::new();
        File::open(path)?.take(LONGEST_FILE).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    }

    fn link(&self, path: &str) -> io::Result<String> {
        std::fs::read_link(path).map(|to: PathBuf| to.to_string_lossy().into_owned())
    }

    fn owner(&self, path: &str) -> io::Result<Owner> {
        let metadata = std::fs::metadata(path)?;
        Ok(Owner {
            uid: metadata.uid(),
            gid: metadata.gid(),
            mode: metadata.mode() & 0o7777,
        })
    }

    fn allows(&self, path: &str, access: Access) -> io::Result<()> {
        use rustix::fs::Access as Bits;
        let bits = match access {
            Access::Read => Bits::READ_OK,
            Access::Write => Bits::WRITE_OK,
            Access::Enter => Bits::EXEC_OK,
        };
        Ok(rustix::fs::accessat(
            CWD,
            Path::new(path),
            bits,
            AtFlags::EACCESS,
        )?)
    }

    fn free_space(&self, folder: &str) -> io::Result<u64> {
        let system = rustix::fs::statvfs(folder)?;
        Ok(system.f_bavail.saturating_mul(system.f_frsize))
    }

    fn variable(&self, name: &str) -> Option<String> {
        std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
    }

    fn consumer_address(&self) -> Result<Address, SocketNameError> {
        socket_names::consumer_address()
    }

    fn producer_addresses(&self) -> Result<Vec<Address>, SocketNameError> {
        socket_names::producer_addresses()
    }

    fn program(&self) -> String {
        /// The folders in which `sudo` looks for programs.
        const USUAL: [&str; 6] = [
            "/bin",
            "/sbin",
            "/usr/bin",
            "/usr/sbin",
            "/usr/local/bin",
            "/usr/local/sbin",
        ];
        let file = std::env::current_exe().unwrap_or_default();
        let is_usual = |folder: &Path| USUAL.iter().any(|usual| folder == Path::new(usual));
        match (file.file_name(), file.to_str()) {
            (Some(name), Some(path)) if name == "ferretto" && !file.parent().is_some_and(is_usual) => {
                Word(path).to_string()
            }
            _ => "ferretto".to_owned(),
        }
    }

    fn ask(&self, address: &Address) -> Answer {
        let stream = match Stream::connect(address) {
            Ok(stream) => stream,
            Err(TransportError::Connect { source, .. }) => {
                return match source {
                    Errno::NOENT | Errno::NOTDIR => Answer::Absent,
                    Errno::CONNREFUSED => Answer::Stale,
                    Errno::ACCESS | Errno::PERM => Answer::Denied,
                    Errno::AGAIN => Answer::Useless("it does not take the connections that wait".to_owned()),
                    other => Answer::Useless(other.to_string()),
                };
            }
            Err(error) => return Answer::Useless(error.to_string()),
        };
        let listener = stream.peer_credentials().ok().flatten();
        let endpoint = match ConsumerEndpoint::over(stream) {
            Ok(endpoint) => endpoint,
            Err(error) => return Answer::Useless(error.to_string()),
        };
        match ask::state_of(endpoint, StateScope::Everything, PATIENCE) {
            Ok((state, _)) => Answer::Service { state, listener },
            Err(reason) => Answer::Useless(reason),
        }
    }
}
