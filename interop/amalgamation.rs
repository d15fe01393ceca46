//! Upstream's client library as the crate `perfetto-sdk-sys` brings it along: one source file, in which the C++ headers are, and one
//! header for C.
//!
//! Part of the build scripts of programs that are compiled against the library's C++ interface, `bench/sdk` and
//! `interop/cxx-producer`. Both have `perfetto-sdk-sys` as a dependency.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Writes the library's C++ headers as one, `perfetto.h`, into a folder.
pub(crate) fn write_headers(library: &Path, folder: &Path) {
    let amalgamation = fs::read_to_string(library.join("perfetto_c.cc"))
        .unwrap_or_else(|error| panic!("reading upstream's library: {error}"));
    fs::write(folder.join("perfetto.h"), headers(&amalgamation))
        .unwrap_or_else(|error| panic!("writing upstream's headers: {error}"));
}

/// Where `perfetto-sdk-sys` has upstream's library.
pub(crate) fn library() -> PathBuf {
    let cargo = env::var_os("CARGO").expect("cargo sets CARGO");
    let metadata = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--locked", "--offline"])
        .output()
        .expect("cargo runs");
    let metadata = String::from_utf8(metadata.stdout).expect("cargo writes UTF-8");
    let end = metadata
        .match_indices("/Cargo.toml\"")
        .map(|(end, _)| &metadata[..end])
        .find(|before| {
            let start = before.rfind('"').map_or(0, |quote| quote + 1);
            Path::new(&before[start..])
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("perfetto-sdk-sys-"))
        })
        .expect("perfetto-sdk-sys is a dependency");
    let start = end.rfind('"').map_or(0, |quote| quote + 1);
    Path::new(&end[start..]).join("libperfetto_c")
}

/// The C++ headers in the library, which is one file: they stand before what includes them, and each is what an include guard guards.
fn headers(amalgamation: &str) -> String {
    let mut headers = String::from("#include \"perfetto_c.h\"\n");
    let mut depth = 0;
    let mut lines = amalgamation.lines().peekable();
    while let Some(line) = lines.next() {
        let directive = line.strip_prefix('#').map_or("", str::trim_start);
        if depth == 0 {
            let guard = directive
                .strip_prefix("ifndef ")
                .filter(|name| name.ends_with("_H_"));
            let next = lines.peek().copied().unwrap_or_default();
            if guard.is_none_or(|guard| next.trim_end() != format!("#define {guard}")) {
                continue;
            }
        }
        if directive.starts_with("if") {
            depth += 1;
        } else if directive.starts_with("endif") {
            depth -= 1;
        }
        headers.push_str(line);
        headers.push('\n');
    }
    headers
}
