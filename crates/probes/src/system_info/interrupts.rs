//! `/proc/interrupts`: a heading with the CPUs that are online, then a line for each interrupt.
//!
//! Called by the data source with one line after the other. A line has the interrupt's number, a count for each CPU, its
//! controller, and the names of the devices that use it:
//!
//! ```text
//!            CPU0       CPU1
//!   9:          0          4  IO-APIC   9-fasteoi   acpi             (x86)
//!  23:       3104       2277     GICv3  30 Level     arch_timer      (ARM)
//! NMI:          0          0   Non-maskable interrupts
//! ```
//!
//! No mark separates the last two, and both may contain blanks. On most kernels the trigger stands between them, so the
//! names come after the last word that names a trigger. If no word does, the last word is taken for the name. That is
//! the best guess, and may be only the end of the name.

use crate::kernel_text::{whole_u32, words};

/// A numbered interrupt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interrupt {
    pub(super) number: u32,
    /// The names of the interrupt's users, as the kernel lists them: `PCIe PME, PCIe bwctrl`.
    pub(super) name: Vec<u8>,
}

/// The table, as it comes line by line.
#[derive(Debug, Default)]
pub(super) struct InterruptTable {
    /// The number of count columns; known after the heading.
    cpus: Option<usize>,
}

impl InterruptTable {
    /// The interrupt of the next line, if it has a number and a user. The first line that is not blank is the heading.
    /// If the heading has no CPUs, no line is an interrupt.
    pub(super) fn interrupt(&mut self, line: &[u8]) -> Option<Interrupt> {
        if line.is_empty() {
            return None;
        }
        let Some(cpus) = self.cpus else {
            self.cpus = Some(words(line).filter(|word| word.starts_with(b"CPU")).count());
            return None;
        };
        if cpus == 0 {
            return None;
        }
        let mut words = words(line);
        // Interrupts without a number (`NMI:`) are the architecture's own and have a description in place of a name.
        let number = whole_u32(words.next()?.strip_suffix(b":")?)?;
        let description: Vec<&[u8]> = words.skip(cpus).collect();
        let begin = match description.iter().rposition(|word| is_trigger(word)) {
            Some(trigger) => trigger + 1,
            // At least one word is the controller.
            None => description.len().saturating_sub(1).max(1),
        };
        let name = description.get(begin..)?.join(&b' ');
        (!name.is_empty()).then_some(Interrupt { number, name })
    }
}

/// Whether the word names the trigger of an interrupt: alone, as on ARM, or behind the interrupt's number in its
/// controller, as on x86 (`16-fasteoi`, also `2-fasteoi-level`).
fn is_trigger(word: &[u8]) -> bool {
    let endings = [&b"-edge"[..], b"-level", b"-fasteoi"];
    matches!(word, b"Level" | b"Edge") || endings.iter().any(|ending| word.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Vec<(u32, String)> {
        let mut table = InterruptTable::default();
        text.lines()
            .filter_map(|line| table.interrupt(line.as_bytes()))
            .map(|interrupt| (interrupt.number, String::from_utf8(interrupt.name).unwrap()))
            .collect()
    }

    fn one(line: &str) -> Option<String> {
        let mut found = parse(&format!("      CPU0   CPU2\n{line}\n"));
        found.pop().map(|(_, name)| name)
    }

    #[test]
    fn the_name_is_what_comes_after_the_trigger() {
        let lines = [
            (" 9:  0  4  IO-APIC   9-fasteoi   acpi", "acpi"),
            (
                "31:  0  1  IR-PCI-MSI-0000:00:1c.0    0-edge  PCIe PME, PCIe bwctrl",
                "PCIe PME, PCIe bwctrl",
            ),
            ("17:  7  1  hisi-mbigen   2-fasteoi-level   hns", "hns"),
            ("11:  8  3     GICv3  30 Level     arch_timer", "arch_timer"),
            (
                "44:  0  0  audio codec IRQ1 Controller   3 Edge      Jack detect",
                "Jack detect",
            ),
            // A pin of a controller that is itself named like a trigger.
            ("45:  0  0  Edge   3 Level      button", "button"),
        ];
        for (line, name) in lines {
            assert_eq!(one(line).as_deref(), Some(name), "{line}");
        }
    }

    #[test]
    fn without_a_trigger_the_name_is_the_last_word() {
        assert_eq!(one(" 0:  55  0  XT-PIC  timer").as_deref(), Some("timer"));
        assert_eq!(
            one("48:  55  0  xen-dyn    -event     eth0-q0-tx").as_deref(),
            Some("eth0-q0-tx")
        );
    }

    #[test]
    fn an_interrupt_that_nobody_uses_has_no_name() {
        for line in [
            "5:  0  0",
            "5:  0  0  GICv3",
            "5:  0  0  GICv3  25 Level",
            "5:  0",
            "5:",
        ] {
            assert_eq!(one(line), None, "{line}");
        }
    }

    #[test]
    fn only_numbered_interrupts_count() {
        for id in ["NMI:", "IPI0:", "5", "-5:", "4294967296:", ":", "5x:"] {
            assert_eq!(one(&format!("{id}  1  2  GICv3  30 Level  name")), None, "{id}");
        }
    }

    #[test]
    fn without_cpus_there_are_no_columns_to_skip() {
        assert_eq!(parse("  \n 5: IO-APIC 5-edge  disk\n"), []);
        assert_eq!(
            parse(" 5:  0  0  IO-APIC 5-edge  disk\n 6:  0  0  IO-APIC 6-edge  net\n"),
            []
        );
        assert_eq!(parse(""), []);
    }

    /// An interrupt of each architecture's kind, with its count columns and the name that it must be read as.
    fn row() -> impl Strategy<Value = (u32, String, String)> {
        let name = r"[a-z][a-z0-9_.@]{0,10}([, ]{1,2}[a-z][a-z0-9:_]{1,8}){0,2}";
        let control = prop_oneof![
            (
                r"IO-APIC|IR-PCI-MSI-0000:00:1f\.[0-7]|DMAR-MSI",
                0u32..300,
                "edge|level|fasteoi"
            )
                .prop_map(|(chip, pin, trigger)| format!("{chip}  {pin}-{trigger}")),
            (r"GICv3|[a-z]{4}\.pinctrl|max77 IRQ[0-9]", 0u32..300, "Level|Edge")
                .prop_map(|(chip, pin, trigger)| format!("{chip} {pin} {trigger}")),
        ];
        (0u32..100_000, control, name)
    }

    proptest! {
        #[test]
        fn what_the_kernel_lists_is_read_back(cpus in 1usize..70, rows in prop::collection::vec(row(), 0..20)) {
            let heading: String = (0..cpus).map(|cpu| format!("{:>11}", format!("CPU{cpu}"))).collect();
            let counts: String = (0..cpus).map(|cpu| format!(" {:>10}", cpu * 104_729)).collect();
            let mut text = format!("    {heading}\n");
            for (number, control, name) in &rows {
                text += &format!("{number:>4}:{counts}  {control}      {name}\n");
            }
            let single_blanks = |name: &String| name.split_whitespace().collect::<Vec<_>>().join(" ");
            let expected: Vec<_> = rows.iter().map(|(number, _, name)| (*number, single_blanks(name))).collect();
            prop_assert_eq!(parse(&text), expected);
        }
    }
}
