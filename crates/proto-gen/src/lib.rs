//! Turns `crates/proto/proto/**.proto` into the Rust code and the descriptors that `ferretto-proto` carries, and into the table of kernel events
//! that `ferretto-probes` encodes by.
//!
//! Called by the binary of this crate (`cargo run -p ferretto-proto-gen`) and by the test that proves the
//! checked-in files fresh. The generated files are part of the repository so that nobody who builds the
//! SDK compiles a protobuf compiler. [`selection`] decides which part of the schema becomes code; each other
//! module is one output.
#![forbid(unsafe_code)]

pub mod compare;
pub mod descriptors;
mod folders;
pub mod ftrace_events;
mod gates;
pub mod messages;
pub mod names;
pub mod prune;
pub mod schema;
pub mod selection;
pub mod writers;

use std::path::{Path, PathBuf};

/// Why the generator could not produce its files.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The `.proto` files do not compile.
    #[error("compiling the schema below {folder}: {reason}")]
    Schema {
        /// The folder with the `.proto` files.
        folder: String,
        /// The compiler's message, with file and line.
        reason: String,
    },
    /// [`selection`] names something that the schema does not have.
    #[error(
        "the selection names {0}, which the schema does not have; correct crates/proto-gen/src/selection.rs"
    )]
    UnknownName(String),
    /// The message generator refused the pruned schema.
    #[error("generating message code: {0}")]
    Messages(String),
    /// The descriptors to compare with are not what they should be.
    #[error("{}: not an encoded FileDescriptorProto: {reason}", path.display())]
    Descriptors {
        /// The file.
        path: PathBuf,
        /// The decoder's message.
        reason: String,
    },
    /// A file could not be read or written.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// The activity that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}

/// One file that the generator produces.
#[derive(Debug)]
pub struct Output {
    /// Relative to the folder of `ferretto-proto`.
    pub path: PathBuf,
    /// The whole content.
    pub content: Vec<u8>,
}

/// Everything that is generated from the schema of the `ferretto-proto` crate in `proto_crate`.
///
/// # Errors
/// If the schema does not compile or the selection does not match it.
pub fn generate(proto_crate: &Path) -> Result<Vec<Output>, Error> {
    let files = schema::compile(&proto_crate.join("proto"))?;
    let mut outputs = messages::generate(&files)?;
    outputs.extend(writers::generate(&files)?);
    outputs.push(descriptors::generate(&files)?);
    outputs.push(ftrace_events::generate(&files)?);
    Ok(outputs)
}

/// The outputs whose checked-in file differs from the one that the schema gives now, and the files beside them that it does not give.
///
/// # Errors
/// If the outputs cannot be generated, or their folders not be read.
pub fn stale(proto_crate: &Path) -> Result<Vec<PathBuf>, Error> {
    let outputs = generate(proto_crate)?;
    let mut stale = left_over(proto_crate, &outputs)?;
    stale.extend(outputs.into_iter().filter_map(|output| {
        let checked_in = std::fs::read(proto_crate.join(&output.path)).ok();
        (checked_in.as_deref() != Some(&output.content)).then_some(output.path)
    }));
    Ok(stale)
}

/// Files in the folders that only have generated files, which are none of `outputs`.
///
/// # Errors
/// If such a folder cannot be read.
pub fn left_over(proto_crate: &Path, outputs: &[Output]) -> Result<Vec<PathBuf>, Error> {
    let mut left_over = Vec::new();
    for folder in ["src/messages/generated", "src/write/generated"] {
        let path = proto_crate.join(folder);
        let failed = |source| Error::Io {
            action: "reading the folder",
            path: path.clone(),
            source,
        };
        for entry in std::fs::read_dir(&path).map_err(failed)? {
            let file = Path::new(folder).join(entry.map_err(failed)?.file_name());
            if outputs.iter().all(|output| output.path != file) {
                left_over.push(file);
            }
        }
    }
    Ok(left_over)
}

/// The folder of `ferretto-proto` in this workspace.
#[must_use]
pub fn proto_crate() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto")
}
