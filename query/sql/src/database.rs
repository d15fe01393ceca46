//! A session of DataFusion over one trace or several, or over a folder of tables.
//!
//! Tables of a trace are built as statements name them; until then they are there without rows, so that `SHOW TABLES` and `DESCRIBE` know them. All words of
//! a statement that are names of tables or views count, also those in quotes, which functions such as `span_join` take. A word too many costs time only.
//! The files of a folder in object storage are looked at likewise.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::common::plan_err;
use datafusion::datasource::{MemTable, TableProvider};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlanBuilder;
use datafusion::optimizer::{Analyzer, Optimizer};
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::prelude::{DataFrame, ParquetReadOptions, SessionConfig, SessionContext, lit};
use datafusion::scalar::ScalarValue;
use ferretto_tables::{PartitionedFolder, TABLES, Table, traces_in};
use tempfile::TempDir;

use crate::arguments::Arguments;
use crate::built::{Names, Stored, Wanted, build, build_many};
use crate::clock_functions::Clocks;
use crate::correlated::Lift;
use crate::defined::{Definitions, Expand};
use crate::dialect::{self, Macros, Parsed};
use crate::each_trace::{EachTracePlanner, Show};
use crate::error::Error;
use crate::functions::Mixed;
use crate::implied::Implied;
use crate::many::{self, FirstIds, Traces};
use crate::objects::ObjectFolder;
use crate::{functions, planning, span_join, views};

/// The least memory that sorting and joining get; DataFusion needs some for each of its streams.
const LEAST: usize = 64 << 20;

/// The table of kernel events, and the one that has their fields.
const WITH_EVENTS: [&str; 2] = ["ftrace_event", "args"];

/// The function that becomes a query for one value of `metadata`.
const METADATA: &str = "extract_metadata";

/// What is read of a file's end at once where each request costs time. The end of a large file has some 10 KB, and many small files are not much larger.
const END_OF_FILE: usize = 64 << 10;

/// How queries run.
#[derive(Clone)]
pub struct Options {
    /// The bytes that tables of a trace may take before they go into temporary files, and that sorting and joining may take before they do; for the latter at
    /// least 64 MB.
    pub memory: usize,
    /// Where plans run. `None`: in this process.
    pub engine: Option<Arc<dyn Engine>>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            memory: 1 << 30,
            engine: None,
        }
    }
}

/// Runs plans elsewhere, on processes that read the same files and have what the module `cluster` offers (a feature of this crate).
pub trait Engine: Send + Sync {
    /// Changes a session so that what it plans runs elsewhere.
    ///
    /// # Errors
    /// If the session cannot be changed.
    fn take_over(&self, state: SessionState) -> datafusion::error::Result<SessionState>;
}

/// A statement that [`Database::parse`] has taken out of a text.
#[derive(Debug)]
pub struct Statement(Parsed);

/// Tables that can be queried.
pub struct Database {
    context: SessionContext,
    macros: Macros,
    functions: Definitions,
    source: Source,
    /// What traces are called in messages, if that is not their path.
    names: Names,
    memory: usize,
    /// Tables with all their rows, and views.
    ready: BTreeSet<&'static str>,
    /// Temporary files that tables read.
    folders: Vec<TempDir>,
    /// The ids of many traces; `None` if there is one.
    first_ids: Option<FirstIds>,
    runs: Runs,
    arguments: Arguments,
    clocks: Clocks,
    /// The places of the trace that could not be read.
    losses: u64,
}

/// Where plans run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Runs {
    Here,
    /// There, memory of this process is out of reach.
    Elsewhere,
}

enum Source {
    Trace(OsString),
    Traces(Vec<OsString>),
    Folder(PathBuf),
    Objects(ObjectFolder),
}

impl Database {
    /// Opens a trace (`-` is stdin), a folder that `ferretto export` has written, or a folder of traces.
    ///
    /// # Errors
    /// If there is no such file, or the folder has neither tables nor files. A file that is no trace is found out when the first table is built.
    pub async fn open(source: &OsStr, options: &Options) -> Result<Database, Error> {
        let folder = Path::new(source);
        if source == "-" || !folder.is_dir() {
            return Database::with(Source::Trace(source.to_owned()), None, options).await;
        }
        if PartitionedFolder::is_one(folder) {
            let first_ids = FirstIds::default();
            let traces =
                PartitionedFolder::traces(folder).map_err(|error| Error::Source(error.to_string()))?;
            if traces.is_empty() {
                return Err(without_traces(folder));
            }
            for trace in traces {
                first_ids.of(trace);
            }
            return Database::with(Source::Folder(folder.into()), Some(first_ids), options).await;
        }
        if TABLES.iter().any(|table| folder.join(table.name).is_dir()) {
            if !TABLES.iter().any(|table| has_entries(&folder.join(table.name))) {
                return Err(without_traces(folder));
            }
            return Database::with(Source::Folder(folder.into()), None, options).await;
        }
        Database::open_traces(&[source.to_owned()], options).await
    }

    /// Opens several traces, also all in a folder, as one set of tables with the columns `date`, `machine` and `trace`.
    ///
    /// # Errors
    /// If one does not exist, or is a folder without files.
    pub async fn open_traces(sources: &[OsString], options: &Options) -> Result<Database, Error> {
        let mut traces = Vec::new();
        for source in sources {
            let folder = Path::new(source);
            if !folder.is_dir() {
                traces.push(source.clone());
                continue;
            }
            if PartitionedFolder::is_one(folder)
                || TABLES.iter().any(|table| folder.join(table.name).is_dir())
            {
                return Err(Error::Source(format!(
                    "{} has tables, which are not queried together with traces; export the traces into that folder first",
                    folder.display()
                )));
            }
            let found = traces_in(folder)
                .map_err(|error| Error::Source(format!("{} cannot be read: {error}", folder.display())))?;
            if found.is_empty() {
                return Err(Error::Source(format!(
                    "{} has no tables and no traces; name a trace, a folder of traces, or a folder that `ferretto export` has written",
                    folder.display()
                )));
            }
            traces.extend(found.into_iter().map(OsString::from));
        }
        Database::with(Source::Traces(traces), Some(FirstIds::default()), options).await
    }

    /// Opens a folder in object storage.
    ///
    /// # Errors
    /// If the session cannot be made. A file that cannot be read is found out when a statement names its table.
    pub async fn open_objects(folder: ObjectFolder, options: &Options) -> Result<Database, Error> {
        let first_ids = folder.traces().map(|traces| {
            let first_ids = FirstIds::default();
            for trace in traces {
                first_ids.of(trace.clone());
            }
            first_ids
        });
        Database::with(Source::Objects(folder), first_ids, options).await
    }

    /// Calls a trace in messages by this name instead of its path, such as by the URL that it is from.
    pub fn call(&mut self, trace: &OsStr, name: &str) {
        self.names.insert(trace.to_owned(), name.to_owned());
    }

    async fn with(source: Source, first_ids: Option<FirstIds>, options: &Options) -> Result<Database, Error> {
        // As the trace processor sorts.
        if let (Some(_), Source::Trace(_) | Source::Traces(_) | Source::Objects(_)) =
            (&options.engine, &source)
        {
            return Err(Error::Source(
                "other machines read folders of tables in a file system that they share; export the traces into one first"
                    .to_owned(),
            ));
        }
        let mut config = SessionConfig::new()
            .with_information_schema(true)
            .set_str("datafusion.sql_parser.default_null_ordering", "nulls_min")
            // Errors say where a name stands.
            .set_bool("datafusion.sql_parser.collect_spans", true);
        if let Source::Objects(_) = &source {
            config.options_mut().execution.parquet.metadata_size_hint = Some(END_OF_FILE);
        }
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_limit(options.memory.max(LEAST), 1.0)
            .build_arc()?;
        // Calls of defined functions are gone before types are looked at.
        let mut rules = Analyzer::new().rules;
        rules.insert(0, Arc::new(Expand));
        rules.insert(1, Arc::new(Lift));
        rules.insert(2, Arc::new(Mixed));
        let mut optimizer = Optimizer::new().rules;
        let moved = optimizer
            .iter()
            .position(|rule| rule.name() == "push_down_filter");
        optimizer.insert(
            moved.map_or(optimizer.len(), |place| place + 1),
            Arc::new(Implied),
        );
        let mut physical = PhysicalOptimizer::new().rules;
        physical.push(Arc::new(Show));
        let state = SessionStateBuilder::new()
            .with_config(config)
            .with_runtime_env(runtime)
            .with_default_features()
            .with_analyzer_rules(rules)
            .with_optimizer_rules(optimizer)
            .with_physical_optimizer_rules(physical)
            .with_query_planner(Arc::new(EachTracePlanner { runs: Runs::Here }))
            .build();
        let (state, runs) = match &options.engine {
            Some(engine) => (engine.take_over(state)?, Runs::Elsewhere),
            None => (state, Runs::Here),
        };
        let mut context = SessionContext::new_with_state(state);
        functions::register(&context);
        functions::register_planner(&mut context)?;
        let arguments = Arguments::default();
        arguments.register(&context);
        let clocks = Clocks::default();
        clocks.register(&context);
        if let Some(first_ids) = &first_ids {
            first_ids.register(&context, runs);
        }
        let mut database = Database {
            context,
            macros: Macros::default(),
            functions: Definitions::default(),
            source,
            names: Names::new(),
            memory: options.memory,
            ready: BTreeSet::new(),
            folders: Vec::new(),
            first_ids,
            runs,
            arguments,
            clocks,
            losses: 0,
        };
        let traces = match &database.source {
            Source::Folder(folder) => {
                let folder = folder.clone();
                database.open_folder(&folder).await?;
                return Ok(database);
            }
            Source::Objects(folder) => {
                folder.register(&database.context)?;
                &[]
            }
            Source::Trace(trace) => std::slice::from_ref(trace),
            Source::Traces(traces) => traces.as_slice(),
        };
        if let Some(missing) = traces
            .iter()
            .find(|trace| *trace != "-" && !Path::new(trace).exists())
        {
            return Err(Error::Source(format!("{} does not exist", missing.display())));
        }
        for table in TABLES {
            database.set(table, Vec::new())?;
        }
        Ok(database)
    }

    /// Whether the tables are those of one trace or of many.
    pub fn traces(&self) -> Traces {
        match self.first_ids {
            None => Traces::One,
            Some(_) => Traces::Many,
        }
    }

    /// Returns the session, for what this type does not offer.
    pub fn context(&self) -> &SessionContext {
        &self.context
    }

    /// Returns how many places of the trace could not be read, as far as tables were built. The table `ferretto_loss` has them.
    pub fn losses(&self) -> u64 {
        self.losses
    }

    /// Takes a text of statements apart, at its `;`. Macros that it defines are known from then on.
    ///
    /// # Errors
    /// If it is no SQL, or has a function that only one trace has.
    pub fn parse(&mut self, sql: &str) -> Result<Vec<Statement>, Error> {
        if self.traces() == Traces::Many && dialect::has_word(sql, METADATA)? {
            let refused = plan_err!(
                "{METADATA} is for one trace, as each trace has metadata of its own; join `metadata` by `trace` instead"
            );
            return refused.map_err(Error::Sql);
        }
        let parsed = dialect::parse(sql, &mut self.macros)?;
        Ok(parsed.into_iter().map(Statement).collect())
    }

    /// Plans a statement, and builds the tables that it names. Statements that define something have done so when this returns.
    ///
    /// # Errors
    /// If the statement is wrong, or the trace cannot be read.
    pub async fn run(&mut self, statement: Statement) -> Result<DataFrame, Error> {
        let plan = match statement.0 {
            Parsed::Plain(statement) => {
                let sql = statement.to_string();
                self.build_tables_of(&sql).await?;
                self.functions.plan_those_in(&sql, &self.context).await?;
                let plan = planning::plan_answer(&self.context, *statement).await?;
                if self.runs == Runs::Elsewhere {
                    planning::check_for_elsewhere(&self.context, &plan)?;
                }
                plan
            }
            Parsed::SpanJoin(join) => {
                let [a, b] = &join.sides;
                self.build_tables_of(&format!("{} {}", a.table, b.table)).await?;
                span_join::create(&join, &self.context).await?;
                LogicalPlanBuilder::empty(false).build()?
            }
            Parsed::Function(function) => {
                self.functions.define(*function, &self.context)?;
                LogicalPlanBuilder::empty(false).build()?
            }
        };
        Ok(self.context.execute_logical_plan(plan).await?)
    }

    /// Returns the name of the trace or folder, and how many traces there are if they are many.
    pub fn name(&self) -> String {
        match (&self.source, &self.first_ids) {
            (Source::Trace(trace), _) => match self.names.get(trace) {
                Some(name) => name.clone(),
                None => trace.display().to_string(),
            },
            (Source::Traces(traces), _) => format!("{} traces", traces.len()),
            (_, None) => self.folder(),
            (_, Some(first_ids)) => format!("{}, {} traces", self.folder(), first_ids.len()),
        }
    }

    /// Returns the name of a folder of tables; of traces, nothing.
    fn folder(&self) -> String {
        match &self.source {
            Source::Folder(folder) => folder.display().to_string(),
            Source::Objects(folder) => folder.to_string(),
            Source::Trace(_) | Source::Traces(_) => String::new(),
        }
    }

    /// Builds all tables that a text names, in one pass over the trace. [`run`](Database::run) does so for its statement alone.
    ///
    /// # Errors
    /// If the trace cannot be read.
    pub async fn build_tables_of(&mut self, sql: &str) -> Result<(), Error> {
        let (mut tables, mut named) = (BTreeSet::new(), Vec::new());
        let sql = &self.functions.with_bodies(sql)?;
        if self.runs == Runs::Elsewhere
            && let Some(function) = words(sql).find(|word| functions::runs_here_only(word))
        {
            return Err(Error::Source(format!(
                "other machines do not have {function}; ask without a scheduler, or use joins"
            )));
        }
        self.names(sql, &mut tables, &mut named);
        let mut missing: BTreeSet<&'static str> = tables.difference(&self.ready).copied().collect();
        // Fields of kernel events are in `args` only if both are made in one pass.
        let is_there = |name| tables.contains(name) || self.ready.contains(name);
        if WITH_EVENTS.iter().any(|name| missing.contains(name)) && WITH_EVENTS.into_iter().all(is_there) {
            missing.extend(WITH_EVENTS);
        }
        let has_no_events = match &self.source {
            // There, all tables are ready from the start that it has.
            Source::Folder(_) => true,
            Source::Objects(folder) => !folder.has(WITH_EVENTS[0]),
            Source::Trace(_) | Source::Traces(_) => false,
        };
        if has_no_events && missing.contains(WITH_EVENTS[0]) {
            return Err(Error::Source(format!(
                "{} has no {}; export the trace with --ftrace-events, or ask the trace itself",
                self.folder(),
                WITH_EVENTS[0]
            )));
        }
        if !missing.is_empty() {
            if missing.contains("args") {
                self.arguments.forget();
            }
            self.build(missing).await?;
        }
        for view in named {
            if self.ready.insert(view.name) {
                let sql = view.sql(self.traces());
                let definition = format!("create or replace view {} as {sql}", view.name);
                let statement = dialect::parse_one(&definition)?;
                let plan = self.context.state().statement_to_plan(statement).await?;
                self.context.execute_logical_plan(plan).await?;
            }
        }
        self.clocks.read_for(sql, self.traces(), &self.context).await?;
        self.arguments.read_keys_of(sql, &self.context).await
    }

    async fn build(&mut self, tables: BTreeSet<&'static str>) -> Result<(), Error> {
        let trace = match &self.source {
            Source::Folder(_) => return Ok(()),
            Source::Objects(folder) => {
                for table in TABLES.iter().filter(|table| tables.contains(table.name)) {
                    // One that an earlier version did not write has no rows, as it has from the start.
                    if folder.has(table.name) {
                        self.read_files(table, &ObjectFolder::files(table)).await?;
                    }
                }
                self.ready.extend(tables);
                return Ok(());
            }
            Source::Traces(traces) => {
                let traces = traces.clone();
                return self.build_many(traces, tables).await;
            }
            Source::Trace(trace) => trace,
        };
        if trace == "-"
            && self
                .ready
                .iter()
                .any(|name| TABLES.iter().any(|table| table.name == *name))
        {
            return Err(Error::Source(
                "stdin was read once; name the file of the trace to ask for further tables".to_owned(),
            ));
        }
        let (trace, memory) = (trace.clone(), self.memory);
        let (named, wanted) = (tables.clone(), Wanted::default());
        let names = self.names.clone();
        let _waits = wanted.waits();
        let built = tokio::task::spawn_blocking(move || build(&trace, &names, &named, memory, wanted))
            .await
            .map_err(|error| Error::Source(format!("the trace cannot be read: {error}")))?
            .map_err(Error::Source)?;
        self.losses = built.report.losses;
        match built.tables {
            Stored::Memory(mut batches) => {
                for table in TABLES.iter().filter(|table| tables.contains(table.name)) {
                    self.set(table, batches.remove(table.name).unwrap_or_default())?;
                }
            }
            Stored::Folder(folder) => {
                for table in TABLES.iter().filter(|table| tables.contains(table.name)) {
                    self.set_files(table, &folder.path().join(table.name)).await?;
                }
                self.folders.push(folder);
            }
        }
        self.ready.extend(tables);
        Ok(())
    }

    /// The same for several traces, whose tables always go into files.
    async fn build_many(
        &mut self,
        traces: Vec<OsString>,
        tables: BTreeSet<&'static str>,
    ) -> Result<(), Error> {
        let (named, wanted) = (tables.clone(), Wanted::default());
        let names = self.names.clone();
        let _waits = wanted.waits();
        let built = tokio::task::spawn_blocking(move || build_many(&traces, &names, &named, &wanted))
            .await
            .map_err(|error| Error::Source(format!("the traces cannot be read: {error}")))?
            .map_err(Error::Source)?;
        self.losses = built.losses;
        if let Some(first_ids) = &self.first_ids {
            for place in built.places {
                first_ids.of(place);
            }
        }
        for table in TABLES.iter().filter(|table| tables.contains(table.name)) {
            self.set_files(table, &built.folder.path().join(table.name))
                .await?;
        }
        self.folders.push(built.folder);
        self.ready.extend(tables);
        Ok(())
    }

    async fn open_folder(&mut self, folder: &Path) -> Result<(), Error> {
        for table in TABLES {
            let files = folder.join(table.name);
            // An export without kernel events is asked for them in vain, not found to have none.
            if files.is_dir() || table.name != WITH_EVENTS[0] {
                self.set_files(table, &files).await?;
                self.ready.insert(table.name);
            }
        }
        Ok(())
    }

    fn set(&self, table: &'static Table, batches: Vec<RecordBatch>) -> Result<(), Error> {
        self.context.deregister_table(table.name)?;
        let schema = match self.traces() {
            Traces::One => table.arrow_schema(),
            Traces::Many => many::schema(table, self.runs),
        };
        let rows: Arc<dyn TableProvider> = match (self.runs, batches.is_empty()) {
            (Runs::Elsewhere, true) => {
                let none = self.context.read_empty()?.filter(lit(false))?;
                let columns = schema.fields().iter().map(|field| {
                    let null = ScalarValue::try_from(field.data_type())?;
                    Ok(lit(null).alias(field.name()))
                });
                none.select(columns.collect::<datafusion::error::Result<Vec<_>>>()?)?
                    .into_view()
            }
            _ => Arc::new(MemTable::try_new(schema, vec![batches])?),
        };
        self.context.register_table(table.name, rows)?;
        Ok(())
    }

    /// Reads a table from its files. One that has none, as in an export of an earlier version, has no rows.
    async fn set_files(&self, table: &'static Table, folder: &Path) -> Result<(), Error> {
        if !folder.is_dir() {
            return self.set(table, Vec::new());
        }
        let Some(path) = folder.to_str() else {
            return Err(Error::Source(format!(
                "{} is not UTF-8; rename it",
                folder.display()
            )));
        };
        // As DataFusion names what is a folder and no file.
        self.read_files(table, &format!("{path}/")).await
    }

    /// Reads a table from the files in a folder, which has a path or a URL with `/` at its end.
    async fn read_files(&self, table: &'static Table, folder: &str) -> Result<(), Error> {
        self.context.deregister_table(table.name)?;
        match &self.first_ids {
            Some(first_ids) => {
                first_ids
                    .register_files(&self.context, table, folder, self.runs)
                    .await?
            }
            None => {
                self.context
                    .register_parquet(table.name, folder, ParquetReadOptions::default())
                    .await?;
            }
        }
        Ok(())
    }

    /// Collects the tables that a text names, also through views and functions, and the views, those that others use first.
    fn names(&self, sql: &str, tables: &mut BTreeSet<&'static str>, named: &mut Vec<&'static views::View>) {
        for word in words(sql) {
            if let Some(table) = TABLES.iter().find(|table| table.name == word) {
                tables.insert(table.name);
            }
            if let Some(view) = views::find(&word)
                && !named.iter().any(|known| known.name == view.name)
            {
                self.names(&view.sql(Traces::One), tables, named);
                named.push(view);
            }
            tables.extend(functions::tables_of(&word));
        }
    }
}

/// Whether a folder has anything in it.
fn has_entries(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some())
}

fn without_traces(folder: &Path) -> Error {
    Error::Source(format!(
        "{} has no traces; export some into it first",
        folder.display()
    ))
}

/// Returns the words of a text in small letters, also those in quotes.
pub(crate) fn words(sql: &str) -> impl Iterator<Item = String> {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    sql.split(move |letter| !is_part(letter))
        .filter(|word| !word.is_empty())
        .map(str::to_ascii_lowercase)
}
