//! The translation table: how the bytes of each recorded event of this kernel become protobuf.
//!
//! Made once when the first ftrace session starts, from the text of the kernel's format files; grows by [`Table::add`]
//! as configs ask for more events. Read by every session's event filter and, event by event, by the bundle writer.
//! A plan in the table has been checked: fields end within [`EventPlan::size`], and an event of at least that size can
//! be encoded without further checks, except for the offsets in the event's own dynamic arrays.

use super::compact_sched::{SwitchFormat, WakingFormat};
use super::field::{FieldKind, ProtoType, Read, Width};
use super::format::{EventFormat, FormatError, FormatField, PageLayout};
use super::generic;
use super::printk_formats::PrintkFormats;
use super::typed::{self, Declared, TypedEvent};
use ferretto_proto::write::FtraceEvent;
use std::collections::HashMap;
use thiserror::Error;

#[cfg(test)]
mod tests;

/// First number in `FtraceEvent` for events that describe themselves.
pub(crate) const FIRST_SELF_DESCRIBED: u32 = 65_536;
/// The last number reserved for them.
const LAST_SELF_DESCRIBED: u32 = 131_072;

/// Why an event cannot be recorded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TableError {
    /// Its format file makes no sense.
    #[error("event {group}/{name} cannot be recorded: {source}")]
    Format {
        /// Group of the event.
        group: String,
        /// Name of the event.
        name: String,
        /// The mistake.
        source: FormatError,
    },
    /// So many events were added and removed that no number is left for another one.
    #[error(
        "event {group}/{name} cannot be recorded: all numbers for self-described events are used up; restart traced_probes"
    )]
    NumbersUsedUp {
        /// Group of the event.
        group: String,
        /// Name of the event.
        name: String,
    },
}

/// The message that an event becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// A message of its own.
    Typed {
        /// The message's number in `FtraceEvent`.
        number: u32,
    },
    /// `raw_syscalls/sys_enter`, whose arguments are an array.
    SysEnter {
        /// The message's number in `FtraceEvent`.
        number: u32,
        /// Where the arguments start, and the size of one.
        arguments: (usize, Width),
    },
    /// `raw_syscalls/sys_exit`, which may return a new file descriptor.
    SysExit {
        /// The message's number in `FtraceEvent`.
        number: u32,
    },
    /// A message that says only that the probe was hit.
    Kprobe,
    /// A message that the trace describes along with the data.
    Generic(SelfDescribed),
}

/// A message that the trace describes along with the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelfDescribed {
    /// The message's number in `FtraceEvent`.
    pub number: u32,
    /// An encoded `GenericEventDescriptor`.
    pub descriptor: Vec<u8>,
}

/// How to encode one kind of event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPlan {
    /// The kernel's number for it.
    pub id: u16,
    /// Its group.
    pub group: String,
    /// Its name.
    pub name: String,
    /// The smallest size of such an event in the ring buffer, in bytes.
    pub size: usize,
    /// Offset of the id of the thread that ran when the event happened. Hypervisors' events have none.
    pub common_pid: Option<usize>,
    /// The message that it becomes.
    pub encoding: Encoding,
    /// Its fields, in the order in which they are written.
    pub fields: Vec<FieldPlan>,
}

impl EventPlan {
    /// Whether the trace format has no message for the event.
    pub(crate) fn is_generic(&self) -> bool {
        matches!(self.encoding, Encoding::Generic(_))
    }
}

/// How to encode one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldPlan {
    /// The kernel's name.
    pub name: String,
    /// Number of the field in the message.
    pub number: u32,
    /// Type of the field in the message.
    pub proto_type: ProtoType,
    /// Byte offset in the event.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
    /// How to read it.
    pub read: Read,
}

/// See the [module's documentation](self).
#[derive(Clone, Debug)]
pub struct Table {
    layout: PageLayout,
    printk_formats: PrintkFormats,
    /// By the kernel's id.
    plans: Vec<Option<EventPlan>>,
    ids: HashMap<(String, String), u16>,
    switch: Option<(u16, SwitchFormat)>,
    waking: Option<(u16, WakingFormat)>,
    next_self_described: u32,
}

impl Table {
    /// A table without events.
    pub fn new(layout: PageLayout, printk_formats: PrintkFormats) -> Self {
        Self {
            layout,
            printk_formats,
            plans: Vec::new(),
            ids: HashMap::new(),
            switch: None,
            waking: None,
            next_self_described: FIRST_SELF_DESCRIBED,
        }
    }

    /// Adds an event, given the contents of its format file, and returns its id. Does not change an event that exists
    /// already.
    ///
    /// # Errors
    /// If the text is no format file, or all numbers for events that describe themselves are taken.
    pub fn add(&mut self, group: &str, name: &str, format: &str) -> Result<u16, TableError> {
        if let Some(plan) = self.find(group, name) {
            return Ok(plan.id);
        }
        let format = parse(group, name, format)?;
        let plan = match typed::find(group, name) {
            Some(event) => plan_typed(group, name, &event, &format),
            None => {
                let number = self.next_self_described;
                if number > LAST_SELF_DESCRIBED {
                    return Err(TableError::NumbersUsedUp {
                        group: group.to_owned(),
                        name: name.to_owned(),
                    });
                }
                self.next_self_described += 1;
                plan_generic(group, name, &format, number)
            }
        };
        match (group, name) {
            ("sched", "sched_switch") => {
                self.switch = SwitchFormat::of(&format).map(|switch| (format.id, switch))
            }
            ("sched", "sched_waking") => {
                self.waking = WakingFormat::of(&format).map(|waking| (format.id, waking))
            }
            _ => {}
        }
        Ok(self.insert(plan))
    }

    /// Adds a kprobe or kretprobe that a config asked for, given the contents of its format file.
    ///
    /// # Errors
    /// If the text is no format file.
    pub fn add_kprobe(&mut self, group: &str, name: &str, format: &str) -> Result<u16, TableError> {
        if let Some(plan) = self.find(group, name) {
            return Ok(plan.id);
        }
        let format = parse(group, name, format)?;
        Ok(self.insert(EventPlan {
            id: format.id,
            group: group.to_owned(),
            name: name.to_owned(),
            size: end_of(&format.common),
            common_pid: common_pid(&format),
            encoding: Encoding::Kprobe,
            fields: Vec::new(),
        }))
    }

    /// Forgets an event that the kernel no longer has: another event may get its id.
    pub(crate) fn remove(&mut self, group: &str, name: &str) {
        let Some(id) = self.ids.remove(&(group.to_owned(), name.to_owned())) else {
            return;
        };
        if let Some(slot) = self.plans.get_mut(usize::from(id)) {
            *slot = None;
        }
        if self.switch.is_some_and(|(switch, _)| switch == id) {
            self.switch = None;
        }
        if self.waking.is_some_and(|(waking, _)| waking == id) {
            self.waking = None;
        }
    }

    /// The plan for an event, if it was added.
    pub fn find(&self, group: &str, name: &str) -> Option<&EventPlan> {
        // Not on the hot path: a config names its events once.
        self.ids
            .get(&(group.to_owned(), name.to_owned()))
            .and_then(|id| self.plan(*id))
    }

    /// The plan for the events with this id.
    #[inline]
    pub(crate) fn plan(&self, id: u16) -> Option<&EventPlan> {
        self.plans.get(usize::from(id))?.as_ref()
    }

    /// All plans, by ascending id.
    pub fn plans(&self) -> impl Iterator<Item = &EventPlan> {
        self.plans.iter().flatten()
    }

    /// The layout of the ring buffer's pages.
    pub fn layout(&self) -> &PageLayout {
        &self.layout
    }

    pub(super) fn printk_formats(&self) -> &PrintkFormats {
        &self.printk_formats
    }

    pub(super) fn switch(&self) -> Option<(u16, SwitchFormat)> {
        self.switch
    }

    pub(super) fn waking(&self) -> Option<(u16, WakingFormat)> {
        self.waking
    }

    /// The count of numbers in use for self-described events: the bundle writer keeps a mark for each.
    pub(super) fn self_described_count(&self) -> usize {
        (self.next_self_described - FIRST_SELF_DESCRIBED) as usize
    }

    fn insert(&mut self, plan: EventPlan) -> u16 {
        let id = plan.id;
        let index = usize::from(id);
        if self.plans.len() <= index {
            self.plans.resize_with(index + 1, || None);
        }
        let (group, name) = (plan.group.clone(), plan.name.clone());
        if let Some(old) = self.plans[index].replace(plan) {
            // The kernel gave a removed probe's id to another event before `remove` was called.
            self.ids.remove(&(old.group, old.name));
        }
        self.ids.insert((group, name), id);
        id
    }
}

fn parse(group: &str, name: &str, format: &str) -> Result<EventFormat, TableError> {
    EventFormat::parse(format).map_err(|source| TableError::Format {
        group: group.to_owned(),
        name: name.to_owned(),
        source,
    })
}

fn end_of(fields: &[FormatField]) -> usize {
    fields
        .iter()
        .map(|field| usize::from(field.end()))
        .max()
        .unwrap_or(0)
}

fn common_pid(format: &EventFormat) -> Option<usize> {
    let field = format
        .common
        .iter()
        .find(|field| field.name() == Some("common_pid"))?;
    (field.kind() == Some(FieldKind::CommonPid)).then_some(usize::from(field.offset))
}

/// Matches the schema's fields with those of this kernel.
fn plan_typed(group: &str, name: &str, event: &TypedEvent, format: &EventFormat) -> EventPlan {
    let mut size = end_of(&format.common);
    let mut fields = Vec::new();
    for wanted in event.fields() {
        let Some(found) = format
            .fields
            .iter()
            .find(|field| field.name() == Some(wanted.name))
        else {
            continue;
        };
        let kind = match (wanted.declared, found.kind()) {
            (Declared::AsInteger, Some(FieldKind::Unsigned(width))) => Some(FieldKind::KernelAddress(width)),
            (_, kind) => kind,
        };
        let Some(read) = kind.and_then(|kind| kind.read_as(wanted.proto_type)) else {
            continue;
        };
        size = size.max(usize::from(found.end()));
        fields.push(FieldPlan {
            name: wanted.name.to_owned(),
            number: wanted.number,
            proto_type: wanted.proto_type,
            offset: found.offset.into(),
            size: found.size.into(),
            read,
        });
    }
    let number = event.number;
    let encoding = match number {
        FtraceEvent::SYS_ENTER => match take_arguments(&mut fields) {
            Some(arguments) => Encoding::SysEnter { number, arguments },
            None => Encoding::Typed { number },
        },
        FtraceEvent::SYS_EXIT => Encoding::SysExit { number },
        _ => Encoding::Typed { number },
    };
    EventPlan {
        id: format.id,
        group: group.to_owned(),
        name: name.to_owned(),
        size,
        common_pid: common_pid(format),
        encoding,
        fields,
    }
}

/// Takes the array of six arguments out of the fields of `sys_enter`; the plan's size covers it.
fn take_arguments(fields: &mut Vec<FieldPlan>) -> Option<(usize, Width)> {
    let at = fields.iter().position(|field| field.name == "args")?;
    let width = match fields[at].size {
        48 => Width::Eight,
        24 => Width::Four,
        _ => return None,
    };
    Some((fields.remove(at).offset, width))
}

/// Takes all fields that can be read, numbered in the kernel's order.
fn plan_generic(group: &str, name: &str, format: &EventFormat, number: u32) -> EventPlan {
    let mut fields = Vec::new();
    for field in &format.fields {
        let (Some(name), Some(kind)) = (field.name(), field.kind()) else {
            continue;
        };
        let proto_type = kind.generic_type();
        let number = fields.len() as u32 + 1;
        let Some(read) = kind.read_as(proto_type) else {
            continue;
        };
        fields.push(FieldPlan {
            name: name.to_owned(),
            number,
            proto_type,
            offset: field.offset.into(),
            size: field.size.into(),
            read,
        });
    }
    let descriptor = generic::describe(group, name, number, &fields);
    EventPlan {
        id: format.id,
        group: group.to_owned(),
        name: name.to_owned(),
        size: end_of(&format.common).max(end_of(&format.fields)),
        common_pid: common_pid(format),
        encoding: Encoding::Generic(SelfDescribed { number, descriptor }),
        fields,
    }
}
