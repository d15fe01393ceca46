//! The books against naive ones.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// A record of a heap with few addresses and stacks, so that they meet often.
#[derive(Clone, Copy, Debug)]
enum Entry {
    Allocate { address: u64, bytes: u64, stack: u64 },
    Free { address: u64 },
    Tell,
    ForgetSettled,
}

fn entry() -> impl Strategy<Value = Entry> {
    prop_oneof![
        6 => (0..12u64, 1..100u64, 0..6u64).prop_map(|(address, bytes, stack)| Entry::Allocate { address, bytes, stack }),
        5 => (0..12u64).prop_map(|address| Entry::Free { address }),
        1 => Just(Entry::Tell),
        1 => Just(Entry::ForgetSettled),
    ]
}

/// Everything that was ever entered, by stack.
#[derive(Default)]
struct Naive {
    live: BTreeMap<u64, (u64, u64)>,
    accounts: BTreeMap<u64, Account>,
    most: u64,
}

impl Naive {
    fn free(&mut self, address: u64) {
        if let Some((bytes, stack)) = self.live.remove(&address) {
            let account = self.accounts.get_mut(&stack).expect("it has allocated");
            account.freed += bytes;
            account.frees += 1;
        }
    }

    fn allocate(&mut self, address: u64, bytes: u64, stack: u64) {
        self.free(address);
        self.live.insert(address, (bytes, stack));
        let account = self.accounts.entry(stack).or_insert(Account {
            stack: CallstackId(stack),
            allocated: 0,
            freed: 0,
            allocations: 0,
            frees: 0,
            most: Held::default(),
        });
        account.allocated += bytes;
        account.allocations += 1;
        let held: u64 = self.live.values().map(|(bytes, _)| bytes).sum();
        if held > self.most {
            self.most = held;
            for (stack, account) in &mut self.accounts {
                let of_stack = self.live.values().filter(|(_, of)| of == stack);
                account.most = Held {
                    bytes: of_stack.clone().map(|(bytes, _)| bytes).sum(),
                    count: of_stack.count() as u64,
                };
            }
        }
    }
}

/// Enters an allocation in both. A stack that the books have forgotten since readers were told of it has a new number when it comes again.
fn allocate<T>(
    (books, naive): (&mut Books, &mut Naive),
    (address, bytes, stack): (u64, u64, u64),
    time: u64,
    told: &BTreeMap<u64, T>,
) {
    let is_forgotten = told.contains_key(&stack) && !books.stacks().any(|id| id.0 == stack);
    let number = if is_forgotten {
        stack + 1000 * (1 + time)
    } else {
        stack
    };
    books.allocate(address, bytes, CallstackId(number), time);
    naive.allocate(address, bytes, number);
}

proptest! {
    #[test]
    fn the_books_say_what_naive_ones_say(entries in prop::collection::vec(entry(), 0..200)) {
        let (mut books, mut naive) = (Books::default(), Naive::default());
        // The last account that readers got.
        let mut told: BTreeMap<u64, Account> = BTreeMap::new();
        for (time, entry) in entries.into_iter().chain([Entry::Tell]).enumerate() {
            match entry {
                Entry::Allocate { address, bytes, stack } => {
                    allocate((&mut books, &mut naive), (address, bytes, stack), time as u64, &told);
                    prop_assert_eq!(books.last_time(), time as u64);
                }
                Entry::Free { address } => {
                    books.free(address);
                    naive.free(address);
                }
                Entry::ForgetSettled => books.forget_settled(&HashSet::new()),
                Entry::Tell => {
                    let accounts = books.tell(Recorded::Totals);
                    let mut numbers: Vec<u64> = accounts.iter().map(|account| account.stack.0).collect();
                    numbers.sort_unstable();
                    numbers.dedup();
                    prop_assert_eq!(numbers.len(), accounts.len());
                    for account in accounts {
                        told.insert(account.stack.0, account);
                    }
                    // The maximum of stacks that hold nothing now may have changed, and readers need not know: they held nothing then, or readers know it.
                    for (stack, account) in &naive.accounts {
                        let known = told.get(stack);
                        prop_assert_eq!(known.map(|known| (known.allocated, known.freed, known.allocations, known.frees)),
                            Some((account.allocated, account.freed, account.allocations, account.frees)));
                    }
                }
            }
            prop_assert_eq!(books.live(), naive.live.len());
        }
    }

    #[test]
    fn what_readers_know_last_of_each_stack_adds_up_to_the_maximum(entries in prop::collection::vec(entry(), 0..200)) {
        let (mut books, mut naive) = (Books::default(), Naive::default());
        let mut told: BTreeMap<u64, Held> = BTreeMap::new();
        for (time, entry) in entries.into_iter().chain([Entry::Tell]).enumerate() {
            match entry {
                Entry::Allocate { address, bytes, stack } => {
                    allocate((&mut books, &mut naive), (address, bytes, stack), time as u64, &told);
                }
                Entry::Free { address } => {
                    books.free(address);
                    naive.free(address);
                }
                Entry::ForgetSettled => books.forget_settled(&HashSet::new()),
                Entry::Tell => {
                    // One dump alone has the whole maximum, too.
                    let accounts = books.tell(Recorded::Maximum);
                    prop_assert_eq!(accounts.iter().map(|account| account.most.bytes).sum::<u64>(), naive.most);
                    told.extend(accounts.iter().map(|account| (account.stack.0, account.most)));
                    prop_assert_eq!(told.values().map(|most| most.bytes).sum::<u64>(), naive.most);
                }
            }
        }
    }

    #[test]
    fn the_maximum_is_what_was_held_when_all_held_most(entries in prop::collection::vec(entry(), 0..200)) {
        let (mut books, mut naive) = (Books::default(), Naive::default());
        for (time, entry) in entries.into_iter().enumerate() {
            match entry {
                Entry::Allocate { address, bytes, stack } => {
                    books.allocate(address, bytes, CallstackId(stack), time as u64);
                    naive.allocate(address, bytes, stack);
                }
                Entry::Free { address } => {
                    books.free(address);
                    naive.free(address);
                }
                Entry::Tell | Entry::ForgetSettled => {}
            }
        }
        for account in books.tell(Recorded::Totals) {
            prop_assert_eq!(Some(&account), naive.accounts.get(&account.stack.0));
        }
        prop_assert_eq!(books.stacks().len(), naive.accounts.len());
    }
}

#[test]
fn a_stack_that_has_freed_everything_is_told_once_more_and_then_when_it_allocates_again() {
    let mut books = Books::default();
    let stack = CallstackId(1);
    books.allocate(1, 10, stack, 1);
    books.free(1);
    assert_eq!(books.tell(Recorded::Totals).len(), 1);
    assert_eq!(books.tell(Recorded::Totals).len(), 0);
    books.allocate(1, 10, stack, 2);
    let account = books.tell(Recorded::Totals)[0];
    assert_eq!((account.allocated, account.freed), (20, 10));
    assert_eq!(books.tell(Recorded::Totals).len(), 1);
}

#[test]
fn sums_that_do_not_fit_stay_at_the_largest_number() {
    let mut books = Books::default();
    for address in 0..3 {
        books.allocate(address, u64::MAX, CallstackId(1), 0);
    }
    books.free(0);
    let account = books.tell(Recorded::Totals)[0];
    assert_eq!((account.allocated, account.freed), (u64::MAX, u64::MAX));
}

#[test]
fn after_a_loss_settled_stacks_are_told_again() {
    let mut books = Books::default();
    let stack = CallstackId(1);
    books.allocate(1, 10, stack, 1);
    books.free(1);
    assert_eq!(books.tell(Recorded::Totals).len(), 1);
    books.tell_again();
    assert_eq!(books.unsettled().count(), 1);
    assert_eq!(books.tell(Recorded::Totals).len(), 1);
    assert_eq!(books.tell(Recorded::Totals).len(), 0);
}

#[test]
fn a_stack_of_an_earlier_maximum_is_told_to_hold_nothing_at_the_later_one() {
    let mut books = Books::default();
    books.allocate(1, 100, CallstackId(1), 1);
    books.free(1);
    let first = books.tell(Recorded::Maximum);
    assert_eq!((first.len(), first[0].most.bytes), (1, 100));
    // Still the maximum.
    assert_eq!(books.tell(Recorded::Maximum), first);
    books.allocate(2, 200, CallstackId(2), 2);
    let most = |accounts: &[Account]| -> Vec<(u64, u64)> {
        accounts
            .iter()
            .map(|account| (account.stack.0, account.most.bytes))
            .collect()
    };
    assert_eq!(most(&books.tell(Recorded::Maximum)), [(1, 0), (2, 200)]);
    assert_eq!(most(&books.tell(Recorded::Maximum)), [(2, 200)]);
}
