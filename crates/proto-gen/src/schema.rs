//! The schema, compiled: file descriptors with their comments, and what a type name stands for.
//!
//! The only module that knows the protobuf compiler; the others see descriptors.

use std::path::Path;

use buffa::Message as _;
use buffa_codegen::generated::descriptor::{FileDescriptorProto, FileDescriptorSet};

use crate::Error;

/// Compiles every `.proto` file below `folder`, in an order that does not depend on the file system.
///
/// # Errors
/// With the compiler's words (file and line) if a file does not compile.
pub fn compile(folder: &Path) -> Result<Vec<FileDescriptorProto>, Error> {
    let failed = |reason: String| Error::Schema {
        folder: folder.display().to_string(),
        reason,
    };
    let mut names = Vec::new();
    collect(folder, folder, &mut names)?;
    names.sort();
    let mut compiler = protox::Compiler::new([folder]).map_err(|error| failed(format!("{error:?}")))?;
    compiler.include_source_info(true).include_imports(true);
    compiler
        .open_files(&names)
        .map_err(|error| failed(format!("{error:?}")))?;
    let set = FileDescriptorSet::decode_from_slice(&compiler.encode_file_descriptor_set())
        .map_err(|error| failed(error.to_string()))?;
    Ok(set.file)
}

fn collect(root: &Path, folder: &Path, names: &mut Vec<String>) -> Result<(), Error> {
    let failed = |source| Error::Io {
        action: "listing",
        path: folder.to_owned(),
        source,
    };
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            collect(root, &path, names)?;
        } else if path.extension().is_some_and(|extension| extension == "proto") {
            let relative = path.strip_prefix(root).unwrap_or(&path);
            names.push(relative.to_string_lossy().replace('\\', "/"));
        }
    }
    Ok(())
}
