//! The data sources that a session wants: by name, each with its buffer and with the filter that picks producers.
//!
//! It is made with the session, and anew when the filters change. When a producer registers a data source, only the entries of that name are
//! compared, and no regular expression is compiled again.

use std::sync::Arc;

use ferretto_proto::messages::{TraceConfig, trace_config};

use crate::expression::{Expression, NameExpressions};
use crate::limits;
use crate::machines::Machine;
use crate::ordered::{OrderedMap, OrderedSet};
use crate::work_budget::WorkBudget;

/// The data sources of a config, by name.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    by_name: OrderedMap<String, Vec<WantedSource>>,
}

/// One of them.
#[derive(Debug)]
pub(crate) struct WantedSource {
    /// Its place among the config's data sources.
    pub(crate) index: usize,
    /// Which buffer of the config it writes into.
    pub(crate) target: usize,
    filter: ProducerFilter,
}

impl Wanted {
    /// The sources of `config`, of which number `i` writes into buffer `targets[i]`, wanted by the service of `this_machine`.
    ///
    /// # Errors
    /// A filter that is no regular expression, or more of them than a config may have.
    pub(crate) fn new(config: &TraceConfig, targets: &[usize], this_machine: &str) -> Result<Wanted, String> {
        let mut expressions = NameExpressions::new(
            FIELD,
            limits::MAX_REGEXES_PER_CONFIG,
            config.data_sources.iter().flat_map(expressions_of),
        )?;
        let mut by_name: OrderedMap<String, Vec<WantedSource>> = OrderedMap::new();
        for ((index, source), target) in config.data_sources.iter().enumerate().zip(targets) {
            let name = source.config.name.as_deref().unwrap_or_default();
            let others = match config.trace_all_machines.unwrap_or_default() {
                true => OtherMachines::All,
                false => OtherMachines::None,
            };
            let machines = MachineFilter::new(source, others, this_machine);
            by_name
                .get_or_insert_with(name.to_owned(), Vec::new)
                .push(WantedSource {
                    index,
                    target: *target,
                    filter: ProducerFilter::new(source, machines, &mut expressions)?,
                });
        }
        Ok(Wanted { by_name })
    }

    /// The data sources of this name, in the order of the config.
    pub(crate) fn named(&self, name: &str) -> &[WantedSource] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }

    /// The data source of this name and index in the config.
    pub(crate) fn source(&self, name: &str, index: usize) -> Option<&WantedSource> {
        let named = self.named(name);
        let place = named.binary_search_by_key(&index, |source| source.index);
        named.get(place.ok()?)
    }
}

impl WantedSource {
    /// Whether it is wanted of a producer of this name on this machine.
    pub(crate) fn is_wanted_of(&self, producer: &str, machine: &Machine, budget: &WorkBudget) -> bool {
        self.filter.passes_with(producer, machine, budget)
    }
}

/// Which producers a data source of a config is meant for.
#[derive(Debug)]
pub struct ProducerFilter {
    names: OrderedSet<String>,
    expressions: Vec<Arc<Expression>>,
    machines: MachineFilter,
}

/// The machines whose producers a data source is meant for.
#[derive(Debug)]
struct MachineFilter {
    /// This one, by its name or as the host.
    host: bool,
    /// Producers of an undeclared machine, which are treated like those of this machine, except that it has no name.
    undeclared: bool,
    others: OtherMachines,
}

#[derive(Debug)]
enum OtherMachines {
    None,
    All,
    Named(OrderedSet<String>),
}

impl MachineFilter {
    fn new(source: &trace_config::DataSource, others: OtherMachines, this_machine: &str) -> MachineFilter {
        let names = &source.machine_name_filter;
        if names.is_empty() {
            return MachineFilter {
                host: true,
                undeclared: true,
                others,
            };
        }
        let undeclared = names.iter().any(|name| name == "host");
        MachineFilter {
            host: undeclared || names.iter().any(|name| name == this_machine),
            undeclared,
            others: OtherMachines::Named(names.iter().cloned().collect()),
        }
    }

    fn passes(&self, machine: &Machine) -> bool {
        match machine {
            Machine::Host => self.host,
            Machine::Undeclared => self.undeclared,
            Machine::Other(machine) => match &self.others {
                OtherMachines::None => false,
                OtherMachines::All => true,
                OtherMachines::Named(names) => names.contains(&machine.name),
            },
        }
    }
}

impl ProducerFilter {
    /// The filter of a data source, as a service of `this_machine` would apply it if its config does not say `trace_all_machines`.
    ///
    /// # Errors
    /// The expression that is invalid.
    pub fn of(source: &trace_config::DataSource, this_machine: &str) -> Result<ProducerFilter, String> {
        let machines = MachineFilter::new(source, OtherMachines::None, this_machine);
        let most = limits::MAX_REGEXES_PER_CONFIG;
        let mut expressions = NameExpressions::new(FIELD, most, expressions_of(source))?;
        Self::new(source, machines, &mut expressions)
    }

    fn new<'c>(
        source: &'c trace_config::DataSource,
        machines: MachineFilter,
        expressions: &mut NameExpressions<'c>,
    ) -> Result<ProducerFilter, String> {
        let compile = |expression| {
            expressions.get(expression).map_err(|error| {
                let name = source.config.name.as_deref().unwrap_or_default();
                format!("data source {name:?}: {FIELD} {expression:?}: {error}")
            })
        };
        Ok(ProducerFilter {
            names: source.producer_name_filter.iter().cloned().collect(),
            expressions: expressions_of(source).map(compile).collect::<Result<_, _>>()?,
            machines,
        })
    }

    /// Whether it is meant for a producer of this name on this machine.
    pub fn passes(&self, name: &str, machine: &Machine) -> bool {
        self.passes_with(name, machine, &WorkBudget::new(limits::MAX_MATCHING_WORK))
    }

    fn passes_with(&self, name: &str, machine: &Machine, budget: &WorkBudget) -> bool {
        let anyone = self.names.is_empty() && self.expressions.is_empty();
        let named = || self.names.contains(name);
        let matched = || {
            self.expressions
                .iter()
                .any(|expression| expression.matches_name(name, budget))
        };
        self.machines.passes(machine) && (anyone || named() || matched())
    }
}

/// The field of a data source with expressions.
const FIELD: &str = "producer_name_regex_filter";

fn expressions_of(source: &trace_config::DataSource) -> impl Iterator<Item = &str> {
    source.producer_name_regex_filter.iter().map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferretto_proto::messages::DataSourceConfig;

    fn source(name: &str, expressions: &[&str]) -> trace_config::DataSource {
        trace_config::DataSource {
            config: DataSourceConfig {
                name: Some(name.into()),
                ..Default::default()
            }
            .into(),
            producer_name_regex_filter: expressions.iter().map(|e| (*e).to_owned()).collect(),
            ..Default::default()
        }
    }

    fn wanted(sources: Vec<trace_config::DataSource>) -> Result<Wanted, String> {
        let targets = vec![0; sources.len()];
        let config = TraceConfig {
            data_sources: sources,
            ..Default::default()
        };
        Wanted::new(&config, &targets, "here")
    }

    #[test]
    fn a_name_finds_the_sources_that_bear_it_in_the_order_of_the_config() {
        let wanted = wanted(vec![source("a", &[]), source("b", &[]), source("a", &["x"])]).unwrap();
        let places = |name| -> Vec<usize> { wanted.named(name).iter().map(|source| source.index).collect() };
        assert_eq!(
            (places("a"), places("b"), places("c")),
            (vec![0, 2], vec![1], vec![])
        );
    }

    #[test]
    fn an_expression_has_to_match_the_whole_name_however_long_that_is() {
        let wanted = wanted(vec![source("d", &["(a|aa)+b?"])]).unwrap();
        let source = &wanted.named("d")[0];
        assert!(source.is_wanted_of(
            "aaab",
            &Machine::Host,
            &WorkBudget::new(limits::MAX_MATCHING_WORK)
        ));
        assert!(!source.is_wanted_of(
            "xaaab",
            &Machine::Host,
            &WorkBudget::new(limits::MAX_MATCHING_WORK)
        ));
        // Exponential for a matcher that backtracks, and a stack as deep as the name for one that recurses.
        assert!(!source.is_wanted_of(
            &format!("{}c", "a".repeat(30_000)),
            &Machine::Host,
            &WorkBudget::new(limits::MAX_MATCHING_WORK)
        ));
    }

    #[test]
    fn an_expression_that_is_valid_only_within_others_is_refused() {
        let error = wanted(vec![source("d", &["a)|(?:b"])]).unwrap_err();
        assert!(error.contains("unopened group"), "{error}");
    }

    #[test]
    fn all_expressions_of_a_config_share_its_limits() {
        let sources = |expressions: &[String]| -> Vec<trace_config::DataSource> {
            expressions
                .iter()
                .map(|expression| source("d", &[expression]))
                .collect()
        };
        let many = |count| -> Vec<String> { (0..count).map(|number| format!("a{{100}}{number}")).collect() };
        assert!(wanted(sources(&many(limits::MAX_REGEXES_PER_CONFIG))).is_ok());
        let error = wanted(sources(&many(limits::MAX_REGEXES_PER_CONFIG + 1))).unwrap_err();
        assert!(
            error.contains("too many different regular expressions"),
            "{error}"
        );
        let greedy = |count| -> Vec<String> {
            (0..count)
                .map(|number| format!("(?:a{{80}}){{80}}{number}"))
                .collect()
        };
        assert!(wanted(sources(&greedy(1))).is_ok());
        let error = wanted(sources(&greedy(16))).unwrap_err();
        assert!(error.contains("size limit"), "{error}");
        let long = |count| -> Vec<String> { (0..count).map(|number| format!("{number:04000}")).collect() };
        assert!(wanted(sources(&long(8))).is_ok());
        let error = wanted(sources(&long(9))).unwrap_err();
        assert!(error.contains("bytes together"), "{error}");
    }
}
