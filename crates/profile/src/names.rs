//! Names of functions of user space, from the symbol tables of the files that are sampled.
//!
//! [`Stacks`](crate::stacks::Stacks) asks for a name once for each frame of a process. As upstream's, names are those of the file's own symbol tables, mangled;
//! readers of the trace demangle them, and `ferretto symbolize` adds what debug information says. Memory is bounded: the table unused for
//! longest is dropped first, and large tables are left out.

use std::collections::HashMap;
use std::sync::Arc;

use ferretto_unwind::{Module, Process, SymbolTable};

/// Bytes of the symbol table of one file.
const LARGEST_TABLE: u64 = 24 << 20;

/// Bytes of a name. Those of C++ templates may have some thousand.
const LONGEST_NAME: usize = 4096;

/// Bytes of all symbol tables.
const MOST_BYTES: usize = 64 << 20;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// By the module's serial number.
    tables: HashMap<u64, Table>,
    bytes: usize,
    clock: u64,
}

#[derive(Debug)]
struct Table {
    symbols: SymbolTable,
    used: u64,
}

impl Names {
    /// The name of the function that `address` is in, as the module in this mapping counts addresses; empty if it is not known.
    pub(crate) fn name(
        &mut self,
        process: &Process,
        mapping: u32,
        module: &Arc<Module>,
        address: u64,
    ) -> &[u8] {
        self.clock += 1;
        let serial = module.serial();
        if !self.tables.contains_key(&serial) {
            let request = process.load_request(mapping);
            let symbols = request
                .map(|request| SymbolTable::of(&request, LARGEST_TABLE))
                .unwrap_or_default();
            self.bytes += symbols.memory_bytes() + size_of::<Table>();
            self.tables.insert(
                serial,
                Table {
                    symbols,
                    used: self.clock,
                },
            );
            self.shrink(serial);
        }
        let Some(table) = self.tables.get_mut(&serial) else {
            return b"";
        };
        table.used = self.clock;
        let name = table.symbols.lookup(address).unwrap_or_default().as_bytes();
        &name[..name.len().min(LONGEST_NAME)]
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        *self = Names::default();
    }

    /// Lets go of other tables than this one until the rest fits.
    fn shrink(&mut self, kept: u64) {
        while self.bytes > MOST_BYTES {
            let others = self.tables.iter().filter(|(serial, _)| **serial != kept);
            let Some(oldest) = others
                .min_by_key(|(_, table)| table.used)
                .map(|(serial, _)| *serial)
            else {
                return;
            };
            if let Some(table) = self.tables.remove(&oldest) {
                self.bytes -= table.symbols.memory_bytes() + size_of::<Table>();
            }
        }
    }
}
