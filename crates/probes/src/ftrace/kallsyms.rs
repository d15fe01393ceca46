//! Names of kernel functions for the addresses in events, when a config asks for them (`symbolize_ksyms`).
//!
//! `/proc/kallsyms` lists some 100,000 functions in 5 MB of text. [`KernelSymbols`] keeps them in 1.4 MB. It cuts
//! names at their underscores into tokens and stores each distinct token once. A symbol is its distance from the
//! previous symbol and the numbers of its tokens, all as varints; frequent tokens have short numbers. Every sixteenth
//! symbol starts a block with its full address. So a lookup takes a binary search and at most sixteen steps.
//!
//! Addresses never leave the daemon: the trace carries indexes and names.

mod list;

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read};

use ferretto_wire::{push_varint, take_varint};
pub use list::{NotRestored, reserve};

/// Symbols between two entries of the index.
const BLOCK: usize = 16;
/// Longest name kept: the kernel's `KSYM_NAME_LEN`.
const LONGEST_NAME: usize = 512;
/// An address further than this behind a symbol lies not in that function but in heap or module data after it.
const LONGEST_FUNCTION: u64 = 1 << 20;
/// The kernel writes no longer lines.
const LONGEST_LINE: u64 = 1024;

/// The functions of the running kernel, by address.
#[derive(Debug, Default)]
pub struct KernelSymbols {
    /// For each block, the address of its first symbol and its offset in `symbols`.
    blocks: Vec<(u64, u32)>,
    /// For each symbol: varint of the distance from the symbol before (0 at the start of a block), then varints of
    /// `token << 1`, the last one with bit 0 set.
    symbols: Vec<u8>,
    /// The tokens' text, most frequent first, without separators.
    tokens: String,
    /// Where each token ends in `tokens`.
    token_ends: Vec<u32>,
    count: usize,
}

impl KernelSymbols {
    /// Reads the functions of the running kernel. The result is empty if the kernel hides addresses, as it does without root, or with
    /// `/proc/sys/kernel/kptr_restrict` at 2 from a process that has not [reserved](reserve) the list.
    ///
    /// # Errors
    /// If the list cannot be read.
    pub fn of_this_kernel() -> io::Result<KernelSymbols> {
        list::read(|list| KernelSymbols::parse(BufReader::with_capacity(64 << 10, list)))
    }

    /// Parses text of the form of `/proc/kallsyms`: address, type, name, and after a tab the module.
    ///
    /// # Errors
    /// If `text` cannot be read. Lines that are no symbols are left out.
    pub fn parse(mut text: impl BufRead) -> io::Result<KernelSymbols> {
        let mut names = Names::default();
        let mut line = Vec::with_capacity(256);
        loop {
            line.clear();
            if text.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? == 0 {
                break;
            }
            if let Some((address, name)) = std::str::from_utf8(&line).ok().and_then(parse_line) {
                names.add(address, name);
            }
        }
        Ok(names.pack())
    }

    /// Number of symbols.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Whether there is no symbol.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes that the table takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.blocks.capacity() * size_of::<(u64, u32)>()
            + self.symbols.capacity()
            + self.tokens.capacity()
            + self.token_ends.capacity() * size_of::<u32>()
    }

    /// Replaces `name` by the name of the function that contains `address`; `false` if there is none.
    pub fn lookup(&self, address: u64, name: &mut String) -> bool {
        let after = self.blocks.partition_point(|&(first, _)| first <= address);
        let Some(&(first, start)) = after.checked_sub(1).and_then(|block| self.blocks.get(block)) else {
            return false;
        };
        let end = self
            .blocks
            .get(after)
            .map_or(self.symbols.len(), |&(_, start)| start as usize);
        let mut block = &self.symbols[start as usize..end];

        let (mut symbol_address, mut tokens_of_symbol) = (first, block);
        let mut candidate = first;
        while let Some(distance) = take_varint(&mut block) {
            candidate += distance;
            if candidate > address {
                break;
            }
            (symbol_address, tokens_of_symbol) = (candidate, block);
            while take_varint(&mut block).is_some_and(|token| token & 1 == 0) {}
        }
        if address - symbol_address > LONGEST_FUNCTION {
            return false;
        }
        name.clear();
        let mut separator = "";
        while let Some(token) = take_varint(&mut tokens_of_symbol) {
            name.push_str(separator);
            name.push_str(self.token((token >> 1) as usize));
            separator = "_";
            if token & 1 == 1 {
                break;
            }
        }
        true
    }

    fn token(&self, number: usize) -> &str {
        let start = number.checked_sub(1).map_or(0, |before| self.token_ends[before]);
        &self.tokens[start as usize..self.token_ends[number] as usize]
    }
}

/// Symbols as they are read, before they are packed.
#[derive(Default)]
struct Names {
    numbers: HashMap<Box<str>, u32>,
    /// By number: how often the token occurs.
    uses: Vec<u32>,
    /// Tokens of all symbols in reading order.
    tokens: Vec<u32>,
    /// Address, first token in `tokens`, number of tokens.
    symbols: Vec<(u64, u32, u16)>,
}

impl Names {
    fn add(&mut self, address: u64, name: &str) {
        let first = self.tokens.len();
        for token in name.split('_') {
            let number = match self.numbers.get(token) {
                Some(&number) => number,
                None => {
                    let number = self.uses.len() as u32;
                    self.numbers.insert(token.into(), number);
                    self.uses.push(0);
                    number
                }
            };
            self.uses[number as usize] += 1;
            self.tokens.push(number);
        }
        self.symbols
            .push((address, first as u32, (self.tokens.len() - first) as u16));
    }

    fn pack(mut self) -> KernelSymbols {
        let mut packed = KernelSymbols::default();
        let mut by_use: Vec<(Box<str>, u32)> = self.numbers.into_iter().collect();
        by_use.sort_unstable_by(|a, b| {
            self.uses[b.1 as usize]
                .cmp(&self.uses[a.1 as usize])
                .then_with(|| a.0.cmp(&b.0))
        });
        let mut renumbered = vec![0u32; by_use.len()];
        for (rank, (text, number)) in by_use.iter().enumerate() {
            renumbered[*number as usize] = rank as u32;
            packed.tokens.push_str(text);
            packed.token_ends.push(packed.tokens.len() as u32);
        }

        // A stable sort: of several names of one address the first listed is kept.
        self.symbols.sort_by_key(|&(address, ..)| address);
        self.symbols.dedup_by_key(|&mut (address, ..)| address);
        let mut previous = 0;
        for (index, &(address, first, tokens)) in self.symbols.iter().enumerate() {
            if index % BLOCK == 0 {
                packed.blocks.push((address, packed.symbols.len() as u32));
                previous = address;
            }
            push_varint(&mut packed.symbols, address - previous);
            previous = address;
            let tokens = &self.tokens[first as usize..first as usize + usize::from(tokens)];
            for (position, &token) in tokens.iter().enumerate() {
                let last = u64::from(position + 1 == tokens.len());
                push_varint(
                    &mut packed.symbols,
                    u64::from(renumbered[token as usize]) << 1 | last,
                );
            }
        }
        packed.count = self.symbols.len();
        packed.blocks.shrink_to_fit();
        packed.symbols.shrink_to_fit();
        packed.tokens.shrink_to_fit();
        packed.token_ends.shrink_to_fit();
        packed
    }
}

/// Address and name of a line that is a function in memory with a name that people recognise.
fn parse_line(line: &str) -> Option<(u64, &str)> {
    let mut fields = line.split_ascii_whitespace();
    let address = u64::from_str_radix(fields.next()?, 16).ok()?;
    let kind = fields.next()?;
    let name = fields.next()?;
    // `$x` and `$d` mark code and data for disassemblers on ARM.
    if address == 0 || !matches!(kind, "t" | "T") || name.starts_with('$') || name.len() > LONGEST_NAME {
        return None;
    }
    // Clang's control-flow integrity doubles functions under these names.
    let plain = name
        .strip_suffix(".cfi_jt")
        .or_else(|| name.strip_suffix(".cfi"))
        .unwrap_or(name);
    Some((address, plain))
}

#[cfg(test)]
mod tests;
