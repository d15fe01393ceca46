//! The data source against made-up kernel files of x86 and ARM machines, hostile ones, and this machine's own.

use ferretto_proto::messages::cpu_info::ArmCpuIdentifier;
use ferretto_proto::messages::cpu_info::cpu::Identifier;
use ferretto_proto::messages::trace_packet::Data;
use ferretto_proto::messages::{Message, MessageField, SystemInfoConfig, TracePacket, cpu_info};

use super::*;
use crate::test_files::{Mutator, TempDir};

/// A procfs and a sysfs of our own.
struct Fixture {
    files: TempDir,
    roots: KernelRoots,
}

impl Fixture {
    fn new(files: &[(&str, &str)]) -> Self {
        let dir = TempDir::new("system-info");
        for (path, content) in files {
            dir.write(path, content);
        }
        let roots = KernelRoots {
            procfs: dir.path().join("proc"),
            sysfs: dir.path().join("sys"),
        };
        Self { files: dir, roots }
    }

    fn record(&self, irq_names: Option<bool>) -> Recorded {
        record(irq_names, &self.roots)
    }
}

/// The packets of a session.
struct Recorded {
    cpus: Vec<cpu_info::Cpu>,
    /// Numbers and names; `None` if there is no such packet.
    interrupts: Option<Vec<(u32, String)>>,
    notices: Vec<String>,
}

fn instance(irq_names: Option<bool>, roots: &KernelRoots) -> SystemInfo {
    let config = DataSourceConfig {
        system_info_config: MessageField::some(SystemInfoConfig {
            irq_names,
            ..Default::default()
        }),
        ..Default::default()
    };
    SystemInfo::from_config(&config, roots)
}

fn record(irq_names: Option<bool>, roots: &KernelRoots) -> Recorded {
    let mut source = instance(irq_names, roots);
    let mut sink: Vec<Vec<u8>> = Vec::new();
    source.start(7, &mut sink);
    let at_start = sink.len();
    source.flush(8, &mut sink);
    source.stop(9, &mut sink);
    assert_eq!(sink.len(), at_start, "all is told at the start");
    let mut packets = sink.iter().map(|bytes| {
        let packet = TracePacket::decode_from_slice(bytes).unwrap();
        assert_eq!(packet.timestamp, Some(7));
        packet.data
    });
    let Some(Some(Data::CpuInfo(info))) = packets.next() else {
        panic!("the CPUs come first");
    };
    let interrupts = packets.next().map(|data| match data {
        Some(Data::InterruptInfo(info)) => info
            .irq_mapping
            .iter()
            .map(|irq| (irq.irq_id.unwrap(), irq.name.clone().unwrap()))
            .collect(),
        other => panic!("{other:?}"),
    });
    assert!(packets.next().is_none());
    Recorded {
        cpus: info.cpus.clone(),
        interrupts,
        notices: source.take_notices().iter().map(ToString::to_string).collect(),
    }
}

/// A phone with cores of two kinds, whose kernel has the line on top that later ones lack; the second core is offline.
const ARM: &[(&str, &str)] = &[
    (
        "proc/cpuinfo",
        "Processor\t: AArch64 Processor rev 2 (aarch64)\nprocessor\t: 0\nBogoMIPS\t: 26.00\n\
         Features\t: fp asimd evtstrm aes crc32 atomics\nCPU implementer\t: 0x41\nCPU architecture: 8\n\
         CPU variant\t: 0x1\nCPU part\t: 0xd05\nCPU revision\t: 2\n\n\
         processor\t: 2\nBogoMIPS\t: 26.00\nFeatures\t: fp asimd mte mte3\nCPU implementer\t: 0x41\n\
         CPU architecture: 8\nCPU variant\t: 0x3\nCPU part\t: 0xd0b\nCPU revision\t: 0\n\n\
         Hardware\t: Some board\nSerial\t\t: 0123456789abcdef\n",
    ),
    (
        "proc/interrupts",
        "           CPU0       CPU2       \n\
         \x20 9:          0          0     GICv3  25 Level     vgic\n\
         \x2023:       3104       2277     GICv3  30 Level     arch_timer\n\
         700:          4         48  3c280000.pinctrl   1 Edge      u100_power_state\n\
         701:         75          0  fan IRQ1 Controller  63 Level     fan tacho, fan stalled\n\
         IPI0:   1976106    2709737       Rescheduling interrupts\n\
         Err:          0\n",
    ),
    ("sys/devices/system/cpu/cpu0/cpu_capacity", "446\n"),
    (
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_available_frequencies",
        "1800000 576000 300000 \n",
    ),
    (
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_available_frequencies",
        "111 \n",
    ),
    ("sys/devices/system/cpu/cpu2/cpu_capacity", "1024\n"),
    (
        "sys/devices/system/cpu/cpu2/cpufreq/scaling_available_frequencies",
        "825600 1996800 \n",
    ),
    (
        "sys/devices/system/cpu/cpu2/cpufreq/scaling_boost_frequencies",
        "2803200 1996800\n",
    ),
];

const X86: &[(&str, &str)] = &[
    (
        "proc/cpuinfo",
        "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel name\t: Intel(R) Xeon(R) CPU @ 2.00GHz\n\
         flags\t\t: fpu vme de pse sse sse2 mte\npower management: a: b\n\n\
         processor\t: 1\nvendor_id\t: GenuineIntel\npower management:\n\n",
    ),
    (
        "proc/interrupts",
        "            CPU0       CPU1       \n\
         \x20  0:         42          0 IR-IO-APIC    2-edge      timer\n\
         \x20  9:          0          4 IR-IO-APIC    9-fasteoi   acpi\n\
         \x20 31:          0          1 IR-PCI-MSI-0000:00:1c.0    0-edge      PCIe PME, PCIe bwctrl\n\
         NMI:        129         46   Non-maskable interrupts\n\
         LOC:  470006507  556112258   Local timer interrupts\n\
         MIS:          0\n",
    ),
    ("sys/devices/system/cpu/cpu1/cpu_capacity", "1024\n"),
];

fn named(irqs: &[(u32, &str)]) -> Option<Vec<(u32, String)>> {
    Some(irqs.iter().map(|&(irq, name)| (irq, name.to_owned())).collect())
}

#[test]
fn cores_of_an_arm_machine_have_identifier_speed_and_features() {
    let recorded = Fixture::new(ARM).record(None);
    let cpu = |identifier, capacity, frequencies: &[u32], features| cpu_info::Cpu {
        processor: Some("AArch64 Processor rev 2 (aarch64)".into()),
        frequencies: frequencies.to_vec(),
        capacity: Some(capacity),
        identifier: Some(identifier),
        features,
        ..Default::default()
    };
    let arm = |variant, part, revision| {
        Identifier::ArmIdentifier(Box::new(ArmCpuIdentifier {
            implementer: Some(0x41),
            architecture: Some(8),
            variant: Some(variant),
            part: Some(part),
            revision: Some(revision),
            ..Default::default()
        }))
    };
    assert_eq!(
        recorded.cpus,
        [
            cpu(arm(1, 0xd05, 2), 446, &[300_000, 576_000, 1_800_000], None),
            cpu(
                arm(3, 0xd0b, 0),
                1024,
                &[825_600, 1_996_800, 2_803_200],
                Some(0b11)
            ),
        ],
        "CPU 1 is offline, and its frequencies are nobody else's"
    );
    assert_eq!(recorded.notices, [""; 0]);
}

#[test]
fn cores_of_an_x86_machine_are_counted() {
    let recorded = Fixture::new(X86).record(None);
    let cpu = |capacity| cpu_info::Cpu {
        processor: Some("unknown".into()),
        capacity,
        ..Default::default()
    };
    assert_eq!(recorded.cpus, [cpu(None), cpu(Some(1024))]);
    assert_eq!(recorded.notices, [""; 0]);
}

#[test]
fn interrupts_are_named_only_if_asked_for() {
    let arm = Fixture::new(ARM);
    assert_eq!(arm.record(None).interrupts, None);
    assert_eq!(arm.record(Some(false)).interrupts, None);
    assert_eq!(
        arm.record(Some(true)).interrupts,
        named(&[
            (9, "vgic"),
            (23, "arch_timer"),
            (700, "u100_power_state"),
            (701, "fan tacho, fan stalled")
        ])
    );
    assert_eq!(
        Fixture::new(X86).record(Some(true)).interrupts,
        named(&[(0, "timer"), (9, "acpi"), (31, "PCIe PME, PCIe bwctrl")])
    );
}

#[test]
fn a_table_without_numbered_interrupts_makes_no_packet() {
    let fixture = Fixture::new(&[(
        "proc/interrupts",
        "      CPU0\nNMI:    3   Non-maskable interrupts\n",
    )]);
    assert_eq!(fixture.record(Some(true)).interrupts, None);
}

#[test]
fn what_cannot_be_read_is_noticed_and_the_cpus_are_none() {
    let recorded = Fixture::new(&[]).record(Some(true));
    assert_eq!((recorded.cpus.len(), recorded.interrupts), (0, None));
    let [cpus, interrupts] = &recorded.notices[..] else {
        panic!("{:#?}", recorded.notices);
    };
    assert!(cpus.starts_with("linux.system_info: cannot read ") && cpus.contains("proc/cpuinfo"));
    assert!(interrupts.starts_with("irq_names: cannot read ") && interrupts.contains("proc/interrupts"));
}

#[test]
fn damaged_files_never_stop_it_and_its_packets_stay_well_formed() {
    for files in [ARM, X86] {
        let fixture = Fixture::new(files);
        for seed in 0..100 {
            let mut mutator = Mutator::new(seed);
            for (path, text) in files {
                fixture.files.write(path, mutator.damage(text.as_bytes()));
            }
            let mut sink: Vec<Vec<u8>> = Vec::new();
            instance(Some(true), &fixture.roots).start(0, &mut sink);
            assert!(!sink.is_empty(), "seed {seed}");
            for packet in &sink {
                let fields: Result<Vec<_>, _> = ferretto_wire::Reader::new(packet).collect();
                assert!(fields.is_ok(), "seed {seed}: {fields:?}");
            }
        }
    }
}

#[test]
fn this_machine_is_told_as_it_is() {
    let recorded = record(Some(true), &KernelRoots::default());
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let listed = cpuinfo
        .lines()
        .filter(|line| line.starts_with("processor\t:"))
        .count();
    assert_eq!(recorded.cpus.len(), listed);
    let cpu0 = recorded.cpus.first();
    match std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cpu_capacity") {
        Ok(capacity) => assert_eq!(cpu0.unwrap().capacity, Some(capacity.trim().parse().unwrap())),
        Err(error) => println!("skipped: this kernel tells no cpu_capacity: {error}"),
    }
    // The kernel gives the names a second time, with a file for each interrupt.
    let interrupts = recorded.interrupts.unwrap_or_default();
    if !Path::new("/sys/kernel/irq").exists() {
        println!("skipped: this kernel has no /sys/kernel/irq");
        return;
    }
    for (irq, name) in &interrupts {
        let actions = std::fs::read_to_string(format!("/sys/kernel/irq/{irq}/actions")).unwrap();
        assert_eq!(*name, actions.trim().replace(',', ", "), "interrupt {irq}");
    }
}
