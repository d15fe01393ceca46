//! Examples as programs.

use std::path::{Path, PathBuf};

/// Returns the program of one of the SDK's examples; or prints that the test is skipped.
pub(crate) fn example(name: &str) -> Option<PathBuf> {
    example_of("ferretto", name)
}

/// Like [`example`], for any crate.
pub(crate) fn example_of(folder: &str, name: &str) -> Option<PathBuf> {
    let modified = |path: &Path| path.metadata().and_then(|metadata| metadata.modified());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../{folder}/examples/{name}.rs"));
    // In the folder beside that of this program.
    let here = std::env::current_exe().unwrap();
    let program = here.ancestors().nth(2).unwrap().join("examples").join(name);
    let is_current = modified(&program).is_ok_and(|built| built >= modified(&source).unwrap());
    if !is_current {
        println!("skipped: the example {name} is not built as it is; cargo build --examples does that");
    }
    is_current.then_some(program)
}
