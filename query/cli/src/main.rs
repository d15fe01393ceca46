//! `ferretto-query`: traces as tables, and questions to them. `ferretto export`, `ferretto query` and `ferretto report` start it.
#![forbid(unsafe_code)]

mod bars;
#[cfg(feature = "ballista")]
mod cluster;
mod export;
mod fetch;
mod interrupt;
mod output;
mod query;
mod report;
mod shell;
mod sources;
mod stderr;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Traces as tables, and questions to them
#[derive(Debug, Parser)]
#[command(
    name = "ferretto-query",
    bin_name = "ferretto",
    version,
    disable_help_subcommand = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Export(export::Args),
    Query(query::Args),
    Report(report::Args),
    #[cfg(feature = "ballista")]
    Scheduler(cluster::SchedulerArgs),
    #[cfg(feature = "ballista")]
    Executor(cluster::ExecutorArgs),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Export(arguments) => export::run(&arguments),
        Command::Query(arguments) => query::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        #[cfg(feature = "ballista")]
        Command::Scheduler(arguments) => cluster::run_scheduler(&arguments),
        #[cfg(feature = "ballista")]
        Command::Executor(arguments) => cluster::run_executor(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            stderr::say(&message);
            ExitCode::FAILURE
        }
    }
}
