//! `ferretto`: all programs in one binary, and by itself a `perfetto` that starts what is missing.

fn main() -> std::process::ExitCode {
    ferretto_cli::applet::main()
}
