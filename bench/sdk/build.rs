//! Compiles the bodies that are C and C++ against upstream's own headers, which the crate `perfetto-sdk-sys` brings along: those
//! for C as one file, those for C++ only inside the one source file of the library, from which they are taken here.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(any(feature = "perfetto-c", feature = "perfetto-cxx"))]
    upstream::compile();
}

#[cfg(any(feature = "perfetto-c", feature = "perfetto-cxx"))]
#[allow(dead_code)] // Not every peer needs the C++ headers.
#[path = "../../interop/amalgamation.rs"]
mod amalgamation;

#[cfg(any(feature = "perfetto-c", feature = "perfetto-cxx"))]
mod upstream {
    use std::env;
    use std::path::PathBuf;

    use super::amalgamation;

    pub(super) fn compile() {
        let library = amalgamation::library();
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
            amalgamation::write_headers(&library, &out);
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
}
