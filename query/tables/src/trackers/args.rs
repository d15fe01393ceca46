//! Sets of arguments. Equal sets are one row group of `args`.
//!
//! A tracker adds the arguments of one thing and then asks for the number of their set.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::hash::{BuildHasher, Hash, Hasher};

use hashbrown::{DefaultHashBuilder, HashMap};

use crate::output::Output;
use crate::rows::Cell;
use crate::schema::ARGS;
use crate::sql_text;
use crate::strings::{StringId, Strings};

/// The most sets that are remembered, to be one with equal ones that come later.
const MOST_REMEMBERED: usize = 1 << 20;

/// The value of an argument.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Int(i64),
    Uint(u64),
    Text(StringId),
    /// Text that is not in the pool.
    Str(Box<str>),
    Real(f64),
    Bool(bool),
    Pointer(u64),
    Json(Box<str>),
}

/// Which of two arguments of one key counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Precedence {
    /// The later one.
    Replaces,
    /// The earlier one.
    Yields,
}

#[derive(Debug, Clone)]
struct Arg {
    flat_key: StringId,
    key: StringId,
    value: Value,
    precedence: Precedence,
}

impl Arg {
    fn new(flat_key: StringId, key: StringId, value: Value) -> Arg {
        Arg {
            flat_key,
            key,
            value,
            precedence: Precedence::Replaces,
        }
    }
}

/// All sets.
#[derive(Debug, Default)]
pub(crate) struct Args {
    pending: Vec<Arg>,
    sets: HashMap<u64, i64>,
    hasher: DefaultHashBuilder,
    rows: i64,
}

/// The arguments of something that is not complete yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pending(Vec<Arg>);

impl Pending {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn add(&mut self, flat_key: StringId, key: StringId, value: Value) {
        self.0.push(Arg::new(flat_key, key, value));
    }

    /// Adds an argument, in place of an earlier one of this key.
    pub(crate) fn set(&mut self, flat_key: StringId, key: StringId, value: Value) {
        match self.0.iter_mut().find(|arg| arg.key == key) {
            Some(arg) => arg.value = value,
            None => self.add(flat_key, key, value),
        }
    }

    /// Adds the arguments of a later event of the same thing. Its arrays go on where those of earlier events end.
    pub(crate) fn continue_with(&mut self, mut later: Pending, strings: &mut Strings) {
        if later.0.is_empty() {
            return;
        }
        let has_arrays = |args: &[Arg]| args.iter().any(|arg| strings.get(arg.key).contains('['));
        if has_arrays(&self.0) && has_arrays(&later.0) {
            self.continue_arrays(&mut later, strings);
        }
        self.0.append(&mut later.0);
    }

    fn continue_arrays(&self, later: &mut Pending, strings: &mut Strings) {
        let mut elements: BTreeMap<String, usize> = BTreeMap::new();
        for arg in &self.0 {
            let key = strings.get(arg.key);
            for (at, _) in key.match_indices('[') {
                if let Some((array, number, _)) = element(key, at) {
                    let count = elements.entry(array.to_owned()).or_default();
                    *count = (*count).max(number + 1);
                }
            }
        }
        for arg in &mut later.0 {
            let key = strings.get(arg.key);
            let found = key.find('[').and_then(|at| element(key, at));
            if let Some((array, number, rest)) = found
                && let Some(count) = elements.get(array)
            {
                let moved = format!("{array}[{}{rest}", number + count);
                arg.key = strings.intern(&moved);
            }
        }
    }

    /// Adds an argument unless there is one of this key.
    pub(crate) fn add_if_missing(&mut self, flat_key: StringId, key: StringId, value: Value) {
        self.0.push(Arg {
            precedence: Precedence::Yields,
            ..Arg::new(flat_key, key, value)
        });
    }
}

/// Splits a key at a bracket: the key of the array, the place in it, and the rest from the closing bracket on.
fn element(key: &str, bracket: usize) -> Option<(&str, usize, &str)> {
    let (array, rest) = key.split_at(bracket);
    let end = rest.find(']')?;
    Some((array, rest[1..end].parse().ok()?, &rest[end..]))
}

impl Args {
    /// Sets and arguments have numbers from `first` on.
    pub(crate) fn starting_at(first: i64) -> Args {
        Args {
            rows: first,
            ..Args::default()
        }
    }

    /// Adds an argument to the set that [`finish`](Args::finish) completes.
    pub(crate) fn add(&mut self, flat_key: StringId, key: StringId, value: Value) {
        self.pending.push(Arg::new(flat_key, key, value));
    }

    /// Completes a set, and returns its number; `None` if it is empty.
    pub(crate) fn finish_with(
        &mut self,
        pending: &mut Pending,
        strings: &Strings,
        output: &mut Output<'_>,
    ) -> Option<i64> {
        self.pending.append(&mut pending.0);
        self.finish(strings, output)
    }

    /// Completes the set, and returns its number; `None` if it is empty.
    pub(crate) fn finish(&mut self, strings: &Strings, output: &mut Output<'_>) -> Option<i64> {
        if self.pending.is_empty() {
            return None;
        }
        // Arguments of one key are together, in the order in which they came; the last one counts, unless it yields.
        if has_duplicates(&self.pending) {
            let mut places = HashMap::new();
            for arg in &self.pending {
                let next = places.len();
                places.entry(arg.key).or_insert(next);
            }
            self.pending.sort_by_key(|arg| places[&arg.key]);
            self.pending.dedup_by(|later, kept| {
                let is_same = later.key == kept.key;
                if is_same && later.precedence == Precedence::Replaces {
                    std::mem::swap(later, kept);
                }
                is_same
            });
        }
        let mut hasher = self.hasher.build_hasher();
        for arg in &self.pending {
            arg.key.hash(&mut hasher);
            hash(&arg.value, strings, &mut hasher);
        }
        let digest = hasher.finish();
        if let Some(set) = self.sets.get(&digest) {
            self.pending.clear();
            return Some(*set);
        }
        let set = self.rows;
        for arg in self.pending.drain(..) {
            write(self.rows, set, &arg, strings, output);
            self.rows += 1;
        }
        if self.sets.len() < MOST_REMEMBERED {
            self.sets.insert(digest, set);
        }
        Some(set)
    }
}

/// Whether a key occurs twice. Most sets are small enough to compare each with each.
fn has_duplicates(args: &[Arg]) -> bool {
    const SMALL: usize = 16;
    args.len() > SMALL
        || args
            .iter()
            .enumerate()
            .any(|(at, arg)| args[..at].iter().any(|other| other.key == arg.key))
}

fn hash(value: &Value, strings: &Strings, hasher: &mut impl Hasher) {
    std::mem::discriminant(value).hash(hasher);
    match value {
        Value::Int(value) => value.hash(hasher),
        Value::Uint(value) | Value::Pointer(value) => value.hash(hasher),
        Value::Text(id) => strings.get(*id).hash(hasher),
        Value::Str(text) | Value::Json(text) => text.hash(hasher),
        Value::Real(value) => value.to_bits().hash(hasher),
        Value::Bool(value) => value.hash(hasher),
    }
}

fn write(id: i64, set: i64, arg: &Arg, strings: &Strings, output: &mut Output<'_>) {
    let (mut int, mut text, mut real) = (Cell::NULL, Cell::NULL, Cell::NULL);
    let mut shown = |write: &dyn Fn(&mut String)| output.written(&ARGS, write);
    let (kind, display) = match &arg.value {
        Value::Int(value) => {
            int = Cell::from(*value);
            ("int", shown(&|to| sql_text::int(*value, to)))
        }
        Value::Uint(value) => {
            int = Cell::from(*value as i64);
            ("uint", shown(&|to| sql_text::int(*value as i64, to)))
        }
        Value::Text(id) => {
            text = Cell::from(*id);
            ("string", text)
        }
        Value::Str(value) => {
            text = shown(&|to| to.push_str(value));
            ("string", text)
        }
        Value::Real(value) => {
            real = Cell::from(*value);
            ("real", shown(&|to| sql_text::real(*value, to)))
        }
        Value::Bool(value) => {
            int = Cell::from(*value);
            (
                "bool",
                shown(&|to| to.push_str(if *value { "true" } else { "false" })),
            )
        }
        Value::Pointer(value) => {
            int = Cell::from(*value as i64);
            (
                "pointer",
                shown(&|to| {
                    // A string takes all that is written.
                    let _ = write!(to, "{value:#x}");
                }),
            )
        }
        Value::Json(value) => {
            text = shown(&|to| to.push_str(value));
            ("json", text)
        }
    };
    let row = [
        Cell::from(id),
        Cell::from(set),
        Cell::from(arg.flat_key),
        Cell::from(arg.key),
        int,
        text,
        real,
        output.written(&ARGS, |to| to.push_str(kind)),
        display,
    ];
    output.push(&ARGS, &row, strings);
}
