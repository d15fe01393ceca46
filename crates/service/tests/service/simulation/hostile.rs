//! Producers that send anything that a request can hold.

use ferretto_proto::messages::{CommitDataRequest, DataSourceDescriptor, Message, commit_data_request};
use ferretto_service::ProducerId;

use super::Simulation;
use crate::random::Random;

impl Simulation {
    pub(super) fn hostile_step(&mut self) {
        let all: Vec<ProducerId> = self.hostile.iter().copied().collect();
        let Some(id) = self.random.pick(&all) else { return };
        if self.random.one_in(20) {
            self.activate_triggers(id);
        }
        let random = &mut self.random;
        let (service, now) = (&mut self.world.service, self.world.now);
        match random.below(10) {
            0 => service.register_data_source(id, &random.bytes(12), &now),
            1 | 2 => {
                let descriptor = DataSourceDescriptor {
                    id: Some(random.number().into()),
                    name: Some(format!("d{}", random.below(4))),
                    will_notify_on_start: Some(random.one_in(2)),
                    will_notify_on_stop: Some(random.one_in(2)),
                    no_flush: Some(random.one_in(2)),
                    ..Default::default()
                };
                let bytes = descriptor.encode_to_vec();
                match random.below(3) {
                    0 => service.update_data_source(id, &bytes),
                    _ => service.register_data_source(id, &bytes, &now),
                }
            }
            3 => service.unregister_data_source(id, &format!("d{}", random.below(5)), &now),
            4 => service.register_trace_writer(id, random.number(), random.number()),
            5 => service.unregister_trace_writer(id, random.number()),
            6 => service.data_source_started(id, random.number().into(), &now),
            7 => service.data_source_stopped(id, random.number().into(), &now),
            _ => {
                let request = forged_commit(random);
                service.commit(id, &request, &now);
            }
        }
        self.world.run();
        if self.world.producers[&id].disconnected.is_some() {
            self.hostile.remove(&id);
        }
    }
}

/// A request that no honest producer makes.
fn forged_commit(random: &mut Random) -> CommitDataRequest {
    let chunks_to_move = (0..random.below(4))
        .map(|_| commit_data_request::ChunksToMove {
            page: Some(random.number()),
            chunk: Some(random.number()),
            target_buffer: Some(random.number()),
            data: random.one_in(2).then(|| random.bytes(200)),
            chunk_incomplete: Some(random.one_in(2)),
            ..Default::default()
        })
        .collect();
    let chunks_to_patch = (0..random.below(3))
        .map(|_| commit_data_request::ChunkToPatch {
            target_buffer: Some(random.number()),
            writer_id: Some(random.number()),
            chunk_id: Some(random.number()),
            patches: (0..random.below(3))
                .map(|_| commit_data_request::chunk_to_patch::Patch {
                    offset: Some(random.number()),
                    data: Some(random.bytes(6)),
                    ..Default::default()
                })
                .collect(),
            has_more_patches: Some(random.one_in(2)),
            ..Default::default()
        })
        .collect();
    CommitDataRequest {
        chunks_to_move,
        chunks_to_patch,
        flush_request_id: random.one_in(3).then(|| random.number().into()),
        ..Default::default()
    }
}
