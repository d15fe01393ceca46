//! The last data of a crash-safe session, in files: a ring of segments.
//!
//! [`journal`](super::journal) appends the packets that it reads from the service. Written data survives the end of any process, because the kernel has
//! it. The oldest segment makes room for a new one; only the first segment of a run stays, because it has the packets that come once: the config, the
//! machine, the first clocks. A segment holds whole packets, but its last write may be cut off if the recorder is killed: [`whole`] finds the end.
//!
//! Segments are numbered. A number that is missing is data that are missing: a segment that made room, or packets that could not be written. Whoever puts
//! segments together has to [mark](MARKS) that, because readers understand packets by what their sequence said before.
//!
//! Guarantee: the files of a run have at most the bytes that were allowed, at every moment. They do not grow while the disk has no more than it is to
//! leave free: then too the newest data take the place of the oldest.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ferretto_recorder::SessionName;
use ferretto_wire::decode_varint;

use super::folder::Disk;
use crate::private_file;
use ferretto_trace_file::PACKET_TAG;

/// The beginning of the names of segments: `.ring-NAME-RUN-NUMBER`.
const PREFIX: &str = ".ring-";
/// A ring has about so many segments.
const SEGMENTS: u64 = 8;
/// One part in so many of a ring is not for data: the file that is made of it has the marks of losses there.
const MARKS: u64 = 64;
/// The least room for marks in a file that is made of the remains of a ring.
const LEAST_MARKS: u64 = 1 << 10;

/// A file with a part of the data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) path: PathBuf,
    /// See the [module](self).
    pub(super) number: u64,
    bytes: u64,
}

/// The ring of a run of a session, see the [module](self).
#[derive(Debug)]
pub(super) struct Ring {
    disk: Disk,
    /// The path of a segment without its number.
    stem: PathBuf,
    /// The room for data.
    limit: u64,
    next: u64,
    head: Option<Segment>,
    /// The oldest first; the last one is open.
    segments: VecDeque<Segment>,
    open: Option<File>,
    /// The bytes that have to come before a full disk costs another segment.
    spared: u64,
    /// Bytes that were too many for the ring.
    dropped: u64,
}

impl Ring {
    /// Begins a run, which is told apart from others by the time of its start. A file that is made of it has at most `limit` bytes.
    pub(super) fn new(disk: &Disk, session: &SessionName, run: i64, limit: u64) -> Ring {
        Ring {
            disk: disk.clone(),
            stem: disk.folder().join(format!("{PREFIX}{session}-{run:015}")),
            limit: limit - limit / MARKS,
            next: 0,
            head: None,
            segments: VecDeque::new(),
            open: None,
            spared: 0,
            dropped: 0,
        }
    }

    /// Appends whole packets.
    ///
    /// # Errors
    /// If the disk does not take them. They are missing then, and the ring is as it was.
    pub(super) fn append(&mut self, packets: &[u8]) -> io::Result<()> {
        let bytes = packets.len() as u64;
        let grows = bytes > self.spared;
        self.spared = self.spared.saturating_sub(bytes);
        let head = self.head.as_ref().map_or(0, |head| head.bytes);
        if head + bytes > self.limit {
            self.dropped += bytes;
            self.skip();
            return Ok(());
        }
        if self
            .segments
            .back()
            .is_none_or(|last| last.bytes >= self.limit / SEGMENTS)
        {
            self.open = None;
        }
        let mut written = match grows && self.disk.free() < bytes {
            true => Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "the disk has only what is to stay free (leave_free in the settings)",
            )),
            false => self.make_room(head + bytes).and_then(|()| self.write(packets)),
        };
        if written.as_ref().is_err_and(is_full) && self.give_up_oldest() {
            self.spared = self.spared.saturating_sub(bytes);
            written = self.write(packets);
        }
        if written.is_err() {
            self.skip();
        }
        written
    }

    /// Deletes the oldest segment, because the disk is full and the newest data matter more. Others may take the room, so no segment goes before as much
    /// has come as the last one had: even then the ring loses its data no sooner than if the disk had taken all. Returns whether there may be room.
    fn give_up_oldest(&mut self) -> bool {
        if self.spared > 0 || self.segments.len() < 2 {
            return false;
        }
        let Some(oldest) = self.segments.pop_front() else {
            return false;
        };
        self.spared = oldest.bytes;
        // If deleting fails, the next start finds the file.
        std::fs::remove_file(&oldest.path).is_ok()
    }

    /// Notes that packets are missing after the present segment.
    fn skip(&mut self) {
        self.open = None;
        self.next += 1;
    }

    /// Deletes the oldest segments until there is room for so many bytes besides the others.
    fn make_room(&mut self, bytes: u64) -> io::Result<()> {
        while self.segments.iter().map(|segment| segment.bytes).sum::<u64>() + bytes > self.limit {
            let Some(oldest) = self.segments.pop_front() else {
                break;
            };
            if self.segments.is_empty() {
                self.open = None;
            }
            match std::fs::remove_file(&oldest.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    self.segments.push_front(oldest);
                    return Err(error);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Writes packets into the present segment, or into a new one.
    fn write(&mut self, packets: &[u8]) -> io::Result<()> {
        if self.open.is_none() {
            let number = self.next;
            let path = self.path(number);
            self.open = Some(private_file::create_new(File::options().append(true), &path)?);
            self.next += 1;
            self.segments.push_back(Segment {
                path,
                number,
                bytes: 0,
            });
        }
        let (Some(file), Some(segment)) = (&mut self.open, self.segments.back_mut()) else {
            return Ok(());
        };
        if let Err(error) = file.write_all(packets) {
            // A part may be there; shortening a file always works.
            let _ = file.set_len(segment.bytes);
            if segment.bytes == 0 {
                // If deleting fails, an empty file is left, which is no harm.
                let _ = std::fs::remove_file(&segment.path);
                self.segments.pop_back();
                self.open = None;
            }
            return Err(error);
        }
        segment.bytes += packets.len() as u64;
        Ok(())
    }

    /// Ends the present segment, so that it does not change any more. The first one becomes the head, unless it has most of the room.
    pub(super) fn rotate(&mut self) {
        self.open = None;
        if self.next == 1
            && self
                .segments
                .front()
                .is_some_and(|first| first.bytes <= self.limit / 2)
        {
            self.head = self.segments.pop_front();
        }
    }

    /// Returns the segments, the oldest first.
    pub(super) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.head.iter().chain(&self.segments)
    }

    /// Returns the bytes that were too many for the ring.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    fn path(&self, number: u64) -> PathBuf {
        let mut path = self.stem.clone().into_os_string();
        path.push(format!("-{number:010}"));
        path.into()
    }
}

/// The segments of a run whose session has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Leftover {
    pub(super) session: SessionName,
    /// The oldest first.
    pub(super) segments: Vec<Segment>,
}

impl Leftover {
    /// Returns the room that it takes, and that the file needs that is made of it.
    pub(super) fn room(&self) -> u64 {
        let bytes: u64 = self.segments.iter().map(|segment| segment.bytes).sum();
        bytes + (bytes / (MARKS - 1)).max(LEAST_MARKS)
    }

    /// Deletes it.
    pub(super) fn delete(&self) {
        for segment in &self.segments {
            // If deleting fails, the next start finds the file and tries again.
            let _ = std::fs::remove_file(&segment.path);
        }
    }
}

/// Returns the runs in a folder, except those whose segments are in use.
///
/// # Errors
/// If the folder cannot be read.
pub(super) fn leftovers(folder: &Path, in_use: impl Fn(&Path) -> bool) -> io::Result<Vec<Leftover>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let parts = name.strip_prefix(PREFIX).and_then(|rest| {
            let (rest, number) = rest.rsplit_once('-')?;
            let (session, run) = rest.rsplit_once('-')?;
            Some((
                session.to_owned(),
                run.parse::<i64>().ok()?,
                number.parse::<u64>().ok()?,
            ))
        });
        if let Some(parts) = parts
            && !in_use(&path)
        {
            names.push((parts, path));
        }
    }
    names.sort();
    let mut leftovers: Vec<(i64, Leftover)> = Vec::new();
    for ((session, run, number), path) in names {
        let Ok(session) = SessionName::new(&session) else {
            continue;
        };
        let bytes = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
        let segment = Segment { path, number, bytes };
        match leftovers.last_mut() {
            Some((of, leftover)) if *of == run && leftover.session == session => {
                leftover.segments.push(segment);
            }
            _ => {
                let leftover = Leftover {
                    session,
                    segments: vec![segment],
                };
                leftovers.push((run, leftover));
            }
        }
    }
    Ok(leftovers.into_iter().map(|(_, leftover)| leftover).collect())
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// Returns how much of a segment's bytes are whole packets.
pub(super) fn whole(bytes: &[u8]) -> usize {
    let mut end = 0;
    while let Some((PACKET_TAG, rest)) = bytes[end..].split_first().map(|(tag, rest)| (*tag, rest)) {
        let Ok((payload, length)) = decode_varint(rest) else {
            break;
        };
        let next = usize::try_from(payload)
            .ok()
            .and_then(|payload| payload.checked_add(end + 1 + length));
        match next {
            Some(next) if next <= bytes.len() => end = next,
            _ => break,
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use ferretto_trace_file::{MAX_PREAMBLE, packet_preamble};

    fn packet(length: usize, fill: u8) -> Vec<u8> {
        let mut packet = packet_preamble(length as u64, &mut [0; MAX_PREAMBLE]).to_vec();
        packet.extend(std::iter::repeat_n(fill, length));
        packet
    }

    fn disk(folder: &Path) -> Disk {
        Disk::of(folder, 0)
    }

    fn content(segments: &[Segment]) -> Vec<u8> {
        segments
            .iter()
            .flat_map(|segment| std::fs::read(&segment.path).unwrap())
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_ring_has_the_first_and_the_last_packets_and_never_more_than_its_limit(
            first in 1..100usize,
            lengths in prop::collection::vec(1..300usize, 0..100),
            limit in 1000..4000u64,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let session = SessionName::new("a-b").unwrap();
            let mut ring = Ring::new(&disk(folder.path()), &session, 17, limit);
            let head = packet(first, 0);
            ring.append(&head).unwrap();
            ring.rotate();
            let mut all = Vec::new();
            for (number, length) in lengths.iter().enumerate() {
                let packet = packet(*length, number as u8);
                ring.append(&packet).unwrap();
                all.extend_from_slice(&packet);
                let found = leftovers(folder.path(), |_| false).unwrap();
                prop_assert_eq!(found.len(), 1);
                let content = content(&found[0].segments);
                prop_assert!(content.len() as u64 <= limit - limit / MARKS);
                prop_assert_eq!(whole(&content), content.len());
                let tail = content.strip_prefix(head.as_slice()).unwrap();
                prop_assert!(all.ends_with(tail));
                // At most a segment and a packet less than what has room.
                let least = (limit - limit / MARKS - limit / SEGMENTS).saturating_sub(head.len() as u64 + 700);
                prop_assert!(tail.len() as u64 >= least.min(all.len() as u64), "{} of {}", tail.len(), all.len());
            }
            prop_assert_eq!(ring.dropped(), 0);
        }
    }

    #[test]
    fn a_write_that_was_cut_off_ends_before_the_packet() {
        let mut bytes = [packet(5, 1), packet(300, 2)].concat();
        let end = bytes.len();
        let third = packet(200, 3);
        for cut in 0..third.len() {
            bytes.truncate(end);
            bytes.extend_from_slice(&third[..cut]);
            assert_eq!(whole(&bytes), end);
        }
        assert_eq!(whole(b"x"), 0);
        assert_eq!(whole(b""), 0);
    }

    #[test]
    fn runs_are_told_apart_and_those_in_use_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let name = |name| SessionName::new(name).unwrap();
        for (session, run) in [("a", 1), ("a", 2), ("b", 1)] {
            let mut ring = Ring::new(&disk(folder.path()), &name(session), run, 1000);
            ring.append(&packet(run as usize, 0)).unwrap();
        }
        let mut live = Ring::new(&disk(folder.path()), &name("a"), 3, 1000);
        live.append(&packet(1, 0)).unwrap();
        let in_use = |path: &Path| live.segments().any(|segment| segment.path == path);
        let found = leftovers(folder.path(), in_use).unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|leftover| (leftover.session.as_str(), content(&leftover.segments).len()))
            .collect();
        assert_eq!(found, [("a", 3), ("a", 4), ("b", 3)]);
    }

    #[test]
    fn on_a_full_disk_the_newest_packets_take_the_place_of_the_oldest() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let flags = rustix::mount::MountFlags::empty();
        if let Err(error) = rustix::mount::mount("ferretto-test", folder, "tmpfs", flags, c"size=128k") {
            return println!("skipped: cannot mount a small disk: {error}");
        }
        let mut ring = Ring::new(&disk(folder), &SessionName::new("a").unwrap(), 1, 80 << 10);
        ring.append(&packet(10, 0)).unwrap();
        ring.rotate();
        let mut append = |fill: u8| ring.append(&packet(4000, fill));
        (1..=15).for_each(|fill| append(fill).unwrap());
        let mut others = File::create(folder.join("others")).unwrap();
        while others.write_all(&[0; 4096]).is_ok() {}
        let is_written: Vec<_> = (16..=60).map(|fill| append(fill).is_ok()).collect();
        let content = content(&leftovers(folder, |_| false).unwrap()[0].segments);
        rustix::mount::unmount(folder, rustix::mount::UnmountFlags::DETACH).unwrap();
        assert_eq!(is_written, [true; 45]);
        let newest = [58, 59, 60].map(|fill| packet(4000, fill)).concat();
        assert!(content.starts_with(&packet(10, 0)) && content.ends_with(&newest));
    }

    #[test]
    fn a_ring_does_not_grow_while_the_disk_has_only_what_is_to_stay_free() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let disk = disk(folder);
        let session = SessionName::new("a").unwrap();
        let mut ring = Ring::new(&disk, &session, 1, 80 << 10);
        ring.append(&packet(10, 0)).unwrap();
        ring.rotate();
        (1..=15).for_each(|fill| ring.append(&packet(4000, fill)).unwrap());
        let on_disk = || content(&leftovers(folder, |_| false).unwrap()[0].segments);
        let before = on_disk().len();
        disk.set_leave_free(u64::MAX);
        for fill in 16..=60 {
            ring.append(&packet(4000, fill)).unwrap();
            let content = on_disk();
            assert!(content.len() <= before, "{} of {before}", content.len());
            let newest = [fill - 1, fill].map(|fill| packet(4000, fill)).concat();
            assert!(content.starts_with(&packet(10, 0)) && content.ends_with(&newest));
        }
        // Others take what the ring gives up, again and again: that costs it no more than a segment.
        for fill in 61..=150 {
            disk.set_leave_free(if fill % 2 == 0 { 0 } else { u64::MAX });
            ring.append(&packet(4000, fill)).unwrap();
            let content = on_disk();
            assert!(
                content.len() + 3 * 4100 >= before,
                "{} of {before}",
                content.len()
            );
            assert!(content.ends_with(&packet(4000, fill)));
        }
        disk.set_leave_free(u64::MAX);
        // One that has nothing cannot begin.
        let mut late = Ring::new(&disk, &SessionName::new("late").unwrap(), 1, 80 << 10);
        let error = late.append(&packet(10, 0)).unwrap_err();
        assert!(error.to_string().contains("leave_free"), "{error}");
        // There is room again.
        disk.set_leave_free(0);
        (151..=170).for_each(|fill| ring.append(&packet(4000, fill)).unwrap());
        late.append(&packet(10, 0)).unwrap();
        assert!(on_disk().len() > before);
    }

    #[test]
    fn packets_that_are_missing_leave_a_number_out() {
        let folder = tempfile::tempdir().unwrap();
        let mut ring = Ring::new(&disk(folder.path()), &SessionName::new("a").unwrap(), 1, 1000);
        let numbers = |ring: &Ring| ring.segments().map(|segment| segment.number).collect::<Vec<_>>();
        ring.append(&packet(10, 0)).unwrap();
        ring.rotate();
        ring.append(&packet(10, 1)).unwrap();
        assert_eq!(numbers(&ring), [0, 1]);
        // Too large for the ring.
        ring.append(&packet(2000, 2)).unwrap();
        assert_eq!(ring.dropped(), 2003);
        ring.append(&packet(10, 3)).unwrap();
        assert_eq!(numbers(&ring), [0, 1, 3]);
        // A file that is in the way keeps the next one from being written, once.
        ring.rotate();
        let taken = ring.path(4);
        std::fs::write(&taken, "").unwrap();
        ring.append(&packet(10, 4)).unwrap_err();
        ring.append(&packet(10, 5)).unwrap();
        assert_eq!(numbers(&ring), [0, 1, 3, 5]);
        // The oldest make room, and the numbers of the others tell.
        for fill in 6..30 {
            ring.append(&packet(100, fill)).unwrap();
        }
        let numbers = numbers(&ring);
        assert!(numbers[0] == 0 && numbers[1] > 5, "{numbers:?}");
        assert!(
            numbers[1..].is_sorted_by(|one, next| one + 1 == *next),
            "{numbers:?}"
        );
    }
}
