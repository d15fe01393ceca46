//! The loop of a program with nothing but a host in it, and its consumers.

use std::fmt::Arguments;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferretto_client::consumer::{ConsumerEndpoint, ConsumerEvent, ConsumerReply};
use ferretto_host::{Admission, Host, OutOfLine, Port, Program};
use ferretto_ipc::Stream;
use ferretto_ipc::client::{CallError, CallId, InvokeError, More};
use ferretto_ipc::reactor::{Deadline, Events};
use ferretto_proto::messages::{Message, Trace, TracePacket};
use ferretto_service::{MachineId, PriorityBoost};

pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A program that has a name for why its priority stays.
struct Tests;

impl Program for Tests {
    fn time_stamp_counter(&self) -> Option<u64> {
        Some(4711)
    }

    fn local_time_offset(&self) -> Option<i32> {
        Some(90)
    }

    fn info(&self, line: Arguments<'_>) {
        println!("in order: {line}");
    }

    fn warning(&self, line: Arguments<'_>) {
        println!("warning: {line}");
    }

    fn refused(&self, line: Arguments<'_>) {
        println!("refused: {line}");
    }

    fn set_priority(&self, boost: Option<PriorityBoost>) -> Result<(), String> {
        boost.map_or(Ok(()), |_| Err("tests have their priority".to_owned()))
    }
}

/// The loop of a program with nothing but a host in it.
pub(crate) struct Machine {
    pub(crate) host: OutOfLine<Host>,
    pub(crate) events: Events,
}

impl Machine {
    pub(crate) fn new() -> Machine {
        Machine::with_id(MachineId::HOST)
    }

    pub(crate) fn with_id(machine: MachineId) -> Machine {
        let identity = ferretto_host::identity("test", machine);
        Machine {
            host: Host::new(identity, Admission::for_descriptors(1024), Arc::new(Tests)).unwrap(),
            events: Events::new(),
        }
    }

    pub(crate) fn connect(&mut self, port: Port) -> Stream {
        let (ours, theirs) = Stream::pair().unwrap();
        self.host.connect(theirs, port);
        ours
    }

    pub(crate) fn turn(&mut self) {
        self.host
            .wait(&mut self.events, Deadline::after(Duration::from_millis(1)).into())
            .unwrap();
        self.host.turn(&self.events);
    }

    /// Turns until `done` has something.
    pub(crate) fn until<T>(&mut self, what: &str, mut done: impl FnMut() -> Option<T>) -> T {
        let until = Instant::now() + PATIENCE;
        loop {
            self.turn();
            if let Some(result) = done() {
                return result;
            }
            assert!(Instant::now() < until, "waited in vain for {what}");
        }
    }

    pub(crate) fn consumer(&mut self) -> ConsumerEndpoint {
        let stream = self.connect(Port::Consumer);
        let mut consumer = ConsumerEndpoint::over(stream).unwrap();
        self.until("a connection", || {
            matches!(heard(&mut consumer), Some(ConsumerEvent::Connected)).then_some(())
        });
        consumer
    }

    /// The reply to a request; events of others are dropped.
    pub(crate) fn reply(
        &mut self,
        consumer: &mut ConsumerEndpoint,
        call: Result<CallId, InvokeError>,
    ) -> Result<ConsumerReply, CallError> {
        let call = call.unwrap();
        self.until("a reply", || {
            while let Some(event) = heard(consumer) {
                if let ConsumerEvent::Reply { request, reply, .. } = event
                    && request == call
                {
                    return Some(reply);
                }
            }
            None
        })
    }

    /// Turns until a chunk is in a buffer of a consumer's session. A single turn may be over before that, as its time is bounded.
    pub(crate) fn until_buffered(&mut self, consumer: &mut ConsumerEndpoint) {
        let until = Instant::now() + PATIENCE;
        loop {
            let call = consumer.trace_stats();
            let Ok(ConsumerReply::TraceStats(stats)) = self.reply(consumer, call) else {
                panic!("no statistics");
            };
            if stats
                .buffer_stats
                .iter()
                .any(|buffer| buffer.chunks_written.unwrap_or(0) > 0)
            {
                return;
            }
            assert!(Instant::now() < until, "nothing comes into a buffer");
        }
    }

    /// Everything in the buffers of a consumer's session.
    pub(crate) fn read(&mut self, consumer: &mut ConsumerEndpoint) -> Trace {
        let call = consumer.read_buffers().unwrap();
        let mut trace = Trace::default();
        loop {
            let Ok(ConsumerReply::TraceData { packets, more }) = self.reply(consumer, Ok(call)) else {
                panic!("no trace data");
            };
            let decoded = packets
                .iter()
                .map(|packet| TracePacket::decode_from_slice(packet).unwrap());
            trace.packet.extend(decoded);
            if more == More::Last {
                return trace;
            }
        }
    }
}

/// The consumer's next event, after its requests were sent.
pub(crate) fn heard(consumer: &mut ConsumerEndpoint) -> Option<ConsumerEvent> {
    consumer.flush();
    consumer.on_readable();
    consumer.next_event()
}
