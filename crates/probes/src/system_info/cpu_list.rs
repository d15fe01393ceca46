//! `/proc/cpuinfo`: a paragraph of `key : value` lines for each CPU that is online.
//!
//! Called by the data source with one line after the other. Each architecture has keys of its own; only keys with a
//! field in `CpuInfo` are used. Older ARM kernels begin with one more line, `Processor`, that names all CPUs.

use crate::kernel_text::{key_and_value, trimmed, whole_u32, words};

/// More CPUs than any kernel supports: bounds the work for a made-up list.
const MOST_CPUS: usize = 1 << 16;

/// Names of CPU features. The place in the list is the bit in `CpuInfo.Cpu.features`. Readers of traces have the same
/// list (upstream's `cpu_info_features_allowlist.h`), which only ever grows at its end.
const FEATURES: [&[u8]; 2] = [b"mte", b"mte3"];

/// One CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cpu {
    /// Its number, as in `/sys/devices/system/cpu/cpu<number>`.
    pub(super) number: u32,
    /// The kernel's name for the CPU; `unknown` if it gives none.
    pub(super) processor: Vec<u8>,
    /// Present if the kernel gives it whole, which it does on ARM.
    pub(super) identifier: Option<ArmIdentifier>,
    /// A bit for each of the [`FEATURES`].
    pub(super) features: u64,
}

/// The parts of an ARM core's `MIDR` register, which identify its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ArmIdentifier {
    pub(super) implementer: u32,
    pub(super) architecture: u32,
    pub(super) variant: u32,
    pub(super) part: u32,
    pub(super) revision: u32,
}

/// The lines read since the last CPU was complete.
#[derive(Debug, Default)]
struct Paragraph {
    number: Option<u32>,
    implementer: Option<u32>,
    architecture: Option<u32>,
    variant: Option<u32>,
    part: Option<u32>,
    revision: Option<u32>,
    features: u64,
}

impl Paragraph {
    fn identifier(&self) -> Option<ArmIdentifier> {
        Some(ArmIdentifier {
            implementer: self.implementer?,
            architecture: self.architecture?,
            variant: self.variant?,
            part: self.part?,
            revision: self.revision?,
        })
    }
}

/// The CPUs, as they come line by line.
#[derive(Debug, Default)]
pub(super) struct CpuList {
    /// The last value of `Processor`.
    processor: Option<Vec<u8>>,
    paragraph: Paragraph,
    cpus: Vec<Cpu>,
}

impl CpuList {
    /// Processes the next line.
    pub(super) fn take_line(&mut self, line: &[u8]) {
        // Only `processor` begins a CPU: the header of older ARM kernels may stand in a paragraph of its own.
        if line.is_empty() && self.paragraph.number.is_some() {
            self.end_paragraph();
            return;
        }
        let Some((key, value)) = key_and_value(line) else {
            return;
        };
        let paragraph = &mut self.paragraph;
        match trimmed(key) {
            b"Processor" => self.processor = Some(value.to_vec()),
            b"processor" => paragraph.number = whole_u32(value),
            b"CPU implementer" => paragraph.implementer = hexadecimal(value),
            b"CPU architecture" => paragraph.architecture = whole_u32(value),
            b"CPU variant" => paragraph.variant = hexadecimal(value),
            b"CPU part" => paragraph.part = hexadecimal(value),
            b"CPU revision" => paragraph.revision = whole_u32(value),
            b"Features" => paragraph.features |= feature_bits(value),
            _ => {}
        }
    }

    /// All CPUs, in the order of the file.
    pub(super) fn finish(mut self) -> Vec<Cpu> {
        self.end_paragraph();
        self.cpus
    }

    fn end_paragraph(&mut self) {
        let paragraph = std::mem::take(&mut self.paragraph);
        if let Some(number) = paragraph.number
            && self.cpus.len() < MOST_CPUS
        {
            self.cpus.push(Cpu {
                number,
                processor: self.processor.clone().unwrap_or_else(|| b"unknown".to_vec()),
                identifier: paragraph.identifier(),
                features: paragraph.features,
            });
        }
    }
}

fn feature_bits(names: &[u8]) -> u64 {
    let bit = |name: &[u8]| FEATURES.iter().position(|feature| *feature == name);
    words(names).filter_map(bit).fold(0, |bits, bit| bits | 1 << bit)
}

/// The value of `word` in base 16, with or without `0x` before it.
fn hexadecimal(word: &[u8]) -> Option<u32> {
    let digits = word.strip_prefix(b"0x").unwrap_or(word);
    // The standard parser would accept a sign.
    let digits = std::str::from_utf8(digits)
        .ok()
        .filter(|digits| !digits.starts_with('+'))?;
    u32::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Vec<Cpu> {
        let mut list = CpuList::default();
        text.lines().for_each(|line| list.take_line(line.as_bytes()));
        list.finish()
    }

    #[test]
    fn numbers_in_base_16_are_whole() {
        assert_eq!(hexadecimal(b"0xd4f"), Some(0xd4f));
        assert_eq!(hexadecimal(b"41"), Some(0x41));
        assert_eq!(hexadecimal(b"0xffffffff"), Some(u32::MAX));
        for text in [
            &b""[..],
            b"0x",
            b"+1",
            b"-1",
            b"0x+1",
            b"0x100000000",
            b"5TEJ",
            b"1 ",
            b"\xff",
        ] {
            assert_eq!(hexadecimal(text), None, "{text:?}");
        }
    }

    #[test]
    fn an_identifier_with_a_part_missing_is_none() {
        let whole = "processor: 0\nCPU implementer: 0x41\nCPU architecture: 8\nCPU variant: 0x1\nCPU part: 0xd05\nCPU revision: 0\n";
        assert!(parse(whole)[0].identifier.is_some());
        for missing in [
            "CPU implementer",
            "CPU architecture",
            "CPU variant",
            "CPU part",
            "CPU revision",
        ] {
            let rest: String = whole
                .lines()
                .filter(|line| !line.starts_with(missing))
                .map(|line| format!("{line}\n"))
                .collect();
            assert_eq!(parse(&rest)[0].identifier, None, "{missing}");
        }
        // Kernels of 64 bits wrote this before they gave the number.
        assert_eq!(parse(&whole.replace(": 8", ": AArch64"))[0].identifier, None);
    }

    #[test]
    fn features_are_whole_words() {
        assert_eq!(feature_bits(b"fp asimd mte"), 0b01);
        assert_eq!(feature_bits(b"mte mte3 mte"), 0b11);
        assert_eq!(feature_bits(b"mte2 xmte mte33 MTE"), 0);
    }

    #[test]
    fn a_list_without_end_is_bounded() {
        let mut list = CpuList::default();
        for _ in 0..MOST_CPUS + 10 {
            list.take_line(b"processor : 1");
            list.take_line(b"");
        }
        assert_eq!(list.finish().len(), MOST_CPUS);
    }

    fn cpu() -> impl Strategy<Value = Cpu> {
        let number = 0u32..10_000;
        let identifier =
            any::<[u32; 5]>().prop_map(|[implementer, architecture, variant, part, revision]| {
                ArmIdentifier {
                    implementer,
                    architecture,
                    variant,
                    part,
                    revision,
                }
            });
        (number, option::of(identifier), 0u64..4).prop_map(|(number, identifier, features)| Cpu {
            number,
            processor: b"unknown".to_vec(),
            identifier,
            features,
        })
    }

    /// As the kernel of 64-bit ARM writes it (`arch/arm64/kernel/cpuinfo.c`).
    fn paragraph(cpu: &Cpu) -> String {
        let names = ["fp asimd", "mte asimd", "fp mte3", "mte mte3"];
        let mut text = format!("processor\t: {}\nBogoMIPS\t: 38.00\n", cpu.number);
        text += &format!("Features\t: {} \n", names[cpu.features as usize]);
        if let Some(id) = cpu.identifier {
            text += &format!("CPU implementer\t: {:#04x}\n", id.implementer);
            text += &format!("CPU architecture: {}\n", id.architecture);
            text += &format!("CPU variant\t: {:#x}\n", id.variant);
            text += &format!("CPU part\t: {:#05x}\n", id.part);
            text += &format!("CPU revision\t: {}\n", id.revision);
        }
        text + "\n"
    }

    proptest! {
        #[test]
        fn what_the_kernel_of_arm_lists_is_read_back(cpus in prop::collection::vec(cpu(), 0..20)) {
            let text: String = cpus.iter().map(paragraph).collect();
            prop_assert_eq!(parse(&text), cpus);
        }
    }
}
