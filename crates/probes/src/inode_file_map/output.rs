//! Puts files into `InodeFileMap` packets. A packet is about one device and takes its files until it is finished.

use std::collections::BTreeSet;

use ferretto_client::runtime::probe::PacketSink;
use ferretto_proto::write;
use ferretto_wire::Writer;

use super::known::File;
use super::mounts::Mounts;
use crate::ftrace::metadata::FileId;

/// Bytes of files at which a packet is finished, so that files do not gather here.
const ENOUGH_BYTES: usize = 32 << 10;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Output {
    /// Device of the packet under way.
    device: Option<u64>,
    /// Its files, as encoded fields.
    files: Writer,
    packet: Writer,
    /// Devices that a packet has reported since the last [`Output::forget`].
    seen: BTreeSet<u64>,
}

impl Output {
    pub(super) fn add(&mut self, id: FileId, file: &File, mounts: &Mounts, sink: &mut dyn PacketSink) {
        self.open(id.device, mounts, sink);
        self.files.nested(write::InodeFileMap::ENTRIES, |entry| {
            let mut entry = write::inode_file_map::Entry::new(entry);
            entry.inode_number(id.inode).r#type(file.kind);
            for path in &file.paths {
                entry.paths(path);
            }
        });
        if self.files.len() >= ENOUGH_BYTES {
            self.finish(mounts, sink);
        }
    }

    /// Reports at least where the device is mounted, unless a packet has already reported it.
    pub(super) fn add_device(&mut self, device: u64, mounts: &Mounts, sink: &mut dyn PacketSink) {
        if !self.seen.contains(&device) {
            self.open(device, mounts, sink);
        }
    }

    fn open(&mut self, device: u64, mounts: &Mounts, sink: &mut dyn PacketSink) {
        if self.device != Some(device) {
            self.finish(mounts, sink);
            self.device = Some(device);
            self.seen.insert(device);
        }
    }

    /// Writes the packet under way, if there is one.
    pub(super) fn finish(&mut self, mounts: &Mounts, sink: &mut dyn PacketSink) {
        let Some(device) = self.device.take() else {
            return;
        };
        self.packet.clear();
        // The packet has no time, as upstream's: it holds for the whole trace.
        write::TracePacket::new(&mut self.packet).inode_file_map(|map| {
            map.block_device_id(device);
            for point in mounts.points_of(device) {
                map.mount_points(point);
            }
            map.writer().raw(self.files.as_slice());
        });
        self.files.clear();
        sink.write_packet(self.packet.as_slice());
    }

    /// Forgets which devices were reported, so that they are reported again.
    pub(super) fn forget(&mut self) {
        self.seen.clear();
    }
}
