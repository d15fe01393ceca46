//! Names, files and lines for addresses in modules. For the command line: the daemon that samples does not link this (feature `symbols`).
//!
//! [`DebugFiles`] finds the files that describe a module, by its build id or its path. [`Symbols`] answers for one module; a caller asks for all
//! addresses of a module at once and then drops it, because debug information is large. [`demangle`] makes names readable.
//!
//! The files are read whole, section by section, and not mapped. Their names and tables are hostile like those of unwinding: no file makes this panic,
//! and the limits are beside the code that they bound.

mod debug_files;
mod demangle;
mod dwarf;

pub use debug_files::DebugFiles;
pub use demangle::demangle;

use std::path::PathBuf;

use thiserror::Error;

use crate::elf::Unusable;
use crate::symbol_table::{SymbolTable, underscores};

/// A place in a program's source.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Location {
    /// The function, demangled; `None` if the debug information has no name for it.
    pub function: Option<String>,
    /// The file's path, as the compiler had it.
    pub file: Option<String>,
    /// The line in that file, from 1 on.
    pub line: Option<u32>,
}

/// Why a module has no symbols.
#[derive(Debug, Error)]
pub enum SymbolsError {
    /// No file describes it.
    #[error("there is no file with its symbols; install its debug information, or point to the binary (tried {})", list(.0))]
    NotFound(Vec<PathBuf>),
    /// A file does, but cannot be used.
    #[error("cannot read {path}: {reason}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The reason why it is of no use.
        reason: Unusable,
    },
}

fn list(paths: &[PathBuf]) -> String {
    let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    paths.join(", ")
}

/// Knowledge about the functions of one module.
pub struct Symbols {
    table: SymbolTable,
    lines: Option<dwarf::Lines>,
}

impl Symbols {
    /// The functions at `address`, as the module counts addresses ([`relative_pc`](crate::Process::relative_pc)): the innermost function first, then those
    /// that it was inlined into. Empty if nothing is known.
    pub fn lookup(&self, address: u64) -> Vec<Location> {
        let mut locations = self
            .lines
            .as_ref()
            .map_or(Vec::new(), |lines| lines.lookup(address));
        if locations.is_empty() {
            locations.push(Location::default());
        }
        // The outermost is the one that has a symbol, which may be another name for it.
        if let (Some(outermost), Some(symbol)) = (locations.last_mut(), self.table.lookup(address))
            && outermost
                .function
                .as_ref()
                .is_none_or(|name| is_better(symbol, name))
        {
            outermost.function = Some(symbol.to_owned());
        }
        for name in locations
            .iter_mut()
            .filter_map(|location| location.function.as_mut())
        {
            *name = demangle(name);
        }
        locations.retain(|location| *location != Location::default());
        locations
    }

    /// Whether there are lines, not only names of functions.
    pub fn has_lines(&self) -> bool {
        self.lines.is_some()
    }
}

/// Whether a symbol says more than the name that debug information has for the same function. Debug information that has only lines lacks what a function
/// belongs to, and that of the C library has names which nobody calls.
fn is_better(symbol: &str, name: &str) -> bool {
    let is_mangled = |name: &str| demangle(name) != name;
    let count = |name: &str| underscores(name.as_bytes());
    is_mangled(symbol) && !is_mangled(name) || count(symbol) < count(name)
}
