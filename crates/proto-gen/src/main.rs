//! `cargo run -p ferretto-proto-gen`: writes the generated files of `ferretto-proto`.
//!
//! With `-- --check` it only says which of them are not what the schema gives; with `-- --compare FILE…` it compares
//! the schema with the encoded `FileDescriptorProto`s in the files, one for each release, oldest first.
#![forbid(unsafe_code)]
#![expect(
    clippy::disallowed_macros,
    reason = "a tool of the developers, who have a terminal"
)]

use std::path::PathBuf;
use std::process::ExitCode;

use buffa::Message as _;
use buffa_codegen::generated::descriptor::FileDescriptorProto;
use ferretto_proto_gen::{Error, compare, generate, left_over, proto_crate, schema, stale};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        [] => write(),
        ["--check"] => check(),
        ["--compare", files @ ..] if !files.is_empty() => compare_with(files),
        _ => {
            eprintln!("usage: ferretto-proto-gen [--check | --compare FILE...]");
            return ExitCode::from(2);
        }
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("ferretto-proto-gen: {error}");
        ExitCode::FAILURE
    })
}

fn write() -> Result<ExitCode, Error> {
    let outputs = generate(&proto_crate())?;
    for output in &outputs {
        let path = proto_crate().join(&output.path);
        std::fs::write(&path, &output.content).map_err(|source| Error::Io {
            action: "writing",
            path,
            source,
        })?;
        println!("{} ({} bytes)", output.path.display(), output.content.len());
    }
    for path in left_over(&proto_crate(), &outputs)? {
        let path = proto_crate().join(path);
        std::fs::remove_file(&path).map_err(|source| Error::Io {
            action: "removing",
            path,
            source,
        })?;
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

fn compare_with(files: &[&str]) -> Result<ExitCode, Error> {
    let releases = files
        .iter()
        .map(|file| read_descriptors(file.into()))
        .collect::<Result<Vec<_>, _>>()?;
    let ours = schema::compile(&proto_crate().join("proto"))?;
    let found = compare::compare(&ours, &releases);
    println!("{} fields and enum values are the same", found.same);
    println!(
        "{} of their fields hold messages that we do not carry",
        found.left_out
    );
    println!(
        "{} of our types are not in their descriptors, so not compared:",
        found.unchecked.len()
    );
    found.unchecked.iter().for_each(|name| println!("  {name}"));
    println!("{} fields are our own extensions:", found.extensions.len());
    found.extensions.iter().for_each(|name| println!("  {name}"));
    println!(
        "{} fields and values came later than our schema:",
        found.newer.len()
    );
    found.newer.iter().for_each(|name| println!("  {name}"));
    found
        .differences
        .iter()
        .for_each(|difference| eprintln!("different: {difference}"));
    Ok(if found.differences.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn read_descriptors(path: PathBuf) -> Result<FileDescriptorProto, Error> {
    let bytes = std::fs::read(&path).map_err(|source| Error::Io {
        action: "reading",
        path: path.clone(),
        source,
    })?;
    FileDescriptorProto::decode_from_slice(&bytes).map_err(|error| Error::Descriptors {
        path,
        reason: error.to_string(),
    })
}
