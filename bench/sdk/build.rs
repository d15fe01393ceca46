//! Compiles the bodies that are C and C++ against upstream's own headers, which the crate `perfetto-sdk-sys` brings along: those
//! for C as one file, those for C++ only inside the one source file of the library, from which they are taken here.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(any(feature = "perfetto-c", feature = "perfetto-cxx"))]
    upstream::compile();
}

#[cfg(any(feature = "perfetto-c", feature = "perfetto-cxx"))]
mod upstream {
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::{env, fs};

    pub(super) fn compile() {
        let library = library();
        if env::var_os("CARGO_FEATURE_PERFETTO_C").is_some() {
            let source = "src/bin/perfetto_c.c";
            println!("cargo::rerun-if-changed={source}");
            cc::Build::new()
                .file(source)
                .include(&library)
                .std("c11")
                .define("NDEBUG", None)
                .compile("bench_c");
        }
        if env::var_os("CARGO_FEATURE_PERFETTO_CXX").is_some() {
            let source = "src/bin/perfetto_cxx.cc";
            println!("cargo::rerun-if-changed={source}");
            let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
            let amalgamation = fs::read_to_string(library.join("perfetto_c.cc"))
                .unwrap_or_else(|error| panic!("reading upstream's library: {error}"));
            fs::write(out.join("perfetto.h"), headers(&amalgamation))
                .unwrap_or_else(|error| panic!("writing upstream's headers: {error}"));
            cc::Build::new()
                .cpp(true)
                .file(source)
                .include(&out)
                .include(&library)
                .std("c++17")
                .define("NDEBUG", None)
                .compile("bench_cxx");
        }
    }

    /// Where `perfetto-sdk-sys` has upstream's library.
    fn library() -> PathBuf {
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

    /// The headers in a library that is one file: they stand before what includes them, and each is what an include guard guards.
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
}
