//! `perfetto`: records traces with the running tracing service.

fn main() -> std::process::ExitCode {
    ferretto_cli::applet::main_of("perfetto")
}
