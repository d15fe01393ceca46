//! Slices of kernel events: interrupts and their later halves on a CPU, and the work of workqueues on a thread.
//!
//! The kernel's events come here in the order of time, from [`kernel`](super::kernel).

use ferretto_proto::kernel_names::SOFTIRQS;
use ferretto_proto::write::FtraceEvent;

use super::Trackers;
use super::args::Value;
use super::descriptors::thread_track;
use super::kernel::NO_SYMBOL;
use super::slices::Named;
use super::tracks::{Dimension, Has, Key, TrackId};
use crate::context::Context;
use crate::fields::{bytes_of, number_of};
use crate::strings::StringId;

/// Fields of `FtraceEvent` for which there is no writer.
const PRINT: u32 = 3;
const SOFTIRQ_ENTRY: u32 = 24;
const SOFTIRQ_EXIT: u32 = 25;
const IRQ_HANDLER_ENTRY: u32 = 36;
const IRQ_HANDLER_EXIT: u32 = 37;
const WORKQUEUE_EXECUTE_END: u32 = 57;
const WORKQUEUE_EXECUTE_START: u32 = 58;
/// The field of `WorkqueueExecuteStartFtraceEvent` with the number of a symbol.
const WORK_FUNCTION: u32 = 2;
/// The most bytes of a name that the trace processor composes.
const MOST_NAME: usize = 254;

/// Where and when a kernel event happened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    pub(crate) ts: i64,
    pub(crate) cpu: u32,
    /// The thread that the CPU ran.
    pub(crate) pid: i64,
}

impl Trackers {
    /// Takes in an event of a kind that begins or ends a slice; others are passed over.
    pub(crate) fn kernel_slice(
        &mut self,
        kind: u32,
        at: At,
        symbol: u32,
        message: &[u8],
        context: &mut Context<'_>,
    ) {
        match kind {
            IRQ_HANDLER_ENTRY => self.irq_entry(at, message, context),
            IRQ_HANDLER_EXIT => self.irq_exit(at, message, context),
            SOFTIRQ_ENTRY => self.softirq_entry(at, message, context),
            SOFTIRQ_EXIT => self.softirq_exit(at, message, context),
            WORKQUEUE_EXECUTE_START => self.work_start(at, symbol, message, context),
            WORKQUEUE_EXECUTE_END => self.work_end(at, context),
            FtraceEvent::SYS_ENTER => self.sys_enter(at, message, context),
            FtraceEvent::SYS_EXIT => self.sys_exit(at, message, context),
            PRINT => self.print(at, message, context),
            _ => {}
        }
    }

    fn irq_entry(&mut self, at: At, message: &[u8], context: &mut Context<'_>) {
        const NAME: u32 = 2;
        let track = self.irq_track(at.cpu, context);
        let mut name = b"IRQ (".to_vec();
        name.extend_from_slice(bytes_of(message, NAME).unwrap_or(&[]));
        name.push(b')');
        name.truncate(MOST_NAME);
        let name = context.strings.intern_bytes(&name);
        let named = irq(Some(name), context);
        self.slices.begin(at.ts, track, named, None, context);
    }

    fn irq_exit(&mut self, at: At, message: &[u8], context: &mut Context<'_>) {
        const RET: u32 = 2;
        let track = self.irq_track(at.cpu, context);
        let outcome = match number_of(message, RET) {
            Some(1) => "handled",
            _ => "unhandled",
        };
        let named = irq(None, context);
        self.slices.end(at.ts, track, named, context, |slice, strings| {
            let ret = strings.intern("ret");
            slice.args.add(ret, ret, Value::Text(strings.intern(outcome)));
        });
    }

    fn irq_track(&mut self, cpu: u32, context: &mut Context<'_>) -> TrackId {
        self.cpu_slices("cpu_irq", "Irq Cpu", cpu, context)
    }

    fn softirq_entry(&mut self, at: At, message: &[u8], context: &mut Context<'_>) {
        let Some(name) = SOFTIRQS.get(vector(message) as usize) else {
            return;
        };
        let track = self.softirq_track(at.cpu, context);
        let named = irq(Some(context.strings.intern(name)), context);
        self.slices.begin(at.ts, track, named, None, context);
    }

    fn softirq_exit(&mut self, at: At, message: &[u8], context: &mut Context<'_>) {
        let track = self.softirq_track(at.cpu, context);
        let named = irq(None, context);
        self.slices.end(at.ts, track, named, context, |slice, strings| {
            let key = strings.intern("vec");
            slice.args.add(key, key, Value::Int(vector(message).into()));
        });
    }

    fn softirq_track(&mut self, cpu: u32, context: &mut Context<'_>) -> TrackId {
        self.cpu_slices("cpu_softirq", "SoftIrq Cpu", cpu, context)
    }

    fn cpu_slices(&mut self, kind: &'static str, name: &str, cpu: u32, context: &mut Context<'_>) -> TrackId {
        let key = Key::new(kind, &[("cpu", Dimension::Int(cpu.into()))]);
        let name = |strings: &mut crate::strings::Strings| Some(strings.intern(&format!("{name} {cpu}")));
        self.tracks.intern(&key, Has::Slices, name, context)
    }

    fn work_start(&mut self, at: At, symbol: u32, message: &[u8], context: &mut Context<'_>) {
        let name = match symbol {
            NO_SYMBOL => {
                let function = number_of(message, WORK_FUNCTION).unwrap_or(0);
                // As C prints `%#x`.
                let text = match function {
                    0 => "0".to_owned(),
                    function => format!("{function:#x}"),
                };
                context.strings.intern(&text)
            }
            symbol => StringId(symbol),
        };
        let named = Named {
            category: Some(context.strings.intern("workqueue")),
            name: Some(name),
        };
        let utid = self.processes.thread(at.pid);
        let track = thread_track(utid, &mut self.tracks, context);
        let key = context.strings.intern("cpu");
        if let Some(slice) = self.slices.begin(at.ts, track, named, None, context) {
            slice.args.add(key, key, Value::Int(at.cpu.into()));
        }
    }

    fn work_end(&mut self, at: At, context: &mut Context<'_>) {
        let utid = self.processes.thread(at.pid);
        let track = thread_track(utid, &mut self.tracks, context);
        let named = Named {
            category: Some(context.strings.intern("workqueue")),
            name: None,
        };
        self.slices.end(at.ts, track, named, context, |_, _| {});
    }
}

/// Returns the number of a softirq.
fn vector(message: &[u8]) -> u32 {
    const VEC: u32 = 1;
    number_of(message, VEC).unwrap_or(0) as u32
}

fn irq(name: Option<StringId>, context: &mut Context<'_>) -> Named {
    Named {
        category: Some(context.strings.intern("irq")),
        name,
    }
}
