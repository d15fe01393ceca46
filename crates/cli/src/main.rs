//! `ferretto`: contains all programs. Without a subcommand it records like `perfetto`, and starts the daemons if they are missing.

fn main() -> std::process::ExitCode {
    ferretto_cli::applet::main()
}
