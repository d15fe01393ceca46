//! The functions in an ELF file's symbol tables, sorted.
//!
//! The CPU profiler names frames with them while it records, and the command line where there is no debug information.

use std::cmp::Reverse;

use object::LittleEndian;
use object::elf::{STB_GLOBAL, STB_WEAK, STT_FUNC, STT_GNU_IFUNC, Sym64};
use object::pod::slice_from_bytes;

use crate::elf::{Headers, Image, Section, Unusable};
use crate::expand;
use crate::mapping_file::{LoadRequest, MappedFile};
use crate::plt::{self, Callee};
use crate::work::Spent;

/// Functions that are kept. A browser has 2,000,000.
const MOST: usize = 1 << 24;
/// Bytes of one section. The largest seen, of a browser, has 300 MB.
#[cfg(feature = "symbols")]
const LARGEST: u64 = 1 << 30;
/// Bytes of a section that has to do with stubs, and of the names of all stubs.
const MOST_FOR_STUBS: u64 = 16 << 20;
/// The end of a stub's name.
pub(crate) const STUB: &str = "@plt";
/// Bytes of a name.
const LONGEST_NAME: usize = 64 << 10;
/// Work for the names of functions at the same addresses, in bytes of names that are looked at for each byte of the table. Symbols can share one name,
/// which would be looked at anew for each of them.
const LOOKING: u64 = 4;
/// The same, for short tables.
const LEAST_LOOKING: u64 = 1 << 20;

fn read_section(
    image: &dyn Image,
    headers: &Headers,
    section: Section,
    limit: u64,
) -> Result<Vec<u8>, Unusable> {
    expand::section(image, headers, section, limit, "symbols")
}

/// The functions of one file, by address.
#[derive(Debug, Default)]
pub struct SymbolTable {
    /// Sorted by address; the best of those with the same.
    functions: Vec<Function>,
    names: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Function {
    address: u64,
    size: u64,
    name: u32,
}

impl SymbolTable {
    /// The functions of the module in a mapping: of its best table whose sections have at most so many bytes. Empty if there is none, or the file
    /// cannot be read.
    pub fn of(request: &LoadRequest, most_bytes: u64) -> SymbolTable {
        let Ok(file) = request.open() else {
            return SymbolTable::default();
        };
        let image: &dyn Image = match &file {
            MappedFile::File(file) => file,
            MappedFile::Memory(bytes) => &&**bytes,
        };
        let Ok(headers) = Headers::read(image) else {
            return SymbolTable::default();
        };
        let size = |name| headers.section(name).map_or(0, |section| section.size);
        let tables: [(&[u8], &[u8]); 2] = [(b".symtab", b".strtab"), (b".dynsym", b".dynstr")];
        for (symbols, names) in tables {
            if size(symbols) > 0 && size(symbols).saturating_add(size(names)) <= most_bytes {
                let table = SymbolTable::read_section(image, &headers, symbols, names, most_bytes);
                return table.with_stubs(image, &headers, most_bytes);
            }
        }
        SymbolTable::default()
    }

    /// Bytes that it takes.
    pub fn memory_bytes(&self) -> usize {
        self.names.len() + self.functions.len() * size_of::<Function>()
    }

    /// The functions of the file's best table: `.symtab`, else what `.gnu_debugdata` adds to `.dynsym`, else `.dynsym`. Damaged ones are empty.
    #[cfg(feature = "symbols")]
    pub(crate) fn read(image: &dyn Image, headers: &Headers) -> SymbolTable {
        SymbolTable::read_best(image, headers).with_stubs(image, headers, LARGEST)
    }

    #[cfg(feature = "symbols")]
    fn read_best(image: &dyn Image, headers: &Headers) -> SymbolTable {
        let whole = SymbolTable::read_section(image, headers, b".symtab", b".strtab", LARGEST);
        if !whole.functions.is_empty() {
            return whole;
        }
        let dynamic = SymbolTable::read_section(image, headers, b".dynsym", b".dynstr", LARGEST);
        let inner = headers
            .section(b".gnu_debugdata")
            .and_then(|section| read_section(image, headers, section, LARGEST).ok())
            .and_then(|content| expand::debugdata(&content).ok());
        let Some(inner) = inner else { return dynamic };
        let inner = inner.as_slice();
        let Ok(headers) = Headers::read(&inner) else {
            return dynamic;
        };
        dynamic.merge(SymbolTable::read_section(
            &inner, &headers, b".symtab", b".strtab", LARGEST,
        ))
    }

    /// Each section has at most `limit` bytes, also if it is compressed.
    fn read_section(
        image: &dyn Image,
        headers: &Headers,
        symbols: &[u8],
        names: &[u8],
        limit: u64,
    ) -> SymbolTable {
        let content = |name| read_section(image, headers, headers.section(name)?, limit).ok();
        let (Some(symbols), Some(names)) = (content(symbols), content(names)) else {
            return SymbolTable::default();
        };
        let count = symbols.len() / size_of::<Sym64<LittleEndian>>();
        let Ok((symbols, _)) = slice_from_bytes::<Sym64<LittleEndian>>(&symbols, count) else {
            return SymbolTable::default();
        };
        let mut functions: Vec<(Function, u8)> = symbols
            .iter()
            .filter(|symbol| {
                let kind = symbol.st_type();
                let defined = symbol.st_shndx.get(LittleEndian).0 != 0;
                defined && (kind == STT_FUNC || kind == STT_GNU_IFUNC)
            })
            .take(MOST)
            .map(|symbol| {
                let function = Function {
                    address: symbol.st_value.get(LittleEndian),
                    size: symbol.st_size.get(LittleEndian),
                    name: symbol.st_name.get(LittleEndian),
                };
                let binding = match symbol.st_bind() {
                    STB_GLOBAL => 0,
                    STB_WEAK => 1,
                    _ => 2,
                };
                (function, binding)
            })
            .collect();
        functions.sort_by_key(|(function, _)| function.address);
        let bytes = (size_of_val(symbols) + names.len()) as u64;
        let mut work = bytes.saturating_mul(LOOKING).max(LEAST_LOOKING);
        let functions: Result<Vec<Function>, Spent> = functions
            .chunk_by(|(a, _), (b, _)| a.address == b.address)
            .filter_map(|same| match same {
                [(function, _)] => Some(Ok(*function)),
                same => best(same, &names, &mut work).transpose(),
            })
            .collect();
        let Ok(mut functions) = functions else {
            return SymbolTable::default();
        };
        // One without a size ends with its section at the latest: `_init` has not what lies behind it.
        let sections = headers.section_addresses();
        for function in functions.iter_mut().filter(|function| function.size == 0) {
            let after = sections.partition_point(|section| section.start <= function.address);
            if let Some(section) = sections[..after].last()
                && section.contains(&function.address)
            {
                function.size = section.end - function.address;
            }
        }
        SymbolTable { functions, names }
    }

    /// Adds the stubs that call functions of other files, named as `perf` does: `malloc@plt`. Where a function is, it stays.
    fn with_stubs(mut self, image: &dyn Image, headers: &Headers, limit: u64) -> SymbolTable {
        let stubs = plt::stubs(image, headers, limit.min(MOST_FOR_STUBS));
        if stubs.is_empty() {
            return self;
        }
        let content = |name| read_section(image, headers, headers.section(name)?, limit).ok();
        let symbols = content(b".dynsym").unwrap_or_default();
        let names = content(b".dynstr").unwrap_or_default();
        let count = symbols.len() / size_of::<Sym64<LittleEndian>>();
        let symbols = slice_from_bytes::<Sym64<LittleEndian>>(&symbols, count);
        let (symbols, _) = symbols.unwrap_or_default();
        let known = self.functions.len();
        let most_names = self.names.len().saturating_add(MOST_FOR_STUBS as usize);
        let mut work = MOST_FOR_STUBS;
        for stub in stubs {
            if self.names.len() >= most_names {
                break;
            }
            let (names, start) = match stub.calls {
                Callee::Symbol(index) => {
                    let symbol = symbols.get(index as usize);
                    (&names, symbol.map(|symbol| symbol.st_name.get(LittleEndian)))
                }
                Callee::ChosenBy(address) => {
                    let function = self.function_among(known, address);
                    (&self.names, function.map(|function| function.name))
                }
            };
            let Some(start) = start else { continue };
            let Ok(callee) = look_at_name(names, start, &mut work) else {
                break;
            };
            let (Some(callee), Ok(name)) = (callee, u32::try_from(self.names.len())) else {
                continue;
            };
            let callee = [callee, STUB.as_bytes(), &[0]].concat();
            self.names.extend(callee);
            self.functions.push(Function {
                address: stub.address,
                size: stub.size,
                name,
            });
        }
        // The sort is stable, so a function that was there comes before a stub at its address, and stays.
        self.functions.sort_by_key(|function| function.address);
        self.functions.dedup_by_key(|function| function.address);
        self
    }

    /// Both tables; where both have an address, the name of `self` stays.
    #[cfg(feature = "symbols")]
    pub(crate) fn merge(mut self, mut other: SymbolTable) -> SymbolTable {
        if self.functions.is_empty() {
            return other;
        }
        let Ok(start) = u32::try_from(self.names.len()) else {
            return self;
        };
        let moved = other.functions.iter().filter_map(|function| {
            let name = function.name.checked_add(start)?;
            Some(Function { name, ..*function })
        });
        self.functions.extend(moved);
        self.names.append(&mut other.names);
        self.functions.sort_by_key(|function| function.address);
        self.functions.dedup_by_key(|function| function.address);
        self
    }

    /// The mangled name of the function that `address` is in. A function without a size reaches to the next, or to the end of its section.
    pub fn lookup(&self, address: u64) -> Option<&str> {
        let function = self.function_among(self.functions.len(), address)?;
        let name = name_at(&self.names, function.name)?;
        std::str::from_utf8(name).ok().filter(|name| !name.is_empty())
    }

    /// The function that `address` is in, among the first functions only, so many.
    fn function_among(&self, count: usize, address: u64) -> Option<&Function> {
        let functions = &self.functions[..count];
        let after = functions.partition_point(|function| function.address <= address);
        let function = functions[..after].last()?;
        let is_within = function.size == 0 || address - function.address < function.size;
        is_within.then_some(function)
    }
}

/// The best of the functions at one address.
fn best(same: &[(Function, u8)], names: &[u8], work: &mut u64) -> Result<Option<Function>, Spent> {
    let mut best = None;
    for (function, binding) in same {
        let name = look_at_name(names, function.name, work)?.unwrap_or_default();
        // The last as `perf` has it.
        let rank = (
            function.size == 0,
            underscores(name),
            *binding,
            Reverse(name.len()),
        );
        if best.is_none_or(|(least, _)| rank < least) {
            best = Some((rank, *function));
        }
    }
    Ok(best.map(|(_, function)| function))
}

/// Looks for a name, and takes the bytes that are looked at from the work.
fn look_at_name<'a>(names: &'a [u8], start: u32, work: &mut u64) -> Result<Option<&'a [u8]>, Spent> {
    let name = name_at(names, start);
    let looked_at = match name {
        Some(name) => name.len() + 1,
        None => names.len().saturating_sub(start as usize).clamp(1, LONGEST_NAME),
    };
    *work = work.checked_sub(looked_at as u64).ok_or(Spent)?;
    Ok(name)
}

fn name_at(names: &[u8], start: u32) -> Option<&[u8]> {
    let name = names.get(start as usize..)?;
    let end = name.iter().take(LONGEST_NAME).position(|&byte| byte == 0)?;
    Some(&name[..end])
}

/// Counts the underscores in front. People write the name of a function that has the fewest: `read`, not `__read` or `__GI___libc_read`.
pub(crate) fn underscores(name: &[u8]) -> usize {
    name.iter().take_while(|&&byte| byte == b'_').count()
}
