//! `trigger_perfetto` alone; the binary `ferretto` has it too.

fn main() -> std::process::ExitCode {
    ferretto_cli::applet::main_of("trigger_perfetto")
}
