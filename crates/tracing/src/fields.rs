//! Fields of spans and events, read once into a scratch that each thread keeps.
//!
//! Values are formatted here and not while the packet is being written. So an event of a user's `Debug` is recorded as an event of its own, and a
//! span's fields, which `tracing` shows when the span is made, can wait for the slice.

use std::cell::Cell;
use std::error::Error;
use std::fmt::{self, Write};

use ferretto::debug_annotation::{DebugAnnotation, debug, display};
use ferretto::private::EncodedAnnotations;
use tracing_core::field::{Field, Visit};

use crate::counters::Number;
use crate::sites::{Role, Site};

/// Memory of a message that a scratch keeps at most.
const MAX_KEPT: usize = 1 << 16;

/// The fields that were read.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    pub(crate) annotations: EncodedAnnotations,
    pub(crate) message: Option<String>,
    /// Samples of the site's counters.
    pub(crate) samples: Vec<(usize, Number)>,
    /// The fields of a record of the crate `log`.
    pub(crate) log: LogRecord,
    /// Kept for the next message.
    spare: String,
}

/// The origin of a record of the crate `log`.
#[derive(Debug, Default)]
pub(crate) struct LogRecord {
    pub(crate) target: String,
    pub(crate) module: String,
    pub(crate) file: String,
    pub(crate) line: u32,
}

thread_local! {
    static SCRATCH: Cell<Option<Box<Fields>>> = const { Cell::new(None) };
}

/// Has `record` show the fields of something at `site`, and `take` see them.
pub(crate) fn read<R>(
    site: &Site,
    record: impl FnOnce(&mut dyn Visit),
    take: impl FnOnce(&Fields) -> R,
) -> R {
    let scratch = SCRATCH.try_with(Cell::take).ok().flatten();
    let mut fields = scratch.unwrap_or_default();
    record(&mut Visitor {
        site,
        ids: site.call_site.annotation_ids(),
        fields: &mut fields,
    });
    let result = take(&fields);
    fields.clear();
    let _ = SCRATCH.try_with(|scratch| scratch.set(Some(fields)));
    result
}

impl Fields {
    fn clear(&mut self) {
        self.annotations.clear();
        if let Some(mut message) = self.message.take()
            && message.capacity() <= MAX_KEPT
        {
            message.clear();
            self.spare = message;
        }
        self.samples.clear();
        self.log.target.clear();
        self.log.module.clear();
        self.log.file.clear();
        self.log.line = 0;
    }
}

struct Visitor<'a> {
    site: &'a Site,
    /// The ids of the fields' names.
    ids: &'a [u32],
    fields: &'a mut Fields,
}

impl Visitor<'_> {
    fn role(&self, field: &Field) -> Role {
        self.site
            .roles
            .get(field.index())
            .copied()
            .unwrap_or(Role::Argument)
    }

    /// Records the field as an argument, whatever else it is.
    fn argument(&mut self, field: &Field, value: impl DebugAnnotation) {
        if let Some(&id) = self.ids.get(field.index()) {
            self.fields.annotations.push(id, value);
        }
    }

    fn number(&mut self, field: &Field, number: Number, value: impl DebugAnnotation) {
        match self.role(field) {
            Role::Counter(index) => self.fields.samples.push((index, number)),
            Role::LogLine => {
                if let Number::Integer(line) = number {
                    self.fields.log.line = u32::try_from(line).unwrap_or(0);
                }
            }
            _ => self.argument(field, value),
        }
    }
}

impl Visit for Visitor<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.number(field, Number::Float(value), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.number(field, Number::Integer(value), value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        let number = i64::try_from(value).map_or(Number::Float(value as f64), Number::Integer);
        self.number(field, number, value);
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        self.number(field, Number::Float(value as f64), value);
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        self.number(field, Number::Float(value as f64), value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.argument(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let role = self.role(field);
        let log = &mut self.fields.log;
        match role {
            Role::Message => self.record_debug(field, &format_args!("{value}")),
            Role::LogTarget => log.target.push_str(value),
            Role::LogFile => log.file.push_str(value),
            Role::LogModule => log.module.push_str(value),
            _ => self.argument(field, value),
        }
    }

    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.argument(field, display(Causes(value)));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if self.role(field) != Role::Message {
            return self.argument(field, debug(value));
        }
        let mut message = std::mem::take(&mut self.fields.spare);
        // A `String` takes everything: the error is one that the value made up.
        let _ = write!(message, "{value:?}");
        self.fields.message = Some(message);
    }
}

/// An error with its causes.
struct Causes<'a>(&'a (dyn Error + 'static));

impl fmt::Display for Causes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
