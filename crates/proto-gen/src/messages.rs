//! The output `src/messages/generated.rs`: owned Rust structs for the messages of [`MESSAGES`].

use buffa_codegen::generated::descriptor::FileDescriptorProto;
use buffa_codegen::{CodeGenConfig, GeneratedFileKind};

use crate::selection::MESSAGES;
use crate::{Error, Output, prune};

/// The structs of every selected message, unknown fields preserved.
///
/// # Errors
/// If the selection does not match the schema or the generator refuses it.
pub fn generate(files: &[FileDescriptorProto]) -> Result<Output, Error> {
    let files = prune::prune(files, &MESSAGES)?;
    let names: Vec<String> = files.iter().filter_map(|file| file.name.clone()).collect();
    let mut config = CodeGenConfig::default();
    config.preserve_unknown_fields = true;
    config.generate_views = false;
    config.generate_with_setters = false;
    config.generate_json = false;
    config.generate_text = false;
    config.emit_register_fn = false;
    config.file_per_package = true;
    let mut generated = buffa_codegen::generate(&files, &names, &config)
        .map_err(|error| Error::Messages(error.to_string()))?;
    generated.retain(|file| file.kind == GeneratedFileKind::PackageMod);
    match generated.as_slice() {
        [file] => Ok(Output {
            path: "src/messages/generated.rs".into(),
            content: file.content.clone().into_bytes(),
        }),
        _ => Err(Error::Messages(format!(
            "expected one file for one package, got {}",
            generated.len()
        ))),
    }
}
