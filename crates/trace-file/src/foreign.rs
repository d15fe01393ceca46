//! Recognises files that are no Perfetto traces by their first bytes, and gives advice about them.
//!
//! The commands that read trace files call it when there is no packet.

use super::{Damage, Reason};

/// The programs that show a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// The Perfetto UI reads it, so `ferretto open` can show it.
    ByUi,
    /// No program that Ferretto knows.
    Nowhere,
}

/// Another format than Perfetto's.
#[derive(Debug, PartialEq, Eq)]
pub struct Foreign {
    magic: &'static [u8],
    /// The offset of the magic bytes.
    at: usize,
    /// A description of the format, as a clause.
    pub what: &'static str,
    /// Advice besides showing it in the UI.
    advice: Option<&'static str>,
    /// The program that shows it.
    pub shown: Shown,
}

const fn shown(magic: &'static [u8], what: &'static str, advice: Option<&'static str>) -> Foreign {
    Foreign {
        magic,
        at: 0,
        what,
        advice,
        shown: Shown::ByUi,
    }
}

const fn unknown(magic: &'static [u8], what: &'static str, advice: &'static str) -> Foreign {
    Foreign {
        magic,
        at: 0,
        what,
        advice: Some(advice),
        shown: Shown::Nowhere,
    }
}

/// The formats of other tracers and compressors. The UI shows those for which upstream's trace processor has an importer.
const FORMATS: [Foreign; 32] = [
    unknown(
        b"BZh",
        "it is compressed with bzip2",
        "expand it first: `bzip2 -dc FILE | ferretto … -`",
    ),
    unknown(
        b"\x04\x22\x4d\x18",
        "it is compressed with lz4",
        "expand it first: `lz4 -dc FILE | ferretto … -`",
    ),
    unknown(
        b"\x02\x21\x4c\x18",
        "it is compressed with lz4",
        "expand it first: `lz4 -dc FILE | ferretto … -`",
    ),
    unknown(
        b"\x5d\x00\x00",
        "it is compressed with lzma",
        "expand it first: `xz -dc --format=lzma FILE | ferretto … -`",
    ),
    unknown(
        b"LZIP",
        "it is compressed with lzip",
        "expand it first: `lzip -dc FILE | ferretto … -`",
    ),
    unknown(
        b"\x1f\x9d",
        "it is compressed with compress",
        "expand it first: `gzip -dc FILE | ferretto … -`",
    ),
    unknown(b"7z\xbc\xaf\x27\x1c", "it is a 7z archive", "unpack it first"),
    shown(b"PK\x03\x04", "it is a zip archive", Some("unpack it first")),
    shown(b"PK\x05\x06", "it is a zip archive with nothing in it", None),
    Foreign {
        magic: b"ustar",
        at: 257,
        what: "it is a tar archive",
        advice: Some("unpack it first"),
        shown: Shown::ByUi,
    },
    shown(b"{", "it is JSON, Chrome's older trace format perhaps", None),
    shown(b"[", "it is JSON, Chrome's older trace format perhaps", None),
    shown(b"<?xml", "it is XML, from Apple's Instruments perhaps", None),
    shown(b"<", "it is HTML, from systrace perhaps", None),
    shown(
        b"# tracer:",
        "it is the text of the kernel's own trace file",
        None,
    ),
    shown(b"TRACE:\n", "it is a compressed trace of atrace", None),
    shown(b"done. TRACE:\n", "it is a compressed trace of atrace", None),
    shown(
        b"PERFILE2",
        "it is a recording of perf",
        Some("make it a trace with `ferretto convert -o trace.pftrace FILE`"),
    ),
    shown(b"SIMPLEPERF", "it is a recording of simpleperf", None),
    shown(
        b"\x10\x00\x04\x46\x78\x54\x16\x00",
        "it is a trace of Fuchsia",
        None,
    ),
    shown(b"# ninja log", "it is a log of ninja", None),
    shown(b"JAVA PROFILE", "it is a heap dump of Java", None),
    shown(b"SLOW", "it is a method trace of Android's runtime", None),
    shown(b"--------- beginning of", "it is a log of Android", None),
    unknown(
        b"\xc1\x1f\xfc\xc1",
        "it is a stream of a CTF trace, from LTTng perhaps",
        "print it with `babeltrace2 FOLDER`",
    ),
    unknown(
        b"\xc1\xfc\x1f\xc1",
        "it is a stream of a CTF trace, from LTTng perhaps",
        "print it with `babeltrace2 FOLDER`",
    ),
    unknown(
        b"\x57\x1d\xd1\x75",
        "it is the metadata of a CTF trace, from LTTng perhaps",
        "print it with `babeltrace2 FOLDER`",
    ),
    unknown(
        b"/* CTF ",
        "it is the metadata of a CTF trace, from LTTng perhaps",
        "print it with `babeltrace2 FOLDER`",
    ),
    unknown(
        b"\x17\x08\x44tracing",
        "it is a recording of trace-cmd",
        "print it with `trace-cmd report FILE`",
    ),
    unknown(
        b"\x7fELF",
        "it is a program, a library or a core dump",
        "name the trace",
    ),
    unknown(
        b"packet {",
        "it is a trace printed as text",
        "name the trace that was printed: text is not read back",
    ),
    unknown(
        b"buffers",
        "it is a trace config",
        "record with it: `ferretto --txt -c FILE`",
    ),
];

impl Foreign {
    /// Returns the format of a file in which this is the first damage.
    pub fn of(first: &Damage) -> Option<&'static Foreign> {
        let Damage {
            offset: 0,
            reason: Reason::NotAPacket(head),
            ..
        } = first
        else {
            return None;
        };
        // Text may begin with spaces, and with a byte order mark.
        let text = head
            .strip_prefix(b"\xef\xbb\xbf")
            .unwrap_or(head)
            .trim_ascii_start();
        let found = |head: &[u8]| {
            let mut formats = FORMATS.iter();
            formats.find(|format| {
                head.get(format.at..)
                    .is_some_and(|head| head.starts_with(format.magic))
            })
        };
        found(head).or_else(|| found(text))
    }

    /// Describes the format and the advice, as the rest of a sentence.
    fn explanation(&self) -> String {
        let show = match self.shown {
            Shown::ByUi => Some("show it with `ferretto open FILE`"),
            Shown::Nowhere => None,
        };
        let advice: Vec<&str> = self.advice.into_iter().chain(show).collect();
        match advice.is_empty() {
            true => self.what.to_owned(),
            false => format!("{}; {}", self.what, advice.join(", or ")),
        }
    }
}

/// Returns the message for a file without packets, to follow its name.
pub fn nothing_read(first: &Damage) -> String {
    match (&first.reason, Foreign::of(first)) {
        (Reason::Broken(broken), _) => format!("cannot be read: {broken}"),
        (_, Some(foreign)) => format!("is no Perfetto trace: {}", foreign.explanation()),
        (_, None) => "is no Perfetto trace".to_owned(),
    }
}
