//! Compiles the program that is in C++ against upstream's own headers.

#[path = "../amalgamation.rs"]
mod amalgamation;

use std::env;
use std::path::PathBuf;

fn main() {
    const SOURCE: &str = "src/common_program.cc";
    for file in ["build.rs", "../amalgamation.rs", SOURCE] {
        println!("cargo::rerun-if-changed={file}");
    }
    let library = amalgamation::library();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    amalgamation::write_headers(&library, &out);
    cc::Build::new()
        .cpp(true)
        .file(SOURCE)
        .include(&out)
        .include(&library)
        .std("c++17")
        // It is run once; what would be optimised are templates.
        .opt_level(0)
        .define("NDEBUG", None)
        .compile("common_program");
}
