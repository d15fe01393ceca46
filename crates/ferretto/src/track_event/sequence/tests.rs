//! A sequence without its thread.

use ferretto_client::arbiter::{Arbiter, BufferExhaustedPolicy, BufferId, Notify, Wake};
use ferretto_proto::messages::TrackEventConfig;
use ferretto_smb::{PageLayout, PageSize};

use super::*;

struct Silent;

impl Notify for Silent {
    fn wake(&self, _: Wake) {}
}

fn sequence(multiplier: u64) -> Sequence {
    let arbiter = Arbiter::emulating(PageSize::MIN, PageLayout::Div1, Silent).unwrap();
    let writer = arbiter.create_trace_writer(BufferId(1), BufferExhaustedPolicy::Drop);
    let options = TrackEventOptions::new(&TrackEventConfig {
        timestamp_unit_multiplier: Some(multiplier),
        ..Default::default()
    });
    let instance = InstanceKey { slot: 0, serial: 1 };
    Sequence::new(instance, 1, Arc::new(options), writer.unwrap())
}

#[test]
fn times_are_differences_and_absolute_if_the_clock_was_set_back() {
    for (multiplier, absolute) in [(1, clock::chosen().id()), (1000, ABSOLUTE_CLOCK)] {
        let mut sequence = sequence(multiplier);
        let mut told = |now| {
            let stamp = sequence.stamp(now);
            (stamp.value, stamp.clock)
        };
        assert_eq!(told(50_000 * multiplier), (50_000, None));
        assert_eq!(told(50_003 * multiplier), (3, None));
        assert_eq!(told(20_000 * multiplier), (20_000, Some(absolute)));
        assert_eq!(told(50_010 * multiplier), (7, None));
    }
}
