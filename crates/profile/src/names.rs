//! Names of functions of user space: from the symbol tables of the files that are sampled, and from the lists that just-in-time compilers keep.
//!
//! [`Stacks`](crate::stacks::Stacks) asks for a name once for each frame of a process, and each time for frames of code without a file, which compilers
//! replace. As upstream's, names of files are those of their own symbol tables, mangled; readers of the trace demangle them, and `ferretto symbolize` adds
//! what debug information says. Names of compiled code are in no file that could be looked at later, so this is the only place that has them. Memory is
//! bounded: the table unused for longest is dropped first, and large tables are left out.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferretto_unwind::{Module, PerfMap, Process, SymbolTable};

/// Bytes of the symbol table of one file, or of a compiler's list.
const LARGEST_TABLE: u64 = 24 << 20;

/// Bytes of a name. Those of C++ templates may have some thousand.
const LONGEST_NAME: usize = 4096;

/// Bytes of all symbol tables.
const MOST_BYTES: usize = 64 << 20;

/// A compiler's list is read again after this time at the earliest, if a name is missing.
const LIST_INTERVAL: Duration = Duration::from_secs(1);

/// Nor is it read for more than this part of the time.
const LIST_SHARE: u32 = 50;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Names {
    tables: HashMap<Owner, Table>,
    bytes: usize,
    clock: u64,
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
struct Table {
    symbols: Symbols,
    used: u64,
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

impl List {
    fn new() -> List {
        List {
            functions: PerfMap::default(),
            next_look: Instant::now(),
        }
    }

    /// Reads it again if it has grown, unless that was done lately.
    fn look(&mut self, process: &Process) {
        let began = Instant::now();
        if began >= self.next_look {
            // Most processes have none.
            let _ = self.functions.renew(process, LARGEST_TABLE);
            self.next_look = Instant::now() + LIST_INTERVAL.max(began.elapsed() * LIST_SHARE);
        }
    }
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
    /// The name of the function that `address` is in, as the module in this mapping counts addresses; empty if it is not known.
    pub(crate) fn of_module(
        &mut self,
        process: &Process,
        mapping: u32,
        module: &Arc<Module>,
        address: u64,
    ) -> &[u8] {
        let owner = Owner::Module(module.serial());
        self.use_table(owner, || {
            let request = process.load_request(mapping);
            let symbols = request.map(|request| SymbolTable::of(&request, LARGEST_TABLE));
            Symbols::OfFile(symbols.unwrap_or_default())
        });
        self.shrink(owner);
        self.lookup(owner, address)
    }

    /// The name of the compiled function that `pc` is in, of a process that runs its program since `since`; empty if it is not known.
    pub(crate) fn of_compiled(&mut self, process: &Process, (pid, since): (i32, u64), pc: u64) -> &[u8] {
        let owner = Owner::Compiler(pid, since);
        let table = self.use_table(owner, || Symbols::Listed(List::new()));
        let before = table.symbols.memory_bytes();
        if let Symbols::Listed(list) = &mut table.symbols
            && list.functions.lookup(pc).is_none()
        {
            list.look(process);
        }
        let after = table.symbols.memory_bytes();
        self.bytes = self.bytes - before + after;
        self.shrink(owner);
        self.lookup(owner, pc)
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        *self = Names::default();
    }

    /// The table of an owner, which `make` makes the first time.
    fn use_table(&mut self, owner: Owner, make: impl FnOnce() -> Symbols) -> &mut Table {
        self.clock += 1;
        let table = self.tables.entry(owner).or_insert_with(|| {
            let symbols = make();
            self.bytes += symbols.memory_bytes() + size_of::<Table>();
            Table { symbols, used: 0 }
        });
        table.used = self.clock;
        table
    }

    fn lookup(&self, owner: Owner, address: u64) -> &[u8] {
        self.tables
            .get(&owner)
            .map_or(b"", |table| table.symbols.lookup(address))
    }

    /// Lets go of other tables than this one, which is in use, until the rest fits.
    fn shrink(&mut self, kept: Owner) {
        while self.bytes > MOST_BYTES {
            let others = self.tables.iter().filter(|(owner, _)| **owner != kept);
            let Some(oldest) = others
                .min_by_key(|(_, table)| table.used)
                .map(|(owner, _)| *owner)
            else {
                return;
            };
            if let Some(table) = self.tables.remove(&oldest) {
                self.bytes -= table.symbols.memory_bytes() + size_of::<Table>();
            }
        }
    }
}
