//! What follows from the events of a trace in the order of time: one tracker for each kind of table.

pub(crate) mod args;
pub(crate) mod descriptors;
pub(crate) mod kernel;
pub(crate) mod process_tree;
pub(crate) mod processes;
pub(crate) mod sched;
pub(crate) mod task_state;
pub(crate) mod thread_state;

use ferretto_proto::write::TracePacket;

use crate::context::Context;
use crate::strings::Strings;
use crate::tokenizer::event::{Queue, Switch, Waking, prefix};
use kernel::Begin;
use processes::Processes;
use sched::Sched;
use thread_state::{ThreadStates, To};

/// All trackers.
pub(crate) struct Trackers {
    processes: Processes,
    sched: Sched,
    states: ThreadStates,
    begin: Option<Begin>,
}

impl Trackers {
    pub(crate) fn new(strings: &mut Strings) -> Trackers {
        Trackers {
            processes: Processes::new(strings),
            sched: Sched::default(),
            states: ThreadStates::new(strings),
            begin: None,
        }
    }

    /// Takes in the next event.
    #[inline]
    pub(crate) fn event(&mut self, queue: Queue, ts: i64, event: &[u8], context: &mut Context<'_>) {
        match queue {
            Queue::Switches(cpu) => {
                if let Some(switch) = Switch::decode(event) {
                    self.compact_switch(cpu, ts, switch, context);
                }
            }
            Queue::Wakings(cpu) => {
                if let Some(waking) = Waking::decode(event) {
                    self.compact_waking(cpu, ts, waking, context);
                }
            }
            Queue::Ftrace(cpu) => {
                if let Some((symbol, event)) = prefix(event) {
                    self.kernel_event(cpu, ts, symbol, event, context);
                }
            }
            Queue::TrackEvents => {}
            Queue::Packets => {
                if let Some((field, content)) = prefix(event) {
                    self.packet(field, ts, content, context);
                }
            }
        }
    }

    fn packet(&mut self, field: u32, _ts: i64, content: &[u8], context: &mut Context<'_>) {
        if field == TracePacket::PROCESS_TREE {
            self.process_tree(content, context);
        }
    }

    /// Writes what has no end, and what is known only now.
    pub(crate) fn finish(mut self, context: &mut Context<'_>) {
        let Context {
            strings, output, args, ..
        } = context;
        self.sched.finish(strings, output);
        self.states.finish(&mut To { strings, output });
        let is_kernel_thread = strings.intern("is_kthread");
        self.processes.write(strings, output, |is, output| {
            args.add(is_kernel_thread, is_kernel_thread, args::Value::Bool(is));
            args.finish(strings, output).unwrap_or(0)
        });
        if self.processes.errors > 0 {
            context.stats.add("process_tracker_errors", None, self.processes.errors as i64);
        }
    }
}
