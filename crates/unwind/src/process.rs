//! A process's address space: its mappings, and the modules that are mapped.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::cache::ModuleCache;
use crate::elf::Unusable;
use crate::mapping_file::{LoadRequest, ProcessDir};
use crate::maps::{Mapping, MappingKind, Maps};
use crate::module::Module;
use crate::program::Program;
use crate::registers::Arch;
use crate::stack::{PAGE, StackCopy, StackPage};
use crate::unwinder::{Frame, FrameKind};

/// The mappings of a process and the modules in them. Modules are loaded when a frame first lies in one.
///
/// It holds one file descriptor, of the process's directory in procfs (and two of its memory, if its stacks are deep), so that it never reads anything of another process that gets the same pid.
/// Indexes of mappings hold until [`generation`](Self::generation) changes.
#[derive(Debug)]
pub struct Process {
    directory: Option<ProcessDir>,
    /// Its memory, and which pages of it there are, once a stack was read.
    memory: Option<(File, File)>,
    maps: Maps,
    /// By the index of the mapping.
    regions: Vec<Region>,
    modules: Vec<ModuleState>,
    generation: u64,
    /// Time at which the mappings were last read, in nanoseconds.
    read_at: Option<u64>,
    /// The program that it ran when it was [met](Self::meet), if the kernel told and it was not found gone.
    program: Option<Program>,
    is_program_gone: bool,
}

/// The part of a mapping that unwinding needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Region {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Added to a pc, it gives the address as the module counts them.
    pub(crate) to_module: u64,
    /// The module's serial number; 0 if there is none.
    pub(crate) serial: u64,
    /// Index in `modules`.
    module: u32,
}

impl Region {
    pub(crate) fn contains(&self, pc: u64) -> bool {
        (self.start..self.end).contains(&pc)
    }

    /// Takes from the module what unwinding needs of it.
    fn settle(&mut self, mapping: &Mapping, module: &ModuleState) {
        (self.serial, self.to_module) = match module {
            ModuleState::Loaded(module) => match module.address_of_mapping(mapping.offset) {
                Some(address) => (module.serial(), address.wrapping_sub(mapping.start)),
                None => (0, 0),
            },
            ModuleState::NotLoaded | ModuleState::Unusable(_) => (0, 0),
        };
    }
}

/// Whether the page at this address is in memory and of no file, as pages of stacks are. To read another page may take as long as a file's server
/// likes. Source: the kernel's `Documentation/admin-guide/mm/pagemap.rst`.
fn is_in_memory(pagemap: &File, address: u64) -> bool {
    const PRESENT: u64 = 1 << 63;
    const OF_FILE: u64 = 1 << 61;
    // An entry of 8 bytes for each page.
    let place = address / rustix::param::page_size() as u64 * 8;
    let mut entry = [0; 8];
    pagemap.read_exact_at(&mut entry, place).is_ok()
        && u64::from_ne_bytes(entry) & (PRESENT | OF_FILE) == PRESENT
}

/// A module of a process. Mappings of the same file share it.
#[derive(Debug, Clone)]
enum ModuleState {
    NotLoaded,
    Loaded(Arc<Module>),
    Unusable(Unusable),
}

/// The result of reading the mappings again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refreshed {
    /// They are up to date. Indexes of mappings have changed.
    Read,
    /// They were read too short a time ago.
    TooSoon,
}

impl Process {
    /// The process with this id in the pid namespace of `/proc`. Reads its mappings at the first [`refresh`](Self::refresh).
    ///
    /// # Errors
    /// If there is no such process, or its directory cannot be opened.
    pub fn open(pid: u32) -> io::Result<Process> {
        let mut process = Process::with_maps(Maps::default());
        process.directory = Some(ProcessDir::open(pid)?);
        Ok(process)
    }

    /// The process with this id, and its mappings as they are now. They stay known when the process ends or runs another program, and what it runs then
    /// is never taken for the program that was met. If they cannot be read now, the first [`refresh`](Self::refresh) reads them.
    ///
    /// # Errors
    /// If there is no such process, or its directory cannot be opened.
    pub fn meet(pid: u32) -> io::Result<Process> {
        let mut process = Process::open(pid)?;
        process.program = process.program_now();
        // The kernel keeps mappings from some readers, and may keep the vector from them too.
        let _ = process.refresh(0, 0);
        process.read_at = None;
        Ok(process)
    }

    /// A process that has ended, of which these mappings are known. Files are looked for by their paths in this process's mount namespace, and have to
    /// have the inodes of the mappings.
    ///
    /// # Errors
    /// If procfs cannot be read.
    pub fn ended(maps: Maps) -> io::Result<Process> {
        let mut process = Process::with_maps(maps);
        process.directory = Some(ProcessDir::for_ended()?);
        Ok(process)
    }

    /// A process with these mappings that is not there: no module can be loaded, only [provided](Self::provide).
    pub fn with_maps(maps: Maps) -> Process {
        let mut process = Process {
            directory: None,
            memory: None,
            maps: Maps::default(),
            regions: Vec::new(),
            modules: Vec::new(),
            generation: 0,
            read_at: None,
            program: None,
            is_program_gone: false,
        };
        process.set_maps(maps);
        process
    }

    /// Reads the mappings, unless that was done less than `interval` before `now` (both in nanoseconds, of any clock). Modules stay loaded.
    ///
    /// # Errors
    /// If they cannot be read, for instance because the process has ended, or runs another program than the one that was met. The mappings that were
    /// known stay.
    pub fn refresh(&mut self, now: u64, interval: u64) -> io::Result<Refreshed> {
        if self
            .read_at
            .is_some_and(|read_at| now < read_at.saturating_add(interval))
        {
            return Ok(Refreshed::TooSoon);
        }
        self.read_at = Some(now);
        if let Some(directory) = self.live_directory() {
            let read = directory.open_file("maps").map_err(io::Error::from);
            let read = read.and_then(Maps::read);
            if self.has_left_program() {
                self.end();
                return Err(io::ErrorKind::NotFound.into());
            }
            let maps = read?;
            // A process that is ending has no memory any more.
            if maps.mappings().is_empty() && !self.maps.mappings().is_empty() {
                return Err(io::ErrorKind::NotFound.into());
            }
            self.set_maps(maps);
        }
        Ok(Refreshed::Read)
    }

    /// Takes in mappings that were made since they were last read, oldest first. Indexes of mappings change. It takes as long as there are mappings.
    pub fn extend(&mut self, mappings: impl IntoIterator<Item = Mapping>) {
        let mut maps = self.maps.clone();
        for mapping in mappings {
            maps.insert(mapping);
        }
        self.set_maps(maps);
    }

    fn program_now(&self) -> Option<Program> {
        Program::read(self.live_directory()?.open_file("auxv").ok()?)
    }

    /// Whether the process that was met has ended, or runs another program by now.
    fn has_left_program(&self) -> bool {
        self.program.is_some() && self.program != self.program_now()
    }

    /// The program that was met is gone: its mappings stay known, and their files are looked for by their paths.
    fn end(&mut self) {
        self.program = None;
        self.is_program_gone = true;
        if let Ok(directory) = ProcessDir::for_ended() {
            self.directory = Some(directory);
        }
    }

    /// The program that it ran when it was [met](Self::meet), if the kernel told and it was not found gone.
    pub fn program(&self) -> Option<&Program> {
        self.program.as_ref()
    }

    /// Whether the program that was [met](Self::meet) was found to be gone: the process has ended, or runs another one.
    pub fn is_program_gone(&self) -> bool {
        self.is_program_gone
    }

    /// The process's own directory, unless it is known to have ended.
    pub(crate) fn live_directory(&self) -> Option<&ProcessDir> {
        self.directory
            .as_ref()
            .filter(|directory| !directory.is_for_ended())
    }

    fn set_maps(&mut self, maps: Maps) {
        let mut loaded: HashMap<(u64, u64, Arc<[u8]>), u32> = HashMap::new();
        let mut modules: Vec<ModuleState> = Vec::new();
        let mut regions = Vec::with_capacity(maps.mappings().len());
        for mapping in maps.mappings() {
            let device = u64::from(mapping.device.0) << 32 | u64::from(mapping.device.1);
            let module = *loaded
                .entry((device, mapping.inode, mapping.name.clone()))
                .or_insert_with(|| {
                    modules.push(match mapping.kind() {
                        MappingKind::File | MappingKind::DeletedFile | MappingKind::Vdso => {
                            ModuleState::NotLoaded
                        }
                        MappingKind::Device => ModuleState::Unusable(Unusable::NotRegular),
                        _ => ModuleState::Unusable(Unusable::NoFile),
                    });
                    (modules.len() - 1) as u32
                });
            regions.push(Region {
                start: mapping.start,
                end: mapping.end,
                to_module: 0,
                serial: 0,
                module,
            });
        }
        // Modules stay loaded where the same file is still mapped at the same place.
        for (mapping, region) in self.maps.mappings().iter().zip(&self.regions) {
            let same = maps
                .find(mapping.start)
                .filter(|&index| maps.mappings()[index] == *mapping);
            if let Some(index) = same {
                let state = &self.modules[region.module as usize];
                modules[regions[index].module as usize] = state.clone();
            }
        }
        self.maps = maps;
        self.regions = regions;
        self.modules = modules;
        for (region, mapping) in self.regions.iter_mut().zip(self.maps.mappings()) {
            region.settle(mapping, &self.modules[region.module as usize]);
        }
        self.generation += 1;
    }

    /// Forgets modules and mappings: when a config's `unwind_state_clear_period_ms` asks for it, and when the process executes another program.
    pub fn clear(&mut self) {
        self.maps = Maps::default();
        self.regions.clear();
        self.modules.clear();
        self.read_at = None;
        self.generation += 1;
    }

    /// Changes whenever indexes of mappings lose their meaning.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The executable mappings.
    pub fn maps(&self) -> &Maps {
        &self.maps
    }

    /// The mapping with this index.
    pub fn mapping(&self, index: u32) -> Option<&Mapping> {
        self.maps.mappings().get(index as usize)
    }

    /// The module in a mapping.
    ///
    /// # Errors
    /// Why there is none. `None` if it was not loaded yet, or there is no such mapping.
    pub fn module(&self, mapping: u32) -> Option<Result<&Arc<Module>, &Unusable>> {
        let region = self.regions.get(mapping as usize)?;
        match &self.modules[region.module as usize] {
            ModuleState::NotLoaded => None,
            ModuleState::Loaded(module) => Some(Ok(module)),
            ModuleState::Unusable(reason) => Some(Err(reason)),
        }
    }

    /// A request to load the module in a mapping. `None` if there is no such mapping.
    pub fn load_request(&self, mapping: u32) -> Option<LoadRequest> {
        Some(LoadRequest {
            directory: self.directory.clone(),
            mapping: self.mapping(mapping)?.clone(),
        })
    }

    /// Sets the module of a mapping, and of all other mappings of the same file: what came of its [`load_request`](Self::load_request).
    pub fn provide(&mut self, mapping: u32, outcome: Result<Arc<Module>, Unusable>) {
        let Some(region) = self.regions.get(mapping as usize) else {
            return;
        };
        let module = region.module;
        self.modules[module as usize] = match outcome {
            Ok(loaded) => ModuleState::Loaded(loaded),
            Err(reason) => ModuleState::Unusable(reason),
        };
        for (region, mapping) in self.regions.iter_mut().zip(self.maps.mappings()) {
            if region.module == module {
                region.settle(mapping, &self.modules[module as usize]);
            }
        }
    }

    /// Loads the module of a mapping, in this thread. If the program that was [met](Self::meet) is gone, its file is looked for by its path.
    pub fn load(&mut self, mapping: u32, cache: &ModuleCache) {
        let Some(request) = self.load_request(mapping) else {
            return;
        };
        let mut outcome = cache.load(&request);
        // Asked afterwards: another program may have another file at the same place.
        if self.has_left_program() {
            self.end();
            outcome = match self.load_request(mapping) {
                Some(request) => cache.load(&request),
                None => return,
            };
        }
        self.provide(mapping, outcome);
    }

    pub(crate) fn find(&self, pc: u64) -> Option<(u32, &Region)> {
        let after = self.regions.partition_point(|region| region.start <= pc);
        let index = after.checked_sub(1)?;
        let region = &self.regions[index];
        (pc < region.end).then_some((index as u32, region))
    }

    pub(crate) fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The bits of a pointer that are an address. On aarch64, others may sign return addresses; user space has at least 48 bits.
    pub(crate) fn address_mask(&self) -> u64 {
        let highest = self.regions.last().map_or(0, |region| region.end);
        let bits = (u64::BITS - highest.leading_zeros()).max(48);
        u64::MAX >> (u64::BITS - bits)
    }

    /// Whether the thread is still in the function that `frames`, the frames of a sample, end with: its return address is in memory where `stack` has
    /// it. Then its callers are the sample's too, and [`read_stack`](Self::read_stack) finds their frames. Functions that have left nothing in the copy
    /// are believed to be active: their own frames are larger than that.
    pub fn is_active(&mut self, frames: &[Frame], stack: &StackCopy<'_>) -> bool {
        let mask = self.address_mask();
        let caller = frames.last().filter(|frame| frame.kind == FrameKind::Caller);
        let place = caller.and_then(|caller| stack.last_place_of(caller.pc, mask));
        let (Some(caller), Some(address)) = (caller, place) else {
            return true;
        };
        let Some((memory, pagemap)) = self.memory() else {
            return false;
        };
        let mut word = [0; 8];
        is_in_memory(pagemap, address)
            && memory.read_exact_at(&mut word, address).is_ok()
            && u64::from_le_bytes(word) & mask == caller.pc
    }

    fn memory(&mut self) -> Option<&(File, File)> {
        if self.memory.is_none() {
            self.memory = self.live_directory().and_then(|directory| {
                let open = |name| directory.open_file(name).ok();
                Some((open("mem")?, open("pagemap")?))
            });
        }
        self.memory.as_ref()
    }

    /// Adds pages of a stack from `address` on, as they are now: at most so many, and one before them. `false` if there is nothing to add: the first is
    /// known or cannot be read, for instance because the process has ended.
    pub fn read_stack(&mut self, address: u64, most: usize, pages: &mut Vec<StackPage>) -> bool {
        let Some((memory, pagemap)) = self.memory() else {
            return false;
        };
        let page = address & !(PAGE as u64 - 1);
        let place = |pages: &[StackPage], address| pages.binary_search_by_key(&address, |page| page.address);
        if place(pages, page).is_ok() {
            return false;
        }
        // Registers are saved below return addresses, perhaps in the page before.
        let wanted = (0..=most as u64)
            .map(|number| page.wrapping_add(number.wrapping_sub(1).wrapping_mul(PAGE as u64)));
        for address in wanted {
            let Err(place) = place(pages, address) else {
                continue;
            };
            if !is_in_memory(pagemap, address) {
                continue;
            }
            let mut bytes = Box::new([0; PAGE]);
            if memory.read_exact_at(bytes.as_mut_slice(), address).is_ok() {
                pages.insert(place, StackPage { address, bytes });
            } else if address > page {
                // The stack ends here.
                break;
            }
        }
        place(pages, page).is_ok()
    }

    /// The frame of a pc that somebody else has found, for example the kernel.
    pub fn frame_at(&self, pc: u64, kind: FrameKind) -> Frame {
        // The last instruction of a function may be the call.
        let lookup = pc.saturating_sub(u64::from(kind == FrameKind::Caller));
        Frame {
            pc,
            mapping: self.find(lookup).map(|(index, _)| index),
            kind,
            arch: Arch::current().unwrap_or(Arch::X86_64),
        }
    }

    /// `Frame.rel_pc` of traces, as upstream's `traced_perf` writes it: the pc less the mapping's start, plus the mapping's offset in the file, plus the module's
    /// [load bias](Module::load_bias), which makes it an address as the file's symbols count them. In memory without a file it counts from the mapping's
    /// start. Without a mapping it is the pc.
    ///
    /// For every frame but the first, and but the one to which signal handlers return, it is lowered by 1 (on aarch64 by 4), to be within the call.
    pub fn relative_pc(&self, frame: &Frame) -> u64 {
        let Some(index) = frame.mapping else {
            return frame.pc;
        };
        let Some(mapping) = self.mapping(index) else {
            return frame.pc;
        };
        let module = self.module(index).and_then(Result::ok);
        let relative = (frame.pc - mapping.start)
            .wrapping_add(mapping.offset)
            .wrapping_add(module.map_or(0, |module| module.load_bias()));
        let lowered = match frame.kind {
            FrameKind::Sampled | FrameKind::SignalReturn => 0,
            FrameKind::Caller | FrameKind::Interrupted => frame.arch.call_length(),
        };
        relative.checked_sub(lowered).unwrap_or(relative)
    }
}
