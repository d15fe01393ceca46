//! What samples refer to: names, modules, frames and call stacks, each stored once.
//!
//! [`Reader`](super::Reader) fills it, and whoever shows a profile reads it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use ferretto_proto::write::TracePacket;
use ferretto_unwind::symbols::demangle;

use super::counted::Event;
use super::heap::Heap;
use super::losses::Losses;
use super::names::Names;
use super::symbols::Symbols;
use crate::packet::bytes;

/// The most nodes of the tree of call stacks. One takes about 40 bytes.
const MAX_NODES: usize = 1 << 24;
/// The most frames of a call stack. Linux's own stacks have at most 127, unwound ones at most 1,024.
pub(super) const MAX_FRAMES: usize = 1 << 14;

/// The place of a string; 0 is the empty one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub(crate) struct Text(pub(super) u32);

/// Strings, each stored once.
#[derive(Debug)]
pub(super) struct Strings {
    texts: Vec<Arc<str>>,
    places: HashMap<Arc<str>, Text>,
}

impl Default for Strings {
    fn default() -> Strings {
        let mut strings = Strings {
            texts: Vec::new(),
            places: HashMap::new(),
        };
        strings.intern(b"");
        strings
    }
}

impl Strings {
    /// Names need not be UTF-8. Bytes that are not are replaced.
    pub(super) fn intern(&mut self, bytes: &[u8]) -> Text {
        let text = String::from_utf8_lossy(bytes);
        if let Some(place) = self.places.get(&*text) {
            return *place;
        }
        let place = Text(self.texts.len() as u32);
        let text: Arc<str> = text.into();
        self.texts.push(text.clone());
        self.places.insert(text, place);
        place
    }

    pub(super) fn get(&self, text: Text) -> &str {
        self.texts.get(text.0 as usize).map_or("", |text| text)
    }
}

/// The length of the ids that Chrome writes as text.
const TEXT_BUILD_ID: usize = 33;

/// A file that is mapped into memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Module {
    pub(super) path: Text,
    /// The bytes of the id, not its digits.
    pub(crate) build_id: Box<[u8]>,
    /// The addresses at which it was mapped; both 0 if unknown.
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The offset in the file at which the mapping begins.
    pub(crate) offset: u64,
}

impl Module {
    /// Returns the build id in digits, empty if there is none.
    pub(crate) fn build_id_digits(&self) -> String {
        digits(&self.build_id)
    }
}

fn digits(build_id: &[u8]) -> String {
    match build_id.len() {
        TEXT_BUILD_ID => String::from_utf8_lossy(build_id).into_owned(),
        _ => build_id.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

/// The place of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FrameId(u32);

/// An address in a module, with the name that the producer gave it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Frame {
    /// The place of its module.
    pub(super) module: Option<u32>,
    /// The address in the module, as its symbols have it.
    pub(super) rel_pc: u64,
    pub(super) name: Text,
    pub(super) file: Text,
    pub(super) line: Option<u32>,
    pub(super) is_kernel: bool,
}

/// The place of a call stack: that of its innermost frame in the tree of all stacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StackId(u32);

/// Values, each stored once.
#[derive(Debug)]
pub(super) struct Once<T> {
    values: Vec<T>,
    places: HashMap<T, u32>,
}

impl<T> Default for Once<T> {
    fn default() -> Once<T> {
        Once {
            values: Vec::new(),
            places: HashMap::new(),
        }
    }
}

impl<T: Clone + Eq + std::hash::Hash> Once<T> {
    pub(super) fn intern(&mut self, value: T) -> u32 {
        if let Some(place) = self.places.get(&value) {
            return *place;
        }
        let place = self.values.len() as u32;
        self.values.push(value.clone());
        self.places.insert(value, place);
        place
    }

    pub(super) fn get(&self, place: u32) -> Option<&T> {
        self.values.get(place as usize)
    }

    fn len(&self) -> usize {
        self.values.len()
    }
}

/// The tree of all call stacks. A node is a frame below its caller.
#[derive(Debug, Default)]
pub(crate) struct Callstacks {
    nodes: Once<(Option<StackId>, FrameId)>,
}

impl Callstacks {
    /// Returns the stack of these frames, outermost first. `None` if there are none, or there is no room for more.
    pub(super) fn intern(&mut self, frames: &[FrameId]) -> Option<StackId> {
        if self.nodes.len() + frames.len() > MAX_NODES {
            return None;
        }
        frames.iter().fold(None, |caller, frame| {
            Some(StackId(self.nodes.intern((caller, *frame))))
        })
    }

    /// Returns the number of nodes.
    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Iterates over the frames of a stack, innermost first.
    pub(crate) fn frames(&self, stack: StackId) -> impl Iterator<Item = FrameId> + '_ {
        self.nodes_of(stack).map(|(_, frame)| frame)
    }

    /// Iterates over the nodes of a stack with their frames, innermost first.
    pub(crate) fn nodes_of(&self, stack: StackId) -> impl Iterator<Item = (StackId, FrameId)> + '_ {
        let mut next = Some(stack);
        std::iter::from_fn(move || {
            let node = next?;
            let (caller, frame) = self.nodes.get(node.0)?;
            next = *caller;
            Some((node, *frame))
        })
    }
}

/// One line of a frame: where functions were inlined, a frame has several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// Never empty. Demangled; `module+0xaddress` if there is no name.
    pub(crate) name: Cow<'a, str>,
    /// The name as the linker knows it, or the same.
    pub(crate) system_name: &'a str,
    pub(crate) file: &'a str,
    pub(crate) line: Option<u32>,
}

/// The addresses of a module that have no symbols.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unnamed {
    pub(crate) path: String,
    /// The bytes of the id, not its digits.
    pub(crate) build_id: Box<[u8]>,
    pub(crate) addresses: BTreeSet<u64>,
}

impl Unnamed {
    /// Returns the build id in digits, empty if there is none.
    pub(crate) fn build_id_digits(&self) -> String {
        digits(&self.build_id)
    }
}

/// Everything that samples refer to.
#[derive(Debug, Default)]
pub(crate) struct Profile {
    pub(super) strings: Strings,
    pub(super) modules: Once<Module>,
    pub(super) frames: Once<Frame>,
    pub(crate) stacks: Callstacks,
    pub(super) symbols: Symbols,
    /// What was counted, in the order in which the trace mentions it.
    pub(crate) events: Vec<Event>,
    pub(crate) names: Names,
    /// The heaps that were profiled.
    pub(crate) heaps: Vec<Heap>,
    pub(crate) losses: Losses,
    /// The number of samples, with and without call stacks.
    pub(crate) samples: u64,
    /// The number of track events with call stacks, which are no samples.
    pub(crate) stacks_of_events: u64,
    /// The wall-clock time of the start of the clock of the samples, in ns since 1970.
    pub(crate) boot: Option<u64>,
}

impl Profile {
    pub(super) fn intern_frame(&mut self, frame: Frame) -> FrameId {
        FrameId(self.frames.intern(frame))
    }

    fn frame(&self, frame: FrameId) -> Option<&Frame> {
        self.frames.get(frame.0)
    }

    /// Whether the kernel runs this frame.
    pub(crate) fn is_kernel(&self, frame: FrameId) -> bool {
        self.frame(frame).is_some_and(|frame| frame.is_kernel)
    }

    /// Returns the module of a frame with its place.
    pub(crate) fn module_of(&self, frame: FrameId) -> Option<(u32, &Module)> {
        let place = self.frame(frame)?.module?;
        Some((place, self.modules.get(place)?))
    }

    /// Returns the path of a module.
    pub(crate) fn path(&self, module: &Module) -> &str {
        self.strings.get(module.path)
    }

    /// Returns the addresses without symbols, by module. Those of the kernel are left out: no file has them. A frame may have the name that the profiler
    /// gave it; symbols also have lines and inlined functions.
    pub(crate) fn unnamed(&self) -> Vec<Unnamed> {
        let mut modules: BTreeMap<(Text, &[u8]), BTreeSet<u64>> = BTreeMap::new();
        for frame in &self.frames.values {
            let module = frame.module.and_then(|place| self.modules.get(place));
            let Some(module) = module.filter(|_| !frame.is_kernel) else {
                continue;
            };
            if self.symbols.lines(module, frame.rel_pc).is_none() {
                let key = (module.path, &*module.build_id);
                modules.entry(key).or_default().insert(frame.rel_pc);
            }
        }
        let unnamed = modules.into_iter().map(|((path, build_id), addresses)| Unnamed {
            path: self.strings.get(path).to_owned(),
            build_id: build_id.into(),
            addresses,
        });
        unnamed.collect()
    }

    /// Takes the names of addresses from an encoded packet that has nothing but `ModuleSymbols`.
    pub(crate) fn add_symbols(&mut self, packet: &[u8]) {
        if let Some(symbols) = bytes(packet, TracePacket::MODULE_SYMBOLS) {
            self.symbols.take(&mut self.strings, symbols);
        }
    }

    /// Returns the lines of a frame, innermost first. There is at least one.
    pub(crate) fn lines(&self, frame: FrameId) -> Vec<Line<'_>> {
        let Some(frame) = self.frame(frame) else {
            return Vec::new();
        };
        let module = frame.module.and_then(|place| self.modules.get(place));
        let symbols = module.and_then(|module| self.symbols.lines(module, frame.rel_pc));
        if let Some(symbols) = symbols {
            return symbols
                .iter()
                .map(|symbol| self.line(frame, module, symbol.name, symbol.file, symbol.line))
                .collect();
        }
        vec![self.line(frame, module, frame.name, frame.file, frame.line)]
    }

    fn line(
        &self,
        frame: &Frame,
        module: Option<&Module>,
        name: Text,
        file: Text,
        line: Option<u32>,
    ) -> Line<'_> {
        let system_name = self.strings.get(name);
        let name = match system_name {
            "" => Cow::Owned(format!("{}+{:#x}", self.short_name(module), frame.rel_pc)),
            name => Cow::Owned(demangle(name)),
        };
        Line {
            name,
            system_name,
            file: self.strings.get(file),
            line,
        }
    }

    /// Returns the last part of a module's path.
    fn short_name(&self, module: Option<&Module>) -> &str {
        let path = module.map_or("", |module| self.path(module));
        match path.rsplit('/').find(|part| !part.is_empty()) {
            None => "[unknown]",
            Some(name) => name,
        }
    }
}
