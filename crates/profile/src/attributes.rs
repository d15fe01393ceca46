//! From a config to the structures that `perf_event_open` takes.
//!
//! [`cpu`](crate::cpu) and [`threads`](crate::threads) open the events that this describes. The choice of the samples' contents decides how [`record`](crate::record) reads them.

use ferretto_unwind::Arch;
use perf_event_open_sys::bindings as sys;

use crate::config::{Clock, Counted, Interval, Mode, PerfConfig, Sampling, UserFrames};
use crate::event::Event;
use crate::perf_event::Attributes;
use crate::record::{CountFormat, RegisterCount, SampleLayout};

/// Bytes of stack that a sample has at most. The kernel's bound is the next multiple of 8 below 64 KiB, which the rest of the record needs, too.
const STACK_BYTES: u32 = (1 << 16) - 256;

/// Whether a read of an event says how many of its records were lost (`PERF_FORMAT_LOST`, Linux 6.0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LossReports {
    Told,
    Untold,
}

/// The leader and its followers.
pub(crate) struct Group {
    pub(crate) leader: Attributes,
    pub(crate) followers: Vec<Attributes>,
    /// The contents of its samples; `None` if there are none.
    pub(crate) samples: Option<SampleLayout>,
}

impl Group {
    /// The config's sampling. A ring wakes its reader when `wakeup_bytes` of it are full.
    pub(crate) fn of(config: &PerfConfig, losses: LossReports, wakeup_bytes: u32) -> Group {
        let mut leader = counting(&config.leader);
        // Its followers count when it does.
        leader.set_disabled(1);
        let mut samples = match &config.mode {
            Mode::Polling(_) => {
                leader.read_format = u64::from(sys::PERF_FORMAT_GROUP);
                None
            }
            Mode::Sampling(sampling) => Some(sample(
                &mut leader,
                sampling,
                &config.followers,
                losses,
                wakeup_bytes,
            )),
        };
        if let Mode::Sampling(sampling) = &config.mode
            && config.counted != Counted::Everybody
        {
            leader.set_inherit(1);
            // Without it, processes inherit the event as well.
            leader.set_inherit_thread(matches!(config.counted, Counted::Processes(_)).into());
            count_since_last(&mut leader, sampling.interval, samples.as_mut());
        }
        let follower = |event: &Event| {
            let mut follower = counting(event);
            follower.sample_type = leader.sample_type;
            follower.clockid = leader.clockid;
            follower.set_use_clockid(leader.use_clockid());
            follower
        };
        Group {
            followers: config.followers.iter().map(follower).collect(),
            leader,
            samples,
        }
    }
}

impl Group {
    /// The word in a read of the leader that says how many of its records were lost: behind the number of counts, if it is a group, and its own count.
    pub(crate) fn loss_word(&self) -> Option<usize> {
        let is_told = self.leader.read_format & u64::from(sys::PERF_FORMAT_LOST) != 0;
        let layout = self.samples.filter(|_| is_told)?;
        Some(1 + usize::from(layout.is_group))
    }
}

fn counting(event: &Event) -> Attributes {
    let [config, config1, config2] = event.attr_config;
    let mut attributes = Attributes {
        type_: event.attr_type,
        size: size_of::<Attributes>() as u32,
        config,
        ..Default::default()
    };
    attributes.__bindgen_anon_3.config1 = config1;
    attributes.__bindgen_anon_4.config2 = config2;
    attributes.set_exclude_user(event.scope.exclude_user.into());
    attributes.set_exclude_kernel(event.scope.exclude_kernel.into());
    attributes.set_exclude_hv(event.scope.exclude_hypervisor.into());
    attributes
}

fn sample(
    leader: &mut Attributes,
    sampling: &Sampling,
    followers: &[Event],
    losses: LossReports,
    wakeup_bytes: u32,
) -> SampleLayout {
    match sampling.interval {
        Interval::Frequency(frequency) => {
            leader.set_freq(1);
            leader.__bindgen_anon_1.sample_freq = frequency;
        }
        Interval::Period(period) => leader.__bindgen_anon_1.sample_period = period,
    }
    fill_ring(leader, sampling, wakeup_bytes);

    let mut sample_type = sys::PERF_SAMPLE_TID | sys::PERF_SAMPLE_TIME | sys::PERF_SAMPLE_READ;
    let is_group = !followers.is_empty();
    if is_group {
        leader.read_format |= u64::from(sys::PERF_FORMAT_GROUP);
    }
    let count = match losses {
        LossReports::Told => CountFormat::WithLosses,
        LossReports::Untold => CountFormat::Plain,
    };
    if losses == LossReports::Told {
        leader.read_format |= u64::from(sys::PERF_FORMAT_LOST);
    }
    let mut layout = SampleLayout {
        is_group,
        count,
        has_callchain: false,
        stack: None,
    };
    if let Some(stacks) = &sampling.stacks {
        if let Some(arch) = Arch::current().filter(|_| stacks.user.copies_stack()) {
            sample_type |= sys::PERF_SAMPLE_REGS_USER | sys::PERF_SAMPLE_STACK_USER;
            leader.sample_regs_user = arch.perf_mask();
            leader.sample_stack_user = STACK_BYTES;
            layout.stack = Some(RegisterCount(arch.perf_mask().count_ones()));
        }
        let by_kernel = stacks.user == UserFrames::KernelFramePointers;
        if stacks.kernel || by_kernel {
            sample_type |= sys::PERF_SAMPLE_CALLCHAIN;
            leader.set_exclude_callchain_kernel((!stacks.kernel).into());
            leader.set_exclude_callchain_user((!by_kernel).into());
            layout.has_callchain = true;
        }
        leader.set_sample_id_all(1);
        // Which programs processes run, and which files they map: so that a process that is gone by the time can still be unwound.
        leader.set_task(1);
        leader.set_comm(1);
        leader.set_comm_exec(1);
        leader.set_mmap(1);
        leader.set_mmap2(1);
    }
    leader.sample_type = sample_type.into();
    layout
}

/// The clock of the kernel's records in a ring, and when the kernel wakes the reader. Events that share a ring have the same.
fn fill_ring(event: &mut Attributes, sampling: &Sampling, wakeup_bytes: u32) {
    event.clockid = match sampling.clock {
        Clock::Realtime => libc::CLOCK_REALTIME,
        Clock::Monotonic => libc::CLOCK_MONOTONIC,
        Clock::MonotonicRaw => libc::CLOCK_MONOTONIC_RAW,
        Clock::Boottime => libc::CLOCK_BOOTTIME,
    };
    event.set_use_clockid(1);
    event.set_watermark(1);
    event.__bindgen_anon_2.wakeup_watermark = wakeup_bytes;
}

/// The kernel gives no total of all threads that inherit an event, so samples say what was counted since the last.
fn count_since_last(leader: &mut Attributes, interval: Interval, layout: Option<&mut SampleLayout>) {
    leader.sample_type &= !u64::from(sys::PERF_SAMPLE_READ);
    let count = match interval {
        Interval::Frequency(_) => {
            leader.sample_type |= u64::from(sys::PERF_SAMPLE_PERIOD);
            CountFormat::SinceLast
        }
        // With PERF_SAMPLE_PERIOD the kernel would sample each count of an event of software.
        Interval::Period(period) => CountFormat::Fixed(period),
    };
    if let Some(layout) = layout {
        layout.count = count;
    }
}

/// An event that counts nothing, whose ring has room for the records of others.
pub(crate) fn ring_holder(sampling: &Sampling, wakeup_bytes: u32) -> Attributes {
    let mut holder = Attributes {
        type_: sys::PERF_TYPE_SOFTWARE,
        size: size_of::<Attributes>() as u32,
        config: sys::PERF_COUNT_SW_DUMMY.into(),
        ..Default::default()
    };
    holder.set_disabled(1);
    holder.set_exclude_kernel(1);
    holder.set_exclude_hv(1);
    fill_ring(&mut holder, sampling, wakeup_bytes);
    holder
}
