//! `extract_arg`, and kernel events with their fields.

use super::{ask, generated, open, tpq};

/// The types of the values of each key, as the trace processor has them.
const KEYS: &str = "select key, group_concat(distinct case when value_type in ('int', 'uint', 'bool', 'pointer') then 'int' else value_type end) as types
    from args where arg_set_id in (select arg_set_id from slice) group by key order by key";

#[tokio::test(flavor = "multi_thread")]
async fn arguments_have_the_trace_processors_values() {
    if !tpq::is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut seen = std::collections::BTreeMap::new();
    for trace in generated(folder.path(), 3) {
        let mut database = open(&trace).await;
        let keys = tpq::ask(&trace, &[KEYS.to_owned()]).unwrap().remove(0);
        let mut statements = Vec::new();
        for (key, types) in keys.iter().filter_map(|line| line.split_once('\t')) {
            *seen.entry(types.to_owned()).or_insert(0) += 1;
            // Where types differ there is text here.
            if !types.contains(',') {
                let key = key.replace('\'', "''");
                statements.push(format!(
                    "select id, extract_arg(arg_set_id, '{key}') as value from slice where arg_set_id is not null order by id"
                ));
            }
        }
        let theirs = tpq::ask(&trace, &statements).unwrap();
        for (statement, theirs) in statements.iter().zip(theirs) {
            assert_eq!(
                ask(&mut database, statement).await,
                theirs,
                "{}: {statement}",
                trace.display()
            );
        }
    }
    for types in ["int", "string", "real"] {
        assert!(seen.contains_key(types), "no key has {types}: {seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_named_in_quotes_and_unknown_ones_have_no_values() {
    let folder = tempfile::tempdir().unwrap();
    let trace = generated(folder.path(), 1).remove(0);
    let mut database = open(&trace).await;
    let none = "select count(extract_arg(arg_set_id, 'no such key')) from slice";
    assert_eq!(ask(&mut database, none).await, ["0"]);
    let statement = database
        .parse("select extract_arg(arg_set_id, name) from slice")
        .unwrap()
        .remove(0);
    let error = database.run(statement).await.unwrap_err().to_string();
    assert!(
        error.contains("extract_arg takes a set of arguments, and a key in quotes"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn kernel_events_have_their_fields_also_if_args_was_read_before() {
    if !tpq::is_there() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for trace in generated(folder.path(), 2) {
        let mut database = open(&trace).await;
        let statements = [
            "select count(*) from args where arg_set_id in (select arg_set_id from slice)",
            "select count(*) from ftrace_event",
            "select name, sum(extract_arg(arg_set_id, 'prev_prio')), count(extract_arg(arg_set_id, 'next_comm')) from ftrace_event \
             where name = 'sched_switch' group by name",
            "select e.name, a.key, count(*) from ftrace_event e join args a using (arg_set_id) where e.name not like 'workqueue%' \
             group by 1, 2 order by 1, 2",
            "select count(*) from args where arg_set_id in (select arg_set_id from slice)",
        ]
        .map(str::to_owned);
        let theirs = tpq::ask(&trace, &statements).unwrap();
        for (statement, theirs) in statements.iter().zip(theirs) {
            assert_eq!(
                ask(&mut database, statement).await,
                theirs,
                "{}: {statement}",
                trace.display()
            );
        }
    }
}
