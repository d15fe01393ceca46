//! The output `src/descriptors/trace.binpb`: what the text format needs to know of the schema.

use buffa::Message as _;
use buffa_codegen::generated::descriptor::{FileDescriptorProto, FileDescriptorSet};

use crate::selection::TEXT;
use crate::{Error, Output, prune};

/// The descriptor set that `ferretto-proto` embeds, without comments.
///
/// # Errors
/// If the selection does not match the schema.
pub fn generate(files: &[FileDescriptorProto]) -> Result<Output, Error> {
    let mut file = prune::prune(files, &TEXT)?;
    for file in &mut file {
        file.source_code_info = Default::default();
    }
    let set = FileDescriptorSet {
        file,
        ..Default::default()
    };
    Ok(Output {
        path: "src/descriptors/trace.binpb".into(),
        content: set.encode_to_vec(),
    })
}
