//! Names of functions of user space: from the symbol tables of the files that are sampled, and from the lists that just-in-time compilers keep.
//!
//! [`Stacks`](crate::stacks::Stacks) asks for a name once for each frame of a process, and each time for frames of code without a file, which compilers
//! replace. As upstream's, names of files are those of their own symbol tables, mangled; readers of the trace demangle them, and `ferretto symbolize` adds
//! what debug information says. Names of compiled code are in no file that could be looked at later, so this is the only place that has them. Memory is
//! bounded: the table unused for longest is dropped first, large symbol tables are left out, and only the end of a long list is read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferretto_probes::lru::LruMap;
use ferretto_unwind::{Module, PerfMap, Process, SymbolTable};

/// Bytes of the symbol table of one file, or of a compiler's list.
const LARGEST_TABLE: u64 = 24 << 20;

/// Bytes of a name. Those of C++ templates may have some thousand.
const LONGEST_NAME: usize = 4096;

/// Bytes of all symbol tables.
const MOST_BYTES: usize = 64 << 20;

/// Tables, with those that have no name.
const MOST_TABLES: usize = 16 << 10;

/// A compiler's list is looked at again after this time at the earliest: before the samples of the next turn, so that code that was compiled meanwhile
/// has its name, and code that took the place of other code has its own.
const LIST_INTERVAL: Duration = Duration::from_millis(20);

/// The same where none was found: most memory without a file has none.
const NO_LIST_INTERVAL: Duration = Duration::from_secs(1);

/// After a list was read, none is read for this many times as long, however many processes keep one. Late names are better than lost samples.
const LISTS_SHARE: u32 = 20;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Names {
    tables: LruMap<Owner, Symbols>,
    bytes: usize,
    /// No list is looked at before this.
    next_look: Instant,
}

impl Default for Names {
    fn default() -> Names {
        Names {
            // One more than stays.
            tables: LruMap::new(MOST_TABLES + 1),
            bytes: 0,
            next_look: Instant::now(),
        }
    }
}

/// Whether there is time to read names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    Files,
    /// Only what was read before counts.
    Nothing,
}

/// The source of the names in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    /// The module with this serial number.
    Module(u64),
    /// The compiler in the process with this id, which began to run its program at this time (0 if that is not known).
    Compiler(i32, u64),
}

#[derive(Debug)]
enum Symbols {
    OfFile(SymbolTable),
    Listed(List),
}

/// The list of a process's compiler, as it was at the last look.
#[derive(Debug)]
struct List {
    functions: PerfMap,
    /// Not looked at again before this.
    next_look: Instant,
}

impl Symbols {
    fn memory_bytes(&self) -> usize {
        match self {
            Symbols::OfFile(symbols) => symbols.memory_bytes(),
            Symbols::Listed(list) => list.functions.memory_bytes(),
        }
    }

    fn lookup(&self, address: u64) -> &[u8] {
        let name = match self {
            Symbols::OfFile(symbols) => symbols.lookup(address),
            Symbols::Listed(list) => list.functions.lookup(address),
        };
        let name = name.unwrap_or_default().as_bytes();
        &name[..name.len().min(LONGEST_NAME)]
    }
}

impl Names {
    /// The name of the function that `address` is in, as the module in this mapping counts addresses; empty if the file does not have it, and `None` if
    /// the file would have to be read.
    pub(crate) fn of_module(
        &mut self,
        process: &Process,
        mapping: u32,
        module: &Arc<Module>,
        address: u64,
        reading: Reading,
    ) -> Option<&[u8]> {
        let owner = Owner::Module(module.serial());
        if reading == Reading::Nothing && self.tables.peek(&owner).is_none() {
            return None;
        }
        let symbols = self.table(owner, || {
            let request = process.load_request(mapping);
            let symbols = request.map(|request| SymbolTable::of(&request, LARGEST_TABLE));
            Symbols::OfFile(symbols.unwrap_or_default())
        });
        symbols.map(|symbols| symbols.lookup(address))
    }

    /// The name of the compiled function that `pc` is in, of a process that runs its program since `since`; empty if it is not known.
    pub(crate) fn of_compiled(
        &mut self,
        process: &Process,
        (pid, since): (i32, u64),
        pc: u64,
        reading: Reading,
    ) -> &[u8] {
        let owner = Owner::Compiler(pid, since);
        let now = Instant::now();
        let may_look = reading == Reading::Files && now >= self.next_look;
        let none = || {
            Symbols::Listed(List {
                functions: PerfMap::default(),
                next_look: now,
            })
        };
        if let Some(Symbols::Listed(list)) = self.table(owner, none)
            && may_look
            && now >= list.next_look
        {
            let before = list.functions.memory_bytes();
            let interval = match list.functions.renew(process, LARGEST_TABLE) {
                Ok(_) => LIST_INTERVAL,
                Err(_) => NO_LIST_INTERVAL,
            };
            let after = list.functions.memory_bytes();
            let then = Instant::now();
            list.next_look = then + interval;
            self.next_look = then + (then - now) * LISTS_SHARE;
            self.bytes = self.bytes - before + after;
            self.shrink();
        }
        self.tables.get(&owner).map_or(b"", |symbols| symbols.lookup(pc))
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        *self = Names::default();
    }

    /// The table of an owner, which `make` makes the first time.
    fn table(&mut self, owner: Owner, make: impl FnOnce() -> Symbols) -> Option<&mut Symbols> {
        if self.tables.get(&owner).is_none() {
            let symbols = make();
            self.bytes += symbols.memory_bytes();
            self.tables.get_or_insert_with(owner, || symbols);
            self.shrink();
        }
        self.tables.get(&owner)
    }

    /// Lets go of tables until the rest fits. The one that was used last stays.
    fn shrink(&mut self) {
        while self.tables.len() > 1 && (self.bytes > MOST_BYTES || self.tables.len() > MOST_TABLES) {
            let Some(oldest) = self.tables.pop_oldest() else {
                return;
            };
            self.bytes -= oldest.memory_bytes();
        }
    }
}
