//! `perfetto`: records traces with the running tracing service.

use ferretto_cli::applet;

fn main() -> std::process::ExitCode {
    applet::main_of(applet::PERFETTO)
}
