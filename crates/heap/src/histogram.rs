//! Counts by powers of two, as upstream's `LogHistogram`.
//!
//! [`Profile`](crate::profile::Profile) counts the time that unwinding takes in one.

use ferretto_proto::write::profile_packet::Histogram;

const BUCKETS: usize = 20;

/// See the [module](self).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LogHistogram([u64; BUCKETS]);

impl LogHistogram {
    pub(crate) fn add(&mut self, value: u64) {
        let bits = (u64::BITS - value.leading_zeros()) as usize;
        self.0[bits.min(BUCKETS - 1)] += 1;
    }

    pub(crate) fn write(&self, out: &mut Histogram<'_>) {
        for (bits, count) in self.0.iter().enumerate() {
            out.buckets(|out| {
                match bits {
                    _ if bits == BUCKETS - 1 => out.max_bucket(true),
                    _ => out.upper_limit(1 << bits),
                };
                out.count(*count);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_in_the_first_bucket_whose_limit_is_above_it() {
        let mut histogram = LogHistogram::default();
        for value in [0, 1, 2, 3, 4, 1 << 18, (1 << 18) - 1, u64::MAX] {
            histogram.add(value);
        }
        let counts = &histogram.0;
        assert_eq!(counts[..4], [1, 1, 2, 1]);
        assert_eq!(counts[18..], [1, 2]);
        assert_eq!(counts.iter().sum::<u64>(), 8);
    }
}
