//! Kernel events as they are: the table `ftrace_event`, with their fields as arguments.
//!
//! [`kernel`](super::kernel) hands over each event before it looks at what follows from it. Names and types of fields come from the schema or, for
//! tracepoints that it does not have, from the descriptions in the trace. Nothing is written unless somebody reads the table.

use ferretto_proto::text::{Fields, Values};
use ferretto_proto::write::ftrace_event_bundle::GenericEventDescriptor;
use ferretto_proto::write::generic_ftrace_event::Field as LegacyField;
use ferretto_proto::write::{DescriptorProto, FieldDescriptorProto, FtraceEvent, GenericFtraceEvent};
use ferretto_wire::Value as Encoded;
use hashbrown::HashMap;

use super::Trackers;
use super::args::{Args, Value};
use super::kernel::{NO_SYMBOL, kernel_function};
use super::sched::Last;
use crate::context::Context;
use crate::fields::{all_bytes, bytes_of, fields, number, number_of};
use crate::output::Output;
use crate::rows::Cell;
use crate::schema::FTRACE_EVENT;
use crate::strings::{StringId, Strings};
use crate::tokenizer::event::{Switch, Woken};
use crate::trackers::processes::Utid;

/// From here on, numbers of events are described in the trace.
const FIRST_GENERIC: u32 = 1 << 16;
/// The most fields of a described event.
const MOST_FIELDS: usize = 32;
/// The most described events. There are some 2,300 tracepoints.
const MOST_EVENTS: usize = 1 << 14;
/// Sets of arguments of kernel events have numbers from here on, so that those of all others do not depend on whether this table is read.
const FIRST_SET: i64 = 500_000_000_000;

/// A type of event: its name, and the name and values of each field, by number.
#[derive(Debug)]
struct Described {
    name: StringId,
    fields: Vec<Option<(StringId, Values)>>,
}

/// All types of events, as far as they occurred.
#[derive(Debug, Default)]
pub(crate) struct Descriptions {
    /// `None` for numbers that mean nothing.
    events: HashMap<u32, Option<Described>>,
}

impl Descriptions {
    /// Takes in a `GenericEventDescriptor`. Returns whether it is one.
    pub(crate) fn add(&mut self, descriptor: &[u8], strings: &mut Strings) -> bool {
        let number = number_of(descriptor, GenericEventDescriptor::FIELD_ID).unwrap_or(0) as u32;
        if self.events.contains_key(&number) || self.events.len() >= MOST_EVENTS {
            return true;
        }
        let message = bytes_of(descriptor, GenericEventDescriptor::EVENT_DESCRIPTOR).unwrap_or(&[]);
        let mut named = Vec::new();
        for field in all_bytes(message, DescriptorProto::FIELD) {
            let get = |part| number_of(field, part).unwrap_or(0);
            let at = get(FieldDescriptorProto::NUMBER) as usize;
            let Some(values) = values_of(get(FieldDescriptorProto::TYPE)).filter(|_| at < MOST_FIELDS) else {
                return false;
            };
            if at >= named.len() {
                named.resize(at + 1, None);
            }
            let name = bytes_of(field, FieldDescriptorProto::NAME).unwrap_or(&[]);
            named[at] = Some((strings.intern_bytes(name), values));
        }
        let name = strings.intern_bytes(bytes_of(message, DescriptorProto::NAME).unwrap_or(&[]));
        self.events
            .insert(number, Some(Described { name, fields: named }));
        true
    }

    /// Returns what is known of the events of a number.
    fn get(&mut self, number: u32, strings: &mut Strings) -> Option<&Described> {
        if number >= FIRST_GENERIC {
            return self.events.get(&number)?.as_ref();
        }
        let described = || {
            let event = Fields::of("perfetto.protos.FtraceEvent")?.get(number)?;
            let Values::Message(message) = event.values else {
                return None;
            };
            let mut named = |at| Some((strings.intern(message.get(at)?.name), message.get(at)?.values));
            Some(Described {
                fields: (0..MOST_FIELDS as u32).map(&mut named).collect(),
                name: strings.intern(event.name),
            })
        };
        self.events.entry(number).or_insert_with(described).as_ref()
    }
}

/// Returns the values of a field, by the number of its type in a `FieldDescriptorProto`. Groups and messages have none that could be shown.
fn values_of(kind: u64) -> Option<Values> {
    Some(match kind {
        1 => Values::Double,
        2 => Values::Float,
        3 | 5 | 8 | 14..=16 => Values::Signed,
        4 | 6 | 7 | 13 => Values::Unsigned,
        9 | 12 => Values::Bytes,
        17 | 18 => Values::Zigzag,
        _ => return None,
    })
}

/// The rows so far.
#[derive(Debug)]
pub(crate) struct FtraceEvents {
    is_wanted: bool,
    rows: i64,
    args: Args,
    keys: Keys,
}

/// The names of scheduling events and of their fields, which the compact encoding leaves out.
#[derive(Debug)]
struct Keys {
    switch: StringId,
    of_switch: [StringId; 7],
    waking: StringId,
    of_waking: [StringId; 4],
}

/// Whose event it is.
#[derive(Debug, Clone, Copy)]
struct By {
    ts: i64,
    cpu: u32,
    utid: Utid,
    common_flags: i64,
}

/// The thread that leaves a CPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Previous {
    pub(crate) comm: StringId,
    pub(crate) last: Last,
    pub(crate) state: i64,
}

impl FtraceEvents {
    pub(crate) fn new(strings: &mut Strings, output: &Output<'_>) -> FtraceEvents {
        let mut key = |name: &str| strings.intern(name);
        FtraceEvents {
            is_wanted: output.wants(&FTRACE_EVENT),
            rows: 0,
            args: Args::starting_at(FIRST_SET),
            keys: Keys {
                switch: key("sched_switch"),
                of_switch: [
                    "prev_comm",
                    "prev_pid",
                    "prev_prio",
                    "prev_state",
                    "next_comm",
                    "next_pid",
                    "next_prio",
                ]
                .map(&mut key),
                waking: key("sched_waking"),
                of_waking: ["comm", "pid", "prio", "target_cpu"].map(&mut key),
            },
        }
    }

    /// Whether somebody reads the table.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Whether an event is to be handed over: if somebody reads the table, or its description in the trace may be missing, which is counted in any case.
    #[inline]
    pub(crate) fn wants(&self, kind: u32) -> bool {
        self.is_wanted || kind >= FIRST_GENERIC
    }

    fn add(&mut self, key: StringId, value: Value) {
        if self.is_wanted {
            self.args.add(key, key, value);
        }
    }

    fn write(&mut self, name: StringId, by: By, context: &mut Context<'_>) {
        if !self.is_wanted {
            return;
        }
        let Context { strings, output, .. } = context;
        let set = self.args.finish(strings, output);
        let row = [
            Cell::from(self.rows),
            Cell::from(by.ts),
            Cell::from(name),
            Cell::from(by.cpu),
            Cell::from(by.utid),
            Cell::from(set),
            Cell::from(by.common_flags),
            Cell::from(by.cpu),
        ];
        self.rows += 1;
        output.push(&FTRACE_EVENT, &row, strings);
    }

    /// Takes in a switch.
    pub(crate) fn switch(
        &mut self,
        ts: i64,
        cpu: u32,
        previous: Previous,
        next: Switch,
        context: &mut Context<'_>,
    ) {
        let values = [
            Value::Text(previous.comm),
            Value::Int(previous.last.pid),
            Value::Int(previous.last.priority),
            Value::Int(previous.state),
            Value::Text(next.next_comm),
            Value::Int(next.next_pid.into()),
            Value::Int(next.next_prio.into()),
        ];
        for (key, value) in self.keys.of_switch.into_iter().zip(values) {
            self.add(key, value);
        }
        let by = By {
            ts,
            cpu,
            utid: previous.last.utid,
            common_flags: 0,
        };
        self.write(self.keys.switch, by, context);
    }

    /// Takes in a wake-up in the compact encoding, by the thread `utid`.
    pub(crate) fn waking(&mut self, ts: i64, cpu: u32, utid: Utid, woken: Woken, context: &mut Context<'_>) {
        let values = [
            Value::Text(woken.comm),
            Value::Int(woken.pid.into()),
            Value::Int(woken.prio.into()),
            Value::Int(woken.target_cpu.into()),
        ];
        for (key, value) in self.keys.of_waking.into_iter().zip(values) {
            self.add(key, value);
        }
        let by = By {
            ts,
            cpu,
            utid,
            common_flags: woken.common_flags.into(),
        };
        self.write(self.keys.waking, by, context);
    }

    /// Adds the fields of an event in its oldest form, in which each has its name. Returns the name of the event.
    fn legacy(&mut self, message: &[u8], strings: &mut Strings) -> StringId {
        for field in all_bytes(message, GenericFtraceEvent::FIELD) {
            let key = strings.intern_bytes(bytes_of(field, LegacyField::NAME).unwrap_or(&[]));
            let int = number_of(field, LegacyField::INT_VALUE).or(number_of(field, LegacyField::UINT_VALUE));
            match (int, bytes_of(field, LegacyField::STR_VALUE)) {
                (Some(value), _) => self.add(key, Value::Int(value as i64)),
                (None, Some(text)) => self.add(key, Value::Str(String::from_utf8_lossy(text).into())),
                (None, None) => {}
            }
        }
        strings.intern_bytes(bytes_of(message, GenericFtraceEvent::EVENT_NAME).unwrap_or(&[]))
    }
}

impl Trackers {
    /// Takes in an event that is no switch.
    pub(crate) fn ftrace_event(
        &mut self,
        kind: u32,
        at: super::kernel_slices::At,
        symbol: u32,
        message: &[u8],
        context: &mut Context<'_>,
    ) {
        let by = By {
            ts: at.ts,
            cpu: at.cpu,
            utid: self.processes.thread(at.pid),
            common_flags: 0,
        };
        if kind == FtraceEvent::GENERIC {
            let name = self.ftrace_events.legacy(message, &mut context.strings);
            self.ftrace_events.write(name, by, context);
            return;
        }
        let Some(event) = context.descriptions.get(kind, &mut context.strings) else {
            if kind >= FIRST_GENERIC {
                context.stats.add("ftrace_generic_descriptor_errors", None, 1);
            }
            return;
        };
        let mut unknown = 0;
        for field in fields(message) {
            let Some((key, values)) = event.fields.get(field.number as usize).copied().flatten() else {
                unknown += i64::from(kind >= FIRST_GENERIC);
                continue;
            };
            let is_symbol = symbol != NO_SYMBOL && kernel_function(kind) == Some(field.number);
            let value = match is_symbol {
                true => Some(Value::Text(StringId(symbol))),
                false => value_of(values, field.value),
            };
            if let Some(value) = value {
                self.ftrace_events.add(key, value);
            }
        }
        let name = event.name;
        if unknown > 0 {
            context
                .stats
                .add("ftrace_generic_descriptor_errors", None, unknown);
        }
        self.ftrace_events.write(name, by, context);
    }
}

/// Returns the value of an argument. `None` for messages, and for what is encoded otherwise than its type says.
fn value_of(values: Values, encoded: Encoded<'_>) -> Option<Value> {
    Some(match (values, encoded) {
        (Values::Bytes, Encoded::Bytes(bytes)) => Value::Str(String::from_utf8_lossy(bytes).into()),
        (Values::Signed, value) => Value::Int(number(value)? as i64),
        (Values::Unsigned, value) => Value::Uint(number(value)?),
        (Values::Zigzag, Encoded::Varint(value)) => Value::Int(ferretto_wire::unzigzag(value)),
        (Values::Double, Encoded::Fixed64(bits)) => Value::Real(f64::from_bits(bits)),
        (Values::Float, Encoded::Fixed32(bits)) => Value::Real(f32::from_bits(bits).into()),
        _ => return None,
    })
}
