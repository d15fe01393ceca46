//! The symbols of modules, which come before or after the samples that need them.
//!
//! A symboliser writes `ModuleSymbols` packets: names of addresses, by the path and the build id of a module. As for upstream's trace processor, both
//! have to be the same as those of the mapping, a later packet replaces what an earlier one says of an address, and an address without lines is left
//! out.

use std::collections::HashMap;

use ferretto_proto::write::{AddressSymbols, Line, ModuleSymbols};
use ferretto_wire::{Reader, Value};

use super::model::{Module, Strings, Text};

/// A function at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Symbol {
    pub(super) name: Text,
    pub(super) file: Text,
    pub(super) line: Option<u32>,
}

/// The functions at each address of a module, innermost first.
type Addresses = HashMap<u64, Box<[Symbol]>>;

/// All symbols of a trace.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    /// By path and build id.
    modules: HashMap<(Text, Box<[u8]>), Addresses>,
}

impl Symbols {
    /// Takes in an encoded `ModuleSymbols`. It is read field by field, because the build id is bytes in a field for text.
    pub(super) fn take(&mut self, strings: &mut Strings, encoded: &[u8]) {
        let (mut path, mut build_id): (&[u8], &[u8]) = (b"", b"");
        for field in Reader::new(encoded).map_while(Result::ok) {
            match (field.number, field.value) {
                (ModuleSymbols::PATH, Value::Bytes(value)) => path = value,
                (ModuleSymbols::BUILD_ID, Value::Bytes(value)) => build_id = value,
                _ => {}
            }
        }
        let key = (strings.intern(path), build_id.into());
        let module = self.modules.entry(key).or_default();
        for field in Reader::new(encoded).map_while(Result::ok) {
            if let (ModuleSymbols::ADDRESS_SYMBOLS, Value::Bytes(encoded)) = (field.number, field.value) {
                let (address, lines) = address_symbols(strings, encoded);
                if !lines.is_empty() {
                    module.insert(address, lines.into());
                }
            }
        }
    }

    /// Returns the functions at an address of a module, innermost first.
    pub(super) fn lines(&self, module: &Module, address: u64) -> Option<&[Symbol]> {
        if self.modules.is_empty() {
            return None;
        }
        let found = self.modules.get(&(module.path, module.build_id.clone()))?;
        found.get(&address).map(|lines| &**lines)
    }
}

fn address_symbols(strings: &mut Strings, encoded: &[u8]) -> (u64, Vec<Symbol>) {
    let (mut address, mut lines) = (0, Vec::new());
    for field in Reader::new(encoded).map_while(Result::ok) {
        match (field.number, field.value) {
            (AddressSymbols::ADDRESS, Value::Varint(value)) => address = value,
            (AddressSymbols::LINES, Value::Bytes(line)) => lines.push(symbol(strings, line)),
            _ => {}
        }
    }
    (address, lines)
}

fn symbol(strings: &mut Strings, encoded: &[u8]) -> Symbol {
    let (mut name, mut file, mut line) = (Text::default(), Text::default(), None);
    for field in Reader::new(encoded).map_while(Result::ok) {
        match (field.number, field.value) {
            (Line::FUNCTION_NAME, Value::Bytes(text)) => name = strings.intern(text),
            (Line::SOURCE_FILE_NAME, Value::Bytes(text)) => file = strings.intern(text),
            (Line::LINE_NUMBER, Value::Varint(number)) => line = u32::try_from(number).ok(),
            _ => {}
        }
    }
    Symbol { name, file, line }
}
