//! From a trace to tables: the tokenizer, the sorter and the trackers, one after the other.

use std::collections::BTreeSet;
use std::io::Read;
use std::ops::ControlFlow;

use ferretto_trace_file::{self as trace_file, Damage, Piece, nothing_read};

use crate::context::{Context, Known};
use crate::error::Error;
use crate::output::Output;
use crate::rows::Cell;
use crate::schema::{FTRACE_EVENT, LOSS, Table};
use crate::sink::Sink;
use crate::sorter::Sorter;
use crate::tokenizer::{OTHER_MACHINES, Tokenizer};
use crate::trackers::Trackers;

/// Memory for events before they are in order.
const MEMORY: usize = 64 << 20;
/// The most rows of damage. A file of noise is damaged everywhere.
const MOST_DAMAGE: usize = 1 << 16;

/// How a trace becomes tables.
#[derive(Debug, Clone)]
pub struct Options {
    /// The bytes of memory in which events are sorted. What exceeds them goes through a temporary file.
    pub memory: usize,
    /// The tables that are made.
    pub tables: Selection,
}

/// Which tables are made of a trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Selection {
    /// All but `ftrace_event`. It has each kernel event with all fields as rows of `args`, several times as much as the other tables have of it.
    #[default]
    Usual,
    /// All of them.
    All,
    /// Those with these names.
    Named(BTreeSet<&'static str>),
}

impl Selection {
    pub(crate) fn has(&self, table: &Table) -> bool {
        match self {
            Selection::Usual => table.name != FTRACE_EVENT.name,
            Selection::All => true,
            Selection::Named(names) => names.contains(table.name),
        }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            memory: MEMORY,
            tables: Selection::Usual,
        }
    }
}

/// What has become of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// The packets that were read.
    pub packets: u64,
    /// The bytes of the trace, expanded.
    pub bytes: u64,
    /// The damaged places, and one if the file ends within a packet.
    pub losses: u64,
}

/// What ends the reading of a trace early.
enum Stop {
    NoTrace(String),
    Spill(std::io::Error),
    Failed(Error),
}

/// Makes tables of a trace. Damaged and truncated traces become tables as far as they go; the table `ferretto_loss` says what was lost.
///
/// # Errors
/// If the source cannot be read, is no trace, or if the tables cannot be stored.
pub fn import(source: impl Read, options: &Options, sink: &mut dyn Sink) -> Result<Report, Error> {
    let mut context = Context::new(Output::new(sink, &options.tables));
    let mut tokenizer = Tokenizer::new(Sorter::new(options.memory));
    let mut trackers = Trackers::new(&mut context);
    let mut losses = Vec::new();
    let mut report = Report {
        packets: 0,
        bytes: 0,
        losses: 0,
    };
    let read = trace_file::read(source, |piece| {
        match piece {
            Piece::Packet(packet) => {
                report.packets += 1;
                if let Err(error) = tokenizer.packet(packet, &mut context) {
                    return ControlFlow::Break(Stop::Spill(error));
                }
                if let Err(error) = context.output.check() {
                    return ControlFlow::Break(Stop::Failed(error));
                }
            }
            Piece::Damage(damage) => {
                report.losses += 1;
                if report.packets == 0 && ends_at_once(&damage) {
                    return ControlFlow::Break(Stop::NoTrace(nothing_read(&damage)));
                }
                if losses.len() < MOST_DAMAGE {
                    losses.push(damage);
                }
            }
            Piece::CompressedStart(_) | Piece::CompressedEnd => {}
        }
        ControlFlow::Continue(())
    });
    let end = match read.map_err(Error::Read)? {
        ControlFlow::Continue(end) => end,
        ControlFlow::Break(Stop::NoTrace(what)) => return Err(Error::NoTrace(what)),
        ControlFlow::Break(Stop::Spill(error)) => return Err(Error::Spill(error)),
        ControlFlow::Break(Stop::Failed(error)) => return Err(error),
    };
    if let (0, Some(first)) = (report.packets, losses.first()) {
        return Err(Error::NoTrace(nothing_read(first)));
    }
    if end.size == 0 {
        return Err(Error::NoTrace("is empty".to_owned()));
    }
    report.bytes = end.size;
    tokenizer.finish(&mut context).map_err(Error::Spill)?;
    if tokenizer.sorter.negative() > 0 {
        let negative = tokenizer.sorter.negative() as i64;
        context
            .stats
            .add("trace_sorter_negative_timestamp_dropped", None, negative);
    }
    let unread = tokenizer.unread().clone();
    let Tokenizer { sorter, queues, .. } = tokenizer;
    let mut until_check = 0_u32;
    sorter.finish(|sorted| {
        trackers.event(queues.queue(sorted.queue), sorted.ts, sorted.event, &mut context);
        until_check += 1;
        match until_check.is_multiple_of(1024) {
            true => context.output.check(),
            false => Ok(()),
        }
    })?;
    trackers.finish(&mut context);

    let mut rows = 0;
    let mut lost = |kind, offset: Option<u64>, bytes: Option<i64>, packets: Option<i64>, detail: &str| {
        let row = [
            Cell::from(rows),
            context.output.text(&LOSS, kind),
            Cell::from(offset.map(|offset| offset as i64)),
            Cell::from(bytes),
            Cell::from(packets),
            context.output.text(&LOSS, detail),
        ];
        rows += 1;
        context.output.push(&LOSS, &row, &context.strings);
    };
    for damage in &losses {
        lost(
            "damage",
            Some(damage.offset),
            Some(damage.skipped as i64),
            None,
            &damage.reason.to_string(),
        );
    }
    if let Some(cut) = end.cut {
        report.losses += 1;
        lost(
            "cut",
            Some(cut.offset),
            Some(cut.bytes as i64),
            None,
            &cut.to_string(),
        );
    }
    for (field, (packets, bytes)) in unread {
        let detail = match field {
            OTHER_MACHINES => "packets of other machines".to_owned(),
            field => format!("field {field} of TracePacket"),
        };
        lost("packets", None, Some(bytes), Some(packets), &detail);
    }
    if context.strings.beyond() > 0 {
        let beyond = context.strings.beyond() as i64;
        context.stats.add("ferretto_names_passed_over", None, beyond);
    }
    context
        .metadata
        .set("trace_type", Known::Text("proto".to_owned()));
    let Context {
        strings,
        mut output,
        stats,
        metadata,
        cpus,
        machine,
        ..
    } = context;
    stats.write(&strings, &mut output);
    metadata.write(&strings, &mut output);
    cpus.write(&strings, &mut output);
    machine.write(&strings, &mut output);
    output.finish(&strings)?;
    Ok(report)
}

/// Whether a damage at the beginning of the file means that it is something else.
fn ends_at_once(damage: &Damage) -> bool {
    damage.offset == 0 && ferretto_trace_file::Foreign::of(damage).is_some()
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        Error::Spill(error)
    }
}
