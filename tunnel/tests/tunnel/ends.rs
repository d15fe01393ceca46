//! The processes: both ends of a tunnel, a service that the test plays, and the log lines of the ends.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::fleet::{Fleet, HOST, Identity};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const TUNNEL: &str = env!("CARGO_BIN_EXE_ferretto-tunnel");

/// An address of this machine at which nobody listens or will listen, because the host belongs to this process and call alone. Nothing is bound to find
/// it: a process that another test starts at that moment would inherit the socket, and the address would be in use for a while.
pub(crate) fn free_address() -> String {
    static CALLS: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, CALLS.fetch_add(1, Ordering::Relaxed), high, low);
    format!("{host}:20001")
}

/// Waits until a condition holds.
pub(crate) fn await_that(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "not so: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A program with its log. It ends with the value.
pub(crate) struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    pub(crate) fn start(command: &mut Command, log: &Path) -> Running {
        let file = File::create(log).unwrap();
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn();
        Running {
            child: child.unwrap(),
            log: log.to_owned(),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    pub(crate) fn await_log(&mut self, text: &str) {
        let begun = Instant::now();
        while !self.log().contains(text) {
            let ended = self.child.try_wait().unwrap();
            let in_time = begun.elapsed() < PATIENCE && ended.is_none();
            assert!(
                in_time,
                "it does not say {text:?}, ended: {ended:?}\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .args([signal, &self.pid().to_string()])
            .status();
        assert!(status.unwrap().success());
    }

    /// Has it read its files anew, and waits until it says what came of it.
    pub(crate) fn reload(&mut self, said: &str) {
        let before = self.log().matches(said).count();
        self.signal("-HUP");
        await_that(said, || self.log().matches(said).count() > before);
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        await_that("it ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// A figure of `/proc/PID/status`.
    pub(crate) fn status(&self, name: &str) -> String {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("{status}")).trim().to_owned()
    }

    pub(crate) fn resident_kb(&self) -> u64 {
        self.status("VmRSS").trim_end_matches(" kB").parse().unwrap()
    }

    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid()))
            .unwrap()
            .count()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command with the files of one end.
pub(crate) fn command(end: &str, listen: &str, to: &str, identity: &Identity) -> Command {
    let mut command = Command::new(TUNNEL);
    command.args([end, "--listen", listen, "--to", to]);
    command.arg("--tls-ca").arg(&identity.ca);
    command.arg("--tls-cert").arg(&identity.cert);
    command.arg("--tls-key").arg(&identity.key);
    if let Some(crl) = &identity.crl {
        command.arg("--tls-crl").arg(crl);
    }
    command
}

/// A service that the test plays, the host's end in front of it, and where guests' ends listen.
pub(crate) struct Scene {
    pub(crate) folder: TempDir,
    pub(crate) fleet: Fleet,
    pub(crate) service: TcpListener,
    /// Where the host's end listens.
    pub(crate) address: String,
    pub(crate) host: Running,
}

impl Scene {
    pub(crate) fn new() -> Scene {
        let fleet = Fleet::new();
        let identity = fleet.host();
        Scene::with_host(fleet, &identity)
    }

    pub(crate) fn with_host(fleet: Fleet, identity: &Identity) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let service = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free_address();
        let to = service.local_addr().unwrap().to_string();
        let host = start_host(folder.path(), &address, &to, identity);
        Scene {
            folder,
            fleet,
            service,
            address,
            host,
        }
    }

    /// Starts a guest's end that checks this name. Returns where it listens, too.
    pub(crate) fn guest_that_expects(&self, identity: &Identity, name: &str) -> (Running, PathBuf) {
        static CALLS: AtomicU8 = AtomicU8::new(0);
        let number = CALLS.fetch_add(1, Ordering::Relaxed);
        let socket = self.folder.path().join(format!("guest-{number}"));
        let mut command = command("guest", socket.to_str().unwrap(), &self.address, identity);
        command.args(["--tls-name", name]);
        let log = self.folder.path().join(format!("guest-{number}.log"));
        let mut guest = Running::start(&mut command, &log);
        guest.await_log("ferretto-tunnel is listening");
        (guest, socket)
    }

    pub(crate) fn guest(&self) -> (Running, PathBuf) {
        self.guest_that_expects(&self.fleet.guest(), HOST)
    }

    /// Connects through a guest's end: the client's socket, and the service's.
    pub(crate) fn connect(&self, socket: &Path) -> (UnixStream, TcpStream) {
        let client = UnixStream::connect(socket).unwrap();
        let (served, _) = self.service.accept().unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        served.set_read_timeout(Some(PATIENCE)).unwrap();
        (client, served)
    }

    /// Whether anybody has connected to the service since the last time.
    pub(crate) fn is_reached(&self) -> bool {
        self.service.set_nonblocking(true).unwrap();
        let reached = self.service.accept().is_ok();
        self.service.set_nonblocking(false).unwrap();
        reached
    }
}

/// Starts a host's end.
pub(crate) fn start_host(folder: &Path, address: &str, service: &str, identity: &Identity) -> Running {
    let mut host = Running::start(
        &mut command("host", address, service, identity),
        &folder.join("host.log"),
    );
    host.await_log("ferretto-tunnel is listening");
    host
}
