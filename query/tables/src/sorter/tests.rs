use super::*;

/// A generator of numbers that needs no crate.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }
}

/// The trace processor's way: find the queue with the earliest event, and drain it up to the earliest event of the others.
fn naive(events: &[(i64, u32, u64)]) -> Vec<(i64, u64)> {
    let most = events.iter().map(|event| event.1).max().unwrap_or(0);
    let mut queues: Vec<Vec<(i64, u64)>> = (0..=most)
        .map(|queue| {
            let of_queue = events.iter().filter(|event| event.1 == queue);
            let mut of_queue: Vec<(i64, u64)> = of_queue.map(|(ts, _, number)| (*ts, *number)).collect();
            of_queue.sort_by_key(|event| event.0);
            of_queue.reverse();
            of_queue
        })
        .collect();
    let mut all = Vec::new();
    loop {
        let heads = || {
            queues
                .iter()
                .enumerate()
                .filter_map(|(at, queue)| Some((queue.last()?.0, at)))
        };
        let Some((_, first)) = heads().min() else {
            return all;
        };
        let next = heads().filter(|head| head.1 != first).map(|head| head.0).min();
        while queues[first]
            .last()
            .is_some_and(|event| next.is_none_or(|next| event.0 <= next))
        {
            all.extend(queues[first].pop());
        }
    }
}

#[test]
fn events_come_in_the_order_of_the_trace_processor_whatever_the_memory() {
    for seed in 0..200 {
        let mut numbers = Numbers(seed);
        let (queues, times) = (1 + numbers.below(5), 1 + numbers.below(60));
        // Half of them are as far apart as they can be.
        let step = if seed % 2 == 0 { 1 } else { i64::MAX / 60 };
        let events: Vec<(i64, u32, u64)> = (0..numbers.below(300))
            .map(|number| {
                let ts = numbers.below(times) as i64 * step;
                (ts, numbers.below(queues) as u32, number)
            })
            .collect();
        for budget in [1, 300, 2000, 1 << 20] {
            let mut sorter = Sorter::new(budget);
            for (ts, queue, number) in &events {
                sorter
                    .push(*ts, *queue, |event| {
                        event.extend_from_slice(&number.to_le_bytes())
                    })
                    .unwrap();
            }
            let mut seen = Vec::new();
            let visited: io::Result<()> = sorter.finish(|sorted| {
                seen.push((sorted.ts, u64::from_le_bytes(sorted.event.try_into().unwrap())));
                Ok(())
            });
            visited.unwrap();
            assert_eq!(seen, naive(&events), "seed {seed}, budget {budget}");
        }
    }
}
