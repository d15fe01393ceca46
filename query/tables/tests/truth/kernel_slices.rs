//! Kernel events that begin and end slices, in no order: nested, without ends, without begins, ended from another CPU.

use ferretto_wire::Writer;

use super::{Generator, Numbers};

/// The threads that the events are of.
const THREADS: u64 = 5;

/// Adds a bundle of events of one CPU. It is of a sequence that starts over, with two symbols.
pub(crate) fn bundle(generator: &mut Generator, most: u64) {
    let cpu = generator.numbers.below(generator.cpus);
    let mut events = Vec::new();
    for _ in 0..generator.numbers.below(most) {
        generator.now += generator.numbers.below(3) * 300;
        let mut event = Writer::new();
        event.varint_field(1, generator.now);
        event.varint_field(2, generator.numbers.below(THREADS));
        one(&mut event, &mut generator.numbers);
        events.push(event.into_vec());
    }
    generator.trace.nested(1, |packet| {
        packet.varint_field(3, 0);
        packet.varint_field(10, 30);
        packet.varint_field(13, 1);
        packet.nested(12, |interned| {
            for (iid, name) in [(1, &b"flush"[..]), (2, b"free")] {
                interned.nested(26, |symbol| {
                    symbol.varint_field(1, iid);
                    symbol.bytes_field(2, name);
                });
            }
        });
        packet.nested(1, |bundle| {
            bundle.varint_field(1, cpu);
            events.iter().for_each(|event| bundle.bytes_field(2, event));
        });
    });
}

fn one(event: &mut Writer, numbers: &mut Numbers) {
    match numbers.below(16) {
        0 => event.nested(36, |entry| {
            entry.varint_field(1, numbers.below(3));
            match numbers.below(4) {
                0 => {}
                1 => entry.bytes_field(2, "long".repeat(70).as_bytes()),
                number => entry.bytes_field(2, format!("device {number}").as_bytes()),
            }
        }),
        1 => event.nested(37, |exit| {
            exit.varint_field(1, numbers.below(3));
            if !numbers.one_in(3) {
                exit.varint_field(2, numbers.below(3));
            }
        }),
        2 => event.nested(24, |entry| entry.varint_field(1, numbers.below(10))),
        3 => event.nested(25, |exit| exit.varint_field(1, numbers.below(10))),
        4 => event.nested(58, |start| {
            start.varint_field(1, 1 << 63);
            if !numbers.one_in(5) {
                start.varint_field(2, numbers.below(4));
            }
        }),
        6 | 7 => event.nested(329, |enter| {
            enter.varint_field(1, call(numbers));
            for _ in 0..numbers.below(7) {
                enter.varint_field(2, numbers.below(1 << 40) << (24 * numbers.below(2)));
            }
        }),
        8 | 9 => event.nested(330, |exit| {
            exit.varint_field(1, call(numbers));
            if !numbers.one_in(4) {
                exit.varint_field(2, (numbers.below(20) as i64 - 10) as u64);
            }
        }),
        10..=14 => event.nested(3, |print| {
            print.varint_field(1, 1);
            print.bytes_field(2, mark(numbers).as_bytes());
        }),
        _ => event.nested(57, |end| end.varint_field(1, 1 << 63)),
    }
}

/// The number of a system call: mostly one of a few, so that ends find their begins. `write` and `rt_sigreturn` of each architecture are among them.
fn call(numbers: &mut Numbers) -> u64 {
    const CALLS: [u64; 8] = [0, 1, 4, 15, 64, 139, 173, 400];
    match numbers.one_in(6) {
        true => numbers.below(560),
        false => CALLS[numbers.below(8) as usize],
    }
}

/// The text of a mark: of all kinds, and now and then of none.
fn mark(numbers: &mut Numbers) -> String {
    let process = match numbers.one_in(8) {
        true => 0,
        false => 1 + numbers.below(4),
    };
    let (name, number) = (numbers.below(3), numbers.below(3));
    match numbers.below(14) {
        0 | 1 => format!("B|{process}|mark {name}|of {number}\n"),
        2 | 3 => format!("E|{process}\n"),
        4 => "E".to_owned(),
        5 => format!("S|{process}|job {name}|{number}\n"),
        6 => format!("F|{process}|job {name}|{number}"),
        7 => format!("I|{process}|moment {name}|more\0"),
        8 => format!("C|{process}|count {name}|-{number}|group"),
        9 => format!("G|{process}|row {name}|work {number}|{number}"),
        10 => match numbers.one_in(2) {
            true => format!("H|{process}|row {name}|work|{number}"),
            false => format!("H|{process}|row {name}|{number}"),
        },
        11 => format!("N|{process}|row {name}|moment {number}"),
        _ => {
            const OTHERS: [&str; 17] = [
                "",
                "\n",
                "text of a program",
                "Everything is text",
                "trace_event_clock_sync: parent_ts=1.5",
                "B|3|",
                "B|3",
                "B|x|name",
                "B||name",
                "S|3|job",
                "S|3||4",
                "C|3|count|many",
                "C|3|ScreenState|2",
                "C|3|battery_stats.level|50",
                "C|3|kill_one_process|4",
                "B|3|lmk,4,reason,900,more",
                "N|3|DeviceStateChanged|folded",
            ];
            OTHERS[numbers.below(17) as usize].to_owned()
        }
    }
}
