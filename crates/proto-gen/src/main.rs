//! `cargo run -p ferretto-proto-gen [-- --check]`: writes the generated files of `ferretto-proto`, or only
//! says which of them are not what the schema gives.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use ferretto_proto_gen::{Error, generate, proto_crate, stale};

fn main() -> ExitCode {
    let outcome = match std::env::args().nth(1).as_deref() {
        None => write(),
        Some("--check") => check(),
        Some(other) => {
            eprintln!("unknown argument {other}: run it without any to write the files, or with --check");
            return ExitCode::from(2);
        }
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("ferretto-proto-gen: {error}");
        ExitCode::FAILURE
    })
}

fn write() -> Result<ExitCode, Error> {
    for output in generate(&proto_crate())? {
        let path = proto_crate().join(&output.path);
        std::fs::write(&path, &output.content).map_err(|source| Error::Io {
            action: "writing",
            path,
            source,
        })?;
        println!("{} ({} bytes)", output.path.display(), output.content.len());
    }
    Ok(ExitCode::SUCCESS)
}

fn check() -> Result<ExitCode, Error> {
    let stale = stale(&proto_crate())?;
    for path in &stale {
        eprintln!(
            "{} is stale: run `cargo run -p ferretto-proto-gen`",
            path.display()
        );
    }
    Ok(if stale.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
