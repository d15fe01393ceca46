//! The books of one heap of one process: which sampled allocations are live, and how much each call stack has allocated and freed.
//!
//! [`Profile`](crate::profile::Profile) enters records in their order, and [`dump`](crate::dump) writes [what is to be told](Books::tell). An
//! allocation costs two look-ups, a release one. The maximum costs nothing more: a call stack remembers what it held at the last maximum when it is next
//! touched, so no maximum looks at other stacks.
//!
//! The caller bounds live allocations, by `Books::live`, and call stacks, which [`Interning`](ferretto_profile::interning::Interning) numbers.

use std::collections::HashSet;

use ferretto_profile::interning::CallstackId;

use crate::config::Recorded;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct Books {
    /// With a quick hash, which begins with random numbers: a client chooses its addresses.
    live: foldhash::HashMap<u64, Live>,
    places: foldhash::HashMap<CallstackId, u32>,
    stacks: Vec<Stack>,
    /// Counts what was entered.
    clock: u64,
    /// Bytes that are live.
    held: u64,
    /// The most that were ever live, and the clock then.
    most_held: u64,
    most_held_at: u64,
    /// Time stamps of the last allocation, and of the one that made the maximum.
    last_time: u64,
    most_held_time: u64,
}

/// A live allocation.
#[derive(Clone, Copy, Debug)]
struct Live {
    bytes: u64,
    stack: u32,
}

/// The account of a call stack.
#[derive(Clone, Copy, Debug)]
struct Stack {
    id: CallstackId,
    allocated: u64,
    freed: u64,
    allocations: u64,
    frees: u64,
    /// Its holdings at the last maximum, if it was touched since. Otherwise it still holds them.
    most: Held,
    /// The clock when it was last touched.
    touched: u64,
    /// Its allocations when it was last told, if all of them were freed by then, and readers know of nothing that would have to be taken back.
    told_empty: Option<u64>,
}

/// The holdings of a call stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes.
    pub bytes: u64,
    /// Allocations.
    pub count: u64,
}

/// The facts that readers get about a call stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its number.
    pub stack: CallstackId,
    /// Bytes that it has allocated.
    pub allocated: u64,
    /// Bytes of these that were freed.
    pub freed: u64,
    /// How many allocations were sampled.
    pub allocations: u64,
    /// How many of these were freed.
    pub frees: u64,
    /// Its holdings when all stacks together held most.
    pub most: Held,
}

impl Stack {
    fn held(&self) -> Held {
        Held {
            bytes: self.allocated.saturating_sub(self.freed),
            count: self.allocations - self.frees,
        }
    }

    fn most(&self, most_held_at: u64) -> Held {
        match self.touched <= most_held_at {
            true => self.held(),
            false => self.most,
        }
    }

    /// To be called before it changes.
    fn touch(&mut self, clock: u64, most_held_at: u64) {
        self.most = self.most(most_held_at);
        self.touched = clock;
    }

    /// Whether readers know its account, and it will hardly change.
    fn is_settled(&self) -> bool {
        self.told_empty == Some(self.allocations)
    }
}

impl Books {
    /// How many allocations are live.
    pub(crate) fn live(&self) -> usize {
        self.live.len()
    }

    /// Whether an allocation is live at this address.
    pub(crate) fn is_live(&self, address: u64) -> bool {
        self.live.contains_key(&address)
    }

    /// The time of the last allocation.
    pub(crate) fn last_time(&self) -> u64 {
        self.last_time
    }

    /// The time of the allocation that made the maximum.
    pub(crate) fn most_held_time(&self) -> u64 {
        self.most_held_time
    }

    /// Enters an allocation. If one is live at the same address, its release was lost, and is entered first.
    pub fn allocate(&mut self, address: u64, bytes: u64, id: CallstackId, time: u64) {
        self.free(address);
        self.clock += 1;
        let stacks = &mut self.stacks;
        let place = *self.places.entry(id).or_insert_with(|| {
            // There are fewer numbers of call stacks.
            let place = stacks.len() as u32;
            stacks.push(Stack {
                id,
                allocated: 0,
                freed: 0,
                allocations: 0,
                frees: 0,
                most: Held::default(),
                touched: 0,
                told_empty: None,
            });
            place
        });
        let stack = &mut self.stacks[place as usize];
        stack.touch(self.clock, self.most_held_at);
        stack.allocated = stack.allocated.saturating_add(bytes);
        stack.allocations += 1;
        self.live.insert(address, Live { bytes, stack: place });
        self.last_time = self.last_time.max(time);
        self.held = self.held.saturating_add(bytes);
        if self.held > self.most_held {
            self.most_held = self.held;
            self.most_held_at = self.clock;
            self.most_held_time = time;
        }
    }

    /// Enters a release. Does nothing if no allocation is live at this address.
    pub(crate) fn free(&mut self, address: u64) {
        let Some(Live { bytes, stack }) = self.live.remove(&address) else {
            return;
        };
        self.clock += 1;
        let stack = &mut self.stacks[stack as usize];
        stack.touch(self.clock, self.most_held_at);
        stack.freed = stack.freed.saturating_add(bytes);
        stack.frees += 1;
        self.held = self.held.saturating_sub(bytes);
    }

    /// The accounts that readers get now: of each call stack but those that had freed everything when they were last told of, and have allocated nothing
    /// since. As upstream, but for the maximum: a stack that held something then is told of as long as it is the maximum, and once more when a later one
    /// finds it empty. Upstream forgets such a stack when it has freed everything, and readers add what it held to later maxima.
    pub fn tell(&mut self, recorded: Recorded) -> Vec<Account> {
        let most_held_at = self.most_held_at;
        let mut accounts = Vec::new();
        for stack in &mut self.stacks {
            if stack.is_settled() {
                continue;
            }
            let most = stack.most(most_held_at);
            accounts.push(Account {
                stack: stack.id,
                allocated: stack.allocated,
                freed: stack.freed,
                allocations: stack.allocations,
                frees: stack.frees,
                most,
            });
            let is_final = recorded != Recorded::Maximum || most == Held::default();
            let is_empty = stack.frees == stack.allocations;
            stack.told_empty = (is_empty && is_final).then_some(stack.allocations);
        }
        accounts
    }

    /// Readers may not have got what they were told: everything is told again.
    pub(crate) fn tell_again(&mut self) {
        for stack in &mut self.stacks {
            stack.told_empty = None;
        }
    }

    /// The call stacks that are in the books.
    pub(crate) fn stacks(&self) -> impl ExactSizeIterator<Item = CallstackId> {
        self.stacks.iter().map(|stack| stack.id)
    }

    /// The stacks of which readers will have to be told.
    pub(crate) fn unsettled(&self) -> impl Iterator<Item = CallstackId> {
        let unsettled = self.stacks.iter().filter(|stack| !stack.is_settled());
        unsettled.map(|stack| stack.id)
    }

    /// How many call stacks have freed everything, so that they can be forgotten once readers are told.
    pub(crate) fn empty_untold(&self) -> usize {
        let stacks = self.stacks.iter();
        stacks
            .filter(|stack| stack.frees == stack.allocations && !stack.is_settled())
            .count()
    }

    /// Forgets call stacks of which readers need not be told any more, but not those in use elsewhere. If such a stack allocates again it must have a new
    /// number, because its account begins anew.
    pub(crate) fn forget_settled(&mut self, in_use: &HashSet<CallstackId>) {
        let keeps = |stack: &Stack| !stack.is_settled() || in_use.contains(&stack.id);
        let mut places = vec![0; self.stacks.len()];
        let mut kept = 0;
        for (place, stack) in places.iter_mut().zip(&self.stacks) {
            *place = kept;
            kept += u32::from(keeps(stack));
        }
        if kept as usize == self.stacks.len() {
            return;
        }
        self.stacks.retain(keeps);
        let stacks = self.stacks.iter().zip(0..);
        self.places = stacks.map(|(stack, place)| (stack.id, place)).collect();
        // No live allocation is of a stack that has freed everything.
        for live in self.live.values_mut() {
            live.stack = places[live.stack as usize];
        }
    }
}

#[cfg(test)]
mod tests;
