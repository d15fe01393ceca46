//! Measures the cost of a packet on its way into shared memory: `cargo bench -p ferretto-client --bench trace_writer`.
//! Prints nanoseconds per packet, with chunks turned over, committed and freed as they are in a producer.

use ferretto_client::arbiter::{Arbiter, BufferExhaustedPolicy, BufferId, Notify, Request, Wake};
use ferretto_smb::{PageLayout, PageSize, ProducerSmb, ServiceSmb, SharedMemory};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

struct Polled;

impl Notify for Polled {
    fn wake(&self, _: Wake) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const PACKETS: u32 = 1 << 14;
    for len in [16, 64, 256, 4_096, 65_536] {
        let memory = Arc::new(SharedMemory::create(1 << 20)?);
        let producer = ProducerSmb::new(memory.clone(), PageSize::MIN)?;
        let service = ServiceSmb::new(memory, PageSize::MIN)?;
        let arbiter = Arbiter::new(producer, PageLayout::Div1, Polled);
        let mut writer = arbiter.create_trace_writer(BufferId(1), BufferExhaustedPolicy::Drop)?;
        let packet = vec![7; len];
        let mut payload = Vec::new();
        // The buffer is drained before it is full, at the price of the service's copy, which is left out.
        let per_drain = (1 << 18) / (len as u32 + 16);
        let mut best = u128::MAX;
        for _ in 0..PACKETS / per_drain.min(PACKETS) * 20 {
            let start = Instant::now();
            for _ in 0..per_drain {
                writer.write_packet(black_box(&packet));
            }
            best = best.min(start.elapsed().as_nanos());
            for request in arbiter.take_requests() {
                let Request::CommitData(commit) = request else {
                    continue;
                };
                for chunk in commit.chunks_to_move {
                    let place = (chunk.page.unwrap_or_default(), chunk.chunk.unwrap_or_default());
                    service.copy_chunk(place.0 as usize, place.1 as usize, &mut payload)?;
                }
            }
        }
        let per_packet = best as f64 / f64::from(per_drain);
        println!(
            "packets of {len:5} bytes: {per_packet:8.2} ns each, {} losses",
            writer.losses()
        );
    }
    Ok(())
}
