//! The functions with the most samples, while `ferretto profile --top` records.
//!
//! [`run`](super::run) gives it to the recording, which shows its rows below the changing line. A thread of its own follows the file that the service
//! streams into, about once a second, so the recording waits for neither the file nor the names. The rows come from the same reader, names and
//! list as those at the end. A turn reads for [`READING`] and looks for names for [`NAMING`] at most; what it does not get to comes in the next. Above
//! [`MOST_ENTRIES`] the list stands still, and says so. Waiting is left out: its length is known only at the end.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::io;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ferretto_unwind::symbols::DebugFiles;

use super::targets::Targets;
use crate::figures::Count;
use crate::perfetto::Below;
use crate::profiling::top;
use crate::samples::{Keep, Profile, Recorder, Recording, Thread};
use crate::stdout::Screen;
use crate::symbolize;
use ferretto_trace_file::{Follower, Reached};

/// The time between two turns.
const PERIOD: Duration = Duration::from_secs(1);
/// The longest time that a turn reads.
const READING: Duration = Duration::from_millis(200);
/// The time after which a turn opens no further file for names.
const NAMING: Duration = Duration::from_millis(200);
/// The most entries of the tables that grow with a recording. One takes about 50 bytes.
const MOST_ENTRIES: usize = 1 << 21;
/// The most functions that are listed. The terminal may have room for fewer.
const ROWS: usize = 50;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct LiveTop {
    targets: Targets,
    rows: Arc<Mutex<Vec<String>>>,
    /// Dropped to end the thread.
    running: Option<Sender<Infallible>>,
}

impl LiveTop {
    /// Lists the samples of these threads.
    pub(super) fn new(targets: Targets) -> LiveTop {
        LiveTop {
            targets,
            rows: Arc::default(),
            running: None,
        }
    }
}

impl Below for LiveTop {
    fn begin(&mut self, trace: &Path) {
        let shown = self.rows.clone();
        let show = move |rows| *shown.lock().unwrap_or_else(PoisonError::into_inner) = rows;
        let targets = self.targets.clone();
        let mut list = match List::of(trace, move |thread| targets.has(thread)) {
            Ok(list) => list,
            Err(error) => return show(vec![unreadable(&error)]),
        };
        let (running, ended) = channel();
        let told = show.clone();
        let thread = std::thread::Builder::new().name("top".to_owned()).spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(PERIOD) {
                show(list.turn());
            }
        });
        match thread {
            Ok(_) => self.running = Some(running),
            Err(error) => told(vec![format!(
                "no list of functions: there is no thread for it: {error}"
            )]),
        }
    }

    fn rows(&self) -> Vec<String> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn unreadable(error: &io::Error) -> String {
    format!("no list of functions: the trace cannot be read while it is written: {error}")
}

/// The list of functions of a trace that grows.
struct List<F> {
    trace: Follower,
    recorder: Recorder<F>,
    names: Names,
    /// Why no more is read.
    trouble: Option<String>,
}

impl<F: FnMut(Thread) -> bool> List<F> {
    fn of(trace: &Path, wants: F) -> io::Result<List<F>> {
        Ok(List {
            trace: Follower::open(trace)?,
            recorder: Recorder::new(Keep::Totals, wants),
            names: Names::default(),
            trouble: None,
        })
    }

    /// Reads on, and returns the rows.
    fn turn(&mut self) -> Vec<String> {
        let until = Instant::now() + READING;
        let mut reached = Reached::End;
        if self.trouble.is_none() {
            let recorder = &mut self.recorder;
            match self
                .trace
                .advance(|| Instant::now() < until, |packet| recorder.packet(packet))
            {
                Ok(outcome) => reached = outcome,
                Err(error) => self.trouble = Some(unreadable(&error)),
            }
            if self.recorder.entries() > MOST_ENTRIES {
                let why =
                    "the list has as many call stacks as it can hold, and stands still; the end has all";
                self.trouble = Some(why.to_owned());
            }
        }
        let names = &mut self.names;
        let mut rows = self.recorder.look(|recording| {
            names.find(&mut recording.profile, Instant::now() + NAMING);
            rows(recording, reached)
        });
        rows.extend(self.trouble.clone());
        rows
    }
}

/// Returns the rows of the first event that is no waiting.
fn rows(recording: &Recording, reached: Reached) -> Vec<String> {
    let mut events = recording.events_with_stacks().into_iter();
    let Some(event) = events.find(|event| !recording.is_waiting(*event)) else {
        return vec!["no samples so far".to_owned()];
    };
    let behind = match reached {
        Reached::End => "",
        Reached::Limit => ", and more that is yet to be read",
    };
    let head = format!(
        "{} so far, {} lost{behind}",
        top::amount(recording, event),
        Count(recording.profile.losses.kernel)
    );
    let table = top::table_of(recording, event, Screen::Pipe, ROWS);
    std::iter::once(head)
        .chain(table.lines().map(str::to_owned))
        .collect()
}

/// The names of addresses, each of which is looked for once.
struct Names {
    files: DebugFiles,
    /// By path and build id of the module.
    sought: HashMap<(String, Box<[u8]>), HashSet<u64>>,
}

impl Default for Names {
    fn default() -> Names {
        Names {
            files: symbolize::debug_files(),
            sought: HashMap::new(),
        }
    }
}

impl Names {
    /// Looks for the names of addresses that are new, and adds them to the profile. Begins no further module after `until`.
    fn find(&mut self, profile: &mut Profile, until: Instant) {
        for mut unnamed in profile.unnamed() {
            let module = (unnamed.path.clone(), unnamed.build_id.clone());
            let sought = self.sought.entry(module).or_default();
            unnamed.addresses.retain(|address| !sought.contains(address));
            if unnamed.addresses.is_empty() {
                continue;
            }
            if Instant::now() >= until {
                break;
            }
            sought.extend(&unnamed.addresses);
            // Modules without names keep their addresses, as at the end.
            let Ok(_) = symbolize::name(profile, [unnamed], &self.files, |_| Ok::<(), Infallible>(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use ferretto_proto::messages::trace_packet::SequenceFlags;
    use ferretto_proto::write::{Trace, TracePacket};
    use ferretto_wire::Writer;
    use proptest::prelude::*;

    use super::*;

    /// A trace of samples with stacks that share functions; each sample has one of three stacks. Stacks are described before their first sample.
    fn trace(samples: &[usize]) -> Vec<u8> {
        let mut trace = Writer::new();
        let packet = |trace: &mut Writer, fill: &dyn Fn(&mut TracePacket<'_>)| {
            let mut packet = Writer::new();
            let mut fields = TracePacket::new(&mut packet);
            fields.trusted_packet_sequence_id(7);
            fill(&mut fields);
            trace.bytes_field(Trace::PACKET, packet.as_slice());
        };
        packet(&mut trace, &|packet| {
            packet
                .sequence_flags(SequenceFlags::SEQ_INCREMENTAL_STATE_CLEARED as u32)
                .interned_data(|data| {
                    for (iid, name) in (1..).zip(["main", "one", "other", "leaf"]) {
                        data.function_names(|text| {
                            text.iid(iid).str(name);
                        });
                        data.frames(|frame| {
                            frame.iid(iid).rel_pc(iid).function_name_id(iid);
                        });
                    }
                });
        });
        let stacks: [&[u64]; 3] = [&[1, 2, 4], &[1, 3, 4], &[1, 3]];
        let mut described = [false; 3];
        for &which in samples {
            let is_new = !std::mem::replace(&mut described[which], true);
            packet(&mut trace, &|packet| {
                packet
                    .timestamp(5)
                    .sequence_flags(SequenceFlags::SEQ_NEEDS_INCREMENTAL_STATE as u32)
                    .perf_sample(|sample| {
                        sample.pid(3).tid(4).callstack_iid(1 + which as u64);
                    });
                if is_new {
                    packet.interned_data(|data| {
                        data.callstacks(|stack| {
                            stack.iid(1 + which as u64);
                            for frame in stacks[which] {
                                stack.frame_ids(*frame);
                            }
                        });
                    });
                }
            });
        }
        trace.as_slice().to_vec()
    }

    /// The table that the end shows.
    fn table_at_the_end(file: &Path) -> String {
        let mut recorder = Recorder::new(Keep::Totals, |_| true);
        let mut trace = Follower::open(file).unwrap();
        trace.advance(|| true, |packet| recorder.packet(packet)).unwrap();
        let recording = recorder.finish();
        let [event] = recording.events_with_stacks()[..] else {
            return String::new();
        };
        top::table(&recording, event, Screen::Pipe)
    }

    proptest! {
        #[test]
        fn a_table_from_pieces_is_that_of_the_whole_file(
            samples in prop::collection::vec(0..3_usize, 1..60),
            steps in prop::collection::vec(1..400_usize, 1..40),
        ) {
            let whole = trace(&samples);
            let mut file = tempfile::NamedTempFile::new().unwrap();
            let mut list = List::of(file.path(), |_| true).unwrap();
            let mut rest = &whole[..];
            for step in steps.into_iter().chain([whole.len()]) {
                let (piece, later) = rest.split_at(step.min(rest.len()));
                file.write_all(piece).unwrap();
                rest = later;
                list.turn();
            }
            let rows = list.turn();
            let table: Vec<String> = table_at_the_end(file.path()).lines().map(str::to_owned).collect();
            prop_assert!(table.len() >= 3, "{table:?}");
            prop_assert_eq!(&rows[1..], &table[..]);
            let head = format!("{} of ", crate::figures::Counted(samples.len() as u64, "sample"));
            prop_assert!(rows[0].starts_with(&head) && rows[0].ends_with(" so far, 0 lost"), "{}", rows[0]);
        }
    }

    #[test]
    fn a_file_that_turns_into_something_else_keeps_the_list_and_says_why_it_ends() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&trace(&[0, 1, 0])).unwrap();
        let mut list = List::of(file.path(), |_| true).unwrap();
        let rows = list.turn();
        file.write_all(b"no packet at all").unwrap();
        let after = list.turn();
        assert_eq!(after[..rows.len()], rows[..]);
        assert!(after[rows.len()].contains("cannot be read"), "{after:?}");
    }

    #[test]
    fn only_threads_that_are_wanted_are_listed() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&trace(&[0])).unwrap();
        let mut list = List::of(file.path(), |thread: Thread| thread.tid == 5).unwrap();
        assert_eq!(list.turn(), ["no samples so far"]);
    }
}
