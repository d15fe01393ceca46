//! The library stays loaded once it is: its signal handler, its fork handler and the state of threads have no way back.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
