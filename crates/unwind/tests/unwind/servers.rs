//! Mapped files on file systems whose servers do not answer: here FUSE, served by the test. Needs root.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use ferretto_unwind::{ModuleCache, Process, SymbolTable, Unusable};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use crate::stopped::{Program, compile};

/// Maps the file that its argument names.
const MAPPER: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv) {
  int file = open(argv[argc - 1], O_RDONLY);
  if (mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) == MAP_FAILED) return 1;
  printf("ready %ld\n", (long)syscall(SYS_gettid));
  fflush(stdout);
  for (;;) pause();
}
"#;

/// A file system that is one file, mounted where only this thread and its children see it.
struct Served<'a> {
    place: &'a Path,
    silent: Arc<AtomicBool>,
}

impl<'a> Served<'a> {
    /// Mounts it on a file. Prints the reason and returns `None` if that is impossible here.
    fn mount(place: &'a Path) -> Option<Served<'a>> {
        let Ok(server) = File::options().read(true).write(true).open("/dev/fuse") else {
            println!("skipped: there is no /dev/fuse that may be used");
            return None;
        };
        let none: Option<&str> = None;
        let options = format!(
            "fd={},rootmode=100755,user_id=0,group_id=0,allow_other",
            server.as_raw_fd()
        );
        let mounted = unshare(CloneFlags::CLONE_NEWNS)
            .and_then(|()| mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none))
            .and_then(|()| {
                mount(
                    Some("test"),
                    place,
                    Some("fuse.test"),
                    MsFlags::empty(),
                    Some(&*options),
                )
            });
        if let Err(error) = mounted {
            println!("skipped: cannot mount a file system: {error}");
            return None;
        }
        let silent = Arc::new(AtomicBool::new(false));
        let is_silent = silent.clone();
        std::thread::spawn(move || serve(server, &is_silent));
        Some(Served { place, silent })
    }

    /// From now on the server answers nothing.
    fn fall_silent(&self) {
        self.silent.store(true, Ordering::SeqCst);
    }
}

impl Drop for Served<'_> {
    /// Also ends all clients that wait for an answer.
    fn drop(&mut self) {
        let _ = umount2(self.place, MntFlags::MNT_FORCE);
        let _ = umount2(self.place, MntFlags::MNT_DETACH);
    }
}

/// Answers until the file system is unmounted. The messages are those of the kernel's `uapi/linux/fuse.h`, version 7.31.
fn serve(mut server: File, is_silent: &AtomicBool) {
    let mut request = vec![0; 1 << 20];
    while server.read(&mut request).is_ok() {
        if is_silent.load(Ordering::SeqCst) {
            continue;
        }
        let word = |place: usize| u32::from_le_bytes(request[place..place + 4].try_into().expect("a word"));
        let words = |words: &[u32]| {
            words
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .collect::<Vec<u8>>()
        };
        let (error, body) = match word(4) {
            // FORGET and INTERRUPT.
            2 | 36 => continue,
            // GETATTR: stale at once; 4096 bytes, an executable file.
            3 => {
                let mut body = words(&[0, 0, 0, 0, 1, 0, 4096]);
                body.resize(16 + 60, 0);
                body.extend(words(&[0o100_755, 1, 0, 0, 0, 4096, 0]));
                (0, body)
            }
            // OPEN.
            14 => (0, vec![0; 16]),
            // READ: as many bytes as are asked for.
            15 => (0, vec![0; word(56).min(4096) as usize]),
            // RELEASE and FLUSH.
            18 | 25 => (0, Vec::new()),
            // INIT.
            26 => (0, {
                let mut body = words(&[7, 31, 0, 0, 0, 4096, 1]);
                body.resize(64, 0);
                body
            }),
            _ => (-nix::libc::ENOSYS, Vec::new()),
        };
        let mut answer = words(&[16 + body.len() as u32, error.cast_unsigned()]);
        answer.extend(&request[8..16]);
        answer.extend(body);
        // The client that asked may be gone.
        let _ = server.write(&answer);
    }
}

#[test]
fn a_file_whose_server_does_not_answer_is_not_opened() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(mapper) = compile(folder.path(), "mapper", MAPPER, &[]) else {
        return;
    };
    let place = folder.path().join("served");
    fs::write(&place, "").expect("a file");
    let Some(served) = Served::mount(&place) else {
        return;
    };
    let program = Program::run(&mapper, Command::new(&mapper).arg(&place));
    let mut process = Process::open(program.pid()).expect("a process");
    process.refresh(0, 0).expect("mappings");
    let name = place.as_os_str().as_encoded_bytes();
    let mappings = process.maps().mappings();
    let index = mappings.iter().position(|mapping| &*mapping.name == name);
    let request = process.load_request(index.expect("a mapping") as u32);
    let request = request.expect("a mapping");
    served.fall_silent();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let loaded = ModuleCache::new(1 << 20).load(&request);
        let symbols = SymbolTable::of(&request, 1 << 20);
        let _ = sender.send((loaded, symbols.memory_bytes()));
    });
    let outcome = receiver.recv_timeout(Duration::from_secs(30));
    // In this order: the program cannot end while its file waits for an answer.
    drop((served, program));
    let (loaded, symbols) = outcome.expect("the file's server is not waited for");
    assert_eq!(loaded.expect_err("no module"), Unusable::Untrusted("fuse".into()));
    assert_eq!(symbols, 0);
}
