//! Records a trace for a profile: in the file that the user wants, or, if another format is wanted, in a folder that is removed at the end.
//!
//! `ferretto profile` and `ferretto heap` call [`Wish::record`].

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use ferretto_proto::messages::TraceConfig;

use super::Goal;
use crate::convert::Format;
use crate::perfetto::{
    self, Below, CommandLine, FAILURE, Filled, INCOMPLETE, Loudness, Order, SUCCESS, Strictness,
};
use crate::service::FindService;
use crate::stderr;

/// The subject of a recording, and its settings.
pub(crate) struct Wish<'a> {
    /// The name of the subcommand, which begins each message.
    pub(crate) name: &'static str,
    pub(crate) goal: &'a Goal,
    pub(crate) config: TraceConfig,
    pub(crate) is_quiet: bool,
    pub(crate) strictness: Strictness,
    /// How long to record, counted from the time at which all data sources have started; `None` until the command ends, or Ctrl-C.
    pub(crate) once_started: Option<Duration>,
    pub(crate) command: Option<CommandLine>,
    /// The display of a terminal meanwhile.
    pub(crate) below: Option<Box<dyn Below>>,
}

impl Wish<'_> {
    /// Records, and calls `finish` if there is a trace. Returns the exit code.
    pub(crate) fn record<E: Display>(
        self,
        find_service: FindService<'_>,
        finish: impl FnOnce(&Filled) -> Result<(), E>,
    ) -> u8 {
        let say = |error: &dyn Display| stderr::say(self.name, error);
        let place = match Place::new(self.goal) {
            Ok(place) => place,
            Err(error) => {
                say(&error);
                return FAILURE;
            }
        };
        let order = Order {
            config: self.config,
            out: place.trace.clone(),
            loudness: match self.is_quiet || place.folder.is_some() {
                true => Loudness::Quiet,
                false => Loudness::Usual,
            },
            strictness: self.strictness,
            once_started: self.once_started,
            command: self.command,
            below: self.below,
        };
        let filled = match perfetto::fill(order, find_service) {
            Ok(filled) => filled,
            Err(code) => return code,
        };
        let code = filled.recorded.code;
        // A failed recording may leave part of a trace, or a file from before; neither is this profile.
        if filled.recorded.trace != SUCCESS && filled.recorded.trace != INCOMPLETE {
            return code;
        }
        match finish(&filled) {
            Ok(()) => code,
            Err(error) => {
                say(&error);
                match code {
                    SUCCESS => FAILURE,
                    code => code,
                }
            }
        }
    }
}

/// There is no room for a trace.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a file for the trace: {0}; set TMPDIR to a folder with room")]
struct PlaceError(std::io::Error);

/// Where the trace is while it is recorded.
struct Place {
    /// `None` for a name that nothing has.
    trace: Option<PathBuf>,
    /// The folder that is removed at the end, if only something else than the trace is wanted.
    folder: Option<tempfile::TempDir>,
}

impl Place {
    fn new(goal: &Goal) -> Result<Place, PlaceError> {
        if goal.format.format() == Format::Perfetto {
            return Ok(Place {
                trace: goal.file.clone(),
                folder: None,
            });
        }
        let folder = tempfile::Builder::new().prefix("ferretto-profile-").tempdir();
        let folder = folder.map_err(PlaceError)?;
        Ok(Place {
            trace: Some(folder.path().join("trace.pftrace")),
            folder: Some(folder),
        })
    }
}
