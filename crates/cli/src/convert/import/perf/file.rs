//! The parts of a `perf.data` file: header, events, build ids and records.
//!
//! The layout is that of the kernel's `tools/perf/Documentation/perf.data-file-format.txt` and of `perf_event_attr` in `linux/perf_event.h`. Both forms
//! are read: the file, and the stream that `perf record -o -` writes. Nothing is believed: sections have to lie in the file, and records in theirs.

use std::collections::HashMap;
use std::io::{self, Read, Seek, SeekFrom};

use super::super::ImportError;
use super::bytes::{Bytes, Order};

/// The bytes of the header of a file; that of a stream has only the first two fields.
const FILE_HEADER: u64 = 104;
const STREAM_HEADER: u64 = 16;
/// The bytes of a record's own header.
const RECORD_HEADER: usize = 8;
/// The oldest `perf_event_attr` has this many bytes.
const MIN_ATTR: usize = 64;
/// The most events of a recording, and the most bytes of their descriptions and of build ids.
const MAX_ATTRS: u64 = 4096;
const MAX_SECTION: u64 = 64 << 20;

/// Numbers of features.
const BUILD_ID: u32 = 2;
const EVENT_DESC: u32 = 12;
const CLOCK_DATA: u32 = 29;

/// Types of records that describe the recording itself.
pub(super) const HEADER_ATTR: u32 = 64;
pub(super) const HEADER_BUILD_ID: u32 = 67;

/// An event that was recorded.
#[derive(Debug, Clone, Default)]
pub(super) struct Attr {
    pub(super) kind: u32,
    pub(super) config: u64,
    /// A period, or a frequency in Hz if `is_frequency`.
    pub(super) period: u64,
    pub(super) sample_type: u64,
    pub(super) read_format: u64,
    pub(super) is_frequency: bool,
    pub(super) has_sample_id: bool,
    pub(super) ids: Vec<u64>,
    /// As `perf` names it; empty if the file does not say.
    pub(super) name: String,
}

/// The wall-clock time and that of the clock of the samples at one moment, in ns.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClockData {
    pub(super) wall: u64,
    pub(super) own: u64,
}

/// A recording, from which records can be read.
pub(super) struct PerfFile<R> {
    source: R,
    pub(super) order: Order,
    pub(super) attrs: Vec<Attr>,
    /// By the path of the file.
    pub(super) build_ids: HashMap<Vec<u8>, Vec<u8>>,
    pub(super) clock: Option<ClockData>,
    /// The offset of the next record.
    offset: u64,
    /// The end of the records; `None` for a stream, which ends when it ends.
    end: Option<u64>,
    record: Vec<u8>,
}

/// A record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record<'a> {
    pub(super) offset: u64,
    pub(super) kind: u32,
    pub(super) misc: u16,
    pub(super) body: Bytes<'a>,
}

/// An error at an offset.
pub(super) fn damaged(offset: u64, reason: impl Into<String>) -> ImportError {
    ImportError::Offset {
        offset,
        reason: reason.into(),
    }
}

/// A part of the file.
#[derive(Debug, Clone, Copy)]
struct Section {
    offset: u64,
    size: u64,
}

impl Section {
    fn read(bytes: &mut Bytes<'_>) -> Option<Section> {
        Some(Section {
            offset: bytes.u64()?,
            size: bytes.u64()?,
        })
    }
}

impl<R: Read + Seek> PerfFile<R> {
    /// Reads everything up to the records.
    ///
    /// # Errors
    /// If it is no recording of `perf`, or is damaged, with the offset.
    pub(super) fn open(mut source: R) -> Result<PerfFile<R>, ImportError> {
        let length = source.seek(SeekFrom::End(0))?;
        source.rewind()?;
        let mut head = [0; FILE_HEADER as usize];
        let wanted = length.min(FILE_HEADER) as usize;
        source.read_exact(&mut head[..wanted])?;
        let order = match &head[..8] {
            b"PERFILE2" => Order::Little,
            b"2ELIFREP" => Order::Big,
            _ => return Err(damaged(0, "a recording of perf begins with PERFILE2")),
        };
        let mut bytes = Bytes::new(&head[8..wanted], order);
        let size = bytes.u64().ok_or_else(|| damaged(8, "the header is cut off"))?;
        let mut file = PerfFile {
            source,
            order,
            attrs: Vec::new(),
            build_ids: HashMap::new(),
            clock: None,
            offset: STREAM_HEADER,
            end: None,
            record: Vec::new(),
        };
        if size != STREAM_HEADER {
            file.file_header(bytes, length)
                .ok_or_else(|| damaged(16, "the header is cut off"))??;
        }
        Ok(file)
    }

    /// Reads the rest of the header of a file, and the sections that it names. `None` if the header is too short.
    fn file_header(&mut self, mut bytes: Bytes<'_>, length: u64) -> Option<Result<(), ImportError>> {
        let attr_size = bytes.u64()?;
        let attrs = Section::read(&mut bytes)?;
        let data = Section::read(&mut bytes)?;
        let _event_types = Section::read(&mut bytes)?;
        let features = [bytes.u64()?, bytes.u64()?, bytes.u64()?, bytes.u64()?];
        Some(self.sections(attr_size, attrs, data, &features, length))
    }

    fn sections(
        &mut self,
        attr_size: u64,
        attrs: Section,
        data: Section,
        features: &[u64],
        length: u64,
    ) -> Result<(), ImportError> {
        let attr_len = usize::try_from(attr_size).unwrap_or(usize::MAX);
        if attr_len < MIN_ATTR + 16 || attrs.size / attr_size > MAX_ATTRS {
            return Err(damaged(
                16,
                format!("events of {attr_size} bytes in {} bytes", attrs.size),
            ));
        }
        let encoded = self.section(attrs, length, "the list of events")?;
        for one in encoded.chunks_exact(attr_len) {
            let (attr, ids) = one.split_at(attr_len - 16);
            let attr = parse_attr(Bytes::new(attr, self.order)).map(|(attr, _)| attr);
            let mut attr = attr.ok_or_else(|| damaged(attrs.offset, "an event is cut off"))?;
            let ids = Section::read(&mut Bytes::new(ids, self.order));
            if let Some(ids) = ids {
                let encoded = self.section(ids, length, "the ids of an event")?;
                attr.ids = numbers(Bytes::new(&encoded, self.order));
            }
            self.attrs.push(attr);
        }
        if self.attrs.is_empty() {
            return Err(damaged(attrs.offset, "there are no events"));
        }
        let end = data.offset.checked_add(data.size).filter(|end| *end <= length);
        let end = end.ok_or_else(|| {
            damaged(
                data.offset,
                "the records reach beyond the end of the file: was the recording interrupted?",
            )
        })?;
        self.features(features, end, length)?;
        (self.offset, self.end) = (data.offset, Some(end));
        self.source.seek(SeekFrom::Start(data.offset))?;
        Ok(())
    }

    /// Reads the features that matter. Their sections are listed after the records, in the order of their numbers.
    fn features(&mut self, bits: &[u64], list: u64, length: u64) -> Result<(), ImportError> {
        let numbers = (0_u32..256).filter(|number| bits[(number / 64) as usize] >> (number % 64) & 1 == 1);
        for (place, number) in (0_u64..).zip(numbers) {
            let entry = Section {
                offset: list + place * 16,
                size: 16,
            };
            let encoded = self.section(entry, length, "the list of features")?;
            let Some(section) = Section::read(&mut Bytes::new(&encoded, self.order)) else {
                continue;
            };
            match number {
                BUILD_ID => {
                    let encoded = self.section(section, length, "the list of build ids")?;
                    self.build_id_list(&encoded);
                }
                EVENT_DESC => {
                    let encoded = self.section(section, length, "the names of events")?;
                    self.names(Bytes::new(&encoded, self.order));
                }
                CLOCK_DATA => {
                    let encoded = self.section(section, length, "the clock")?;
                    self.clock = clock_data(Bytes::new(&encoded, self.order));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn section(&mut self, section: Section, length: u64, what: &str) -> Result<Vec<u8>, ImportError> {
        let end = section.offset.checked_add(section.size);
        if end.is_none_or(|end| end > length) || section.size > MAX_SECTION {
            let reason = format!(
                "{what} ({} bytes) reaches beyond the end of the file",
                section.size
            );
            return Err(damaged(section.offset, reason));
        }
        let mut bytes = vec![0; section.size as usize];
        self.source.seek(SeekFrom::Start(section.offset))?;
        self.source.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Takes in build ids: records of their own kind, one after another.
    fn build_id_list(&mut self, encoded: &[u8]) {
        let mut bytes = Bytes::new(encoded, self.order);
        loop {
            let (Some(_), Some(misc), Some(size)) = (bytes.u32(), bytes.u16(), bytes.u16()) else {
                return;
            };
            let body = usize::from(size)
                .checked_sub(RECORD_HEADER)
                .and_then(|length| bytes.take(length));
            let Some(body) = body else { return };
            self.build_id(misc, Bytes::new(body, self.order));
        }
    }

    /// Takes in a build id: a process, 24 bytes for the id and a path.
    pub(super) fn build_id(&mut self, misc: u16, mut body: Bytes<'_>) {
        const HAS_SIZE: u16 = 1 << 15;
        const USUAL_SIZE: usize = 20;
        let (Some(_), Some(id)) = (body.u32(), body.take(24)) else {
            return;
        };
        let size = match misc & HAS_SIZE {
            0 => USUAL_SIZE,
            _ => usize::from(id[USUAL_SIZE]).min(USUAL_SIZE),
        };
        self.build_ids.insert(body.text().to_vec(), id[..size].to_vec());
    }

    /// Takes in the names of events: number and size of attributes, then each with the number of its ids, its name and its ids.
    fn names(&mut self, mut bytes: Bytes<'_>) -> Option<()> {
        let (count, size) = (bytes.u32()?, bytes.u32()? as usize);
        for place in 0..(count as usize).min(self.attrs.len()) {
            bytes.take(size)?;
            let (ids, length) = (bytes.u32()? as usize, bytes.u32()? as usize);
            let name = Bytes::new(bytes.take(length)?, self.order).text();
            self.attrs[place].name = String::from_utf8_lossy(name).into_owned();
            bytes.take(ids.checked_mul(8)?)?;
        }
        Some(())
    }

    /// Returns the next record.
    ///
    /// # Errors
    /// If it is damaged, with its offset.
    pub(super) fn next(&mut self) -> Result<Option<Record<'_>>, ImportError> {
        let offset = self.offset;
        if self.end.is_some_and(|end| offset >= end) {
            return Ok(None);
        }
        let mut head = [0; RECORD_HEADER];
        match self.source.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && self.end.is_none() => {
                return Ok(None);
            }
            read => read?,
        }
        let mut bytes = Bytes::new(&head, self.order);
        let (kind, misc, size) = (bytes.u32(), bytes.u16(), bytes.u16());
        let (kind, misc, size) = (
            kind.unwrap_or(0),
            misc.unwrap_or(0),
            usize::from(size.unwrap_or(0)),
        );
        let body = size.checked_sub(RECORD_HEADER);
        let body = body.ok_or_else(|| damaged(offset, format!("a record claims to have {size} bytes")))?;
        self.offset += size as u64;
        if self.end.is_some_and(|end| self.offset > end) {
            return Err(damaged(offset, "a record reaches beyond the last one"));
        }
        self.record.resize(body, 0);
        let read = self.source.read_exact(&mut self.record);
        read.map_err(|_| damaged(offset, "the file ends inside a record"))?;
        Ok(Some(Record {
            offset,
            kind,
            misc,
            body: Bytes::new(&self.record, self.order),
        }))
    }

    /// Takes in an event that a stream describes.
    pub(super) fn attr(&mut self, body: &[u8]) {
        let attr = parse_attr(Bytes::new(body, self.order));
        if let Some((mut attr, size)) = attr
            && self.attrs.len() < MAX_ATTRS as usize
        {
            attr.ids = numbers(Bytes::new(body.get(size..).unwrap_or_default(), self.order));
            self.attrs.push(attr);
        }
    }
}

/// Returns an event and the size that it claims.
fn parse_attr(mut bytes: Bytes<'_>) -> Option<(Attr, usize)> {
    const FREQUENCY: u64 = 1 << 10;
    const SAMPLE_ID_ALL: u64 = 1 << 18;
    let (kind, size) = (bytes.u32()?, bytes.u32()? as usize);
    let (config, period, sample_type, read_format) = (bytes.u64()?, bytes.u64()?, bytes.u64()?, bytes.u64()?);
    let flags = match bytes.order {
        Order::Little => bytes.u64()?,
        // The flags are bit fields, which the compiler fills from the other end.
        Order::Big => bytes.u64()?.reverse_bits(),
    };
    let attr = Attr {
        kind,
        config,
        period,
        sample_type,
        read_format,
        is_frequency: flags & FREQUENCY != 0,
        has_sample_id: flags & SAMPLE_ID_ALL != 0,
        ids: Vec::new(),
        name: String::new(),
    };
    Some((attr, size))
}

fn numbers(mut bytes: Bytes<'_>) -> Vec<u64> {
    std::iter::from_fn(|| bytes.u64()).collect()
}

fn clock_data(mut bytes: Bytes<'_>) -> Option<ClockData> {
    let (_version, _clock) = (bytes.u32()?, bytes.u32()?);
    Some(ClockData {
        wall: bytes.u64()?,
        own: bytes.u64()?,
    })
}
