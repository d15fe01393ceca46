//! Tracks of values over time.

use ferretto_proto::messages::counter_descriptor::{BuiltinCounterType, Unit};
use ferretto_proto::write;

use super::label::{Label, labelled_track};

/// Upstream's, so that names give the uuids that its libraries compute.
const MAGIC: u64 = 0xb1a4_a67d_7970_839e;

/// The unit of a counter's values. For other units see [`CounterTrack::unit_name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CounterUnit {
    /// Nanoseconds.
    TimeNs,
    /// Individual things.
    Count,
    /// Bytes.
    SizeBytes,
}

/// Counters of a thread that viewers have names and units for. Their tracks are below the thread's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BuiltinCounter {
    /// CPU time, in nanoseconds.
    ThreadTimeNs,
    /// Instructions executed.
    ThreadInstructionCount,
}

/// A value over time.
///
/// ```
/// use ferretto::track::{CounterTrack, CounterUnit};
///
/// static HEAP: CounterTrack = CounterTrack::new("Heap").unit(CounterUnit::SizeBytes).unit_multiplier(1024);
/// static TEMPERATURE: CounterTrack = CounterTrack::new("Temperature").unit_name("°C");
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "a track does nothing until an event is recorded on it"]
pub struct CounterTrack<'a> {
    label: Label<'a>,
    unit: Option<CounterUnit>,
    unit_name: Option<&'a str>,
    unit_multiplier: i64,
    encoding: Encoding,
    category: Option<&'a str>,
    y_axis_share_key: Option<&'a str>,
    builtin: Option<BuiltinCounter>,
}

/// How values are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    /// As they are.
    Absolute,
    /// As the difference to the one before on the same sequence.
    Incremental,
}

impl<'a> CounterTrack<'a> {
    /// A counter with a name that is part of the program.
    pub const fn new(name: &'static str) -> Self {
        Self::with_label(Label::new(name, MAGIC))
    }

    /// A counter with a name made at run time. Traces mark such names, because they may hold private data.
    pub const fn dynamic(name: &'a str) -> Self {
        Self::with_label(Label::dynamic(name, MAGIC))
    }

    const fn with_label(label: Label<'a>) -> Self {
        Self {
            label,
            unit: None,
            unit_name: None,
            unit_multiplier: 1,
            encoding: Encoding::Absolute,
            category: None,
            y_axis_share_key: None,
            builtin: None,
        }
    }

    /// Sets the unit of the values.
    pub const fn unit(mut self, unit: CounterUnit) -> Self {
        self.unit = Some(unit);
        self
    }

    /// Sets the unit of the values, where [`CounterUnit`] has none for it.
    pub const fn unit_name(mut self, name: &'a str) -> Self {
        self.unit_name = Some(name);
        self
    }

    /// Sets how many units a value of 1 stands for; 1 by default.
    pub const fn unit_multiplier(mut self, multiplier: i64) -> Self {
        self.unit_multiplier = multiplier;
        self
    }

    /// Has values written as differences, which takes fewer bytes where they are large and change little. Events still pass the values themselves:
    /// either integers only or floating-point numbers only.
    ///
    /// The track must then belong to one thread: values that several threads record are differences to each thread's own last one, and mean nothing
    /// together.
    pub const fn incremental(mut self) -> Self {
        self.encoding = Encoding::Incremental;
        self
    }

    const fn tells_differences(&self) -> bool {
        matches!(self.encoding, Encoding::Incremental)
    }

    /// Sets the category that the counter belongs to.
    pub const fn category(mut self, category: &'a str) -> Self {
        self.category = Some(category);
        self
    }

    /// Counters with the same parent and key are drawn to the same scale.
    pub const fn y_axis_share_key(mut self, key: &'a str) -> Self {
        self.y_axis_share_key = Some(key);
        self
    }

    /// Makes it a counter that viewers have a name and a unit for, in place of its own.
    pub const fn builtin(mut self, counter: BuiltinCounter) -> Self {
        self.builtin = Some(counter);
        self
    }

    fn write_particulars(&self, descriptor: &mut write::TrackDescriptor<'_>) {
        // In the order of upstream's encoding, that of the fields' numbers.
        descriptor.counter(|counter| {
            if let Some(builtin) = self.builtin {
                counter.r#type(match builtin {
                    BuiltinCounter::ThreadTimeNs => BuiltinCounterType::COUNTER_THREAD_TIME_NS,
                    BuiltinCounter::ThreadInstructionCount => {
                        BuiltinCounterType::COUNTER_THREAD_INSTRUCTION_COUNT
                    }
                });
            }
            if let Some(category) = self.category {
                counter.categories(category);
            }
            if let Some(unit) = self.unit {
                counter.unit(match unit {
                    CounterUnit::TimeNs => Unit::UNIT_TIME_NS,
                    CounterUnit::Count => Unit::UNIT_COUNT,
                    CounterUnit::SizeBytes => Unit::UNIT_SIZE_BYTES,
                });
            }
            if self.unit_multiplier != 1 {
                counter.unit_multiplier(self.unit_multiplier);
            }
            if self.tells_differences() {
                counter.is_incremental(true);
            }
            // Built-in counters have a unit.
            if let (Some(name), None) = (self.unit_name, self.builtin) {
                counter.unit_name(name);
            }
            if let Some(key) = self.y_axis_share_key {
                counter.y_axis_share_key(key);
            }
        });
    }
}

labelled_track!(CounterTrack);
