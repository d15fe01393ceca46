//! `tracebox`: all of upstream's programs in one, which starts its own service.

use ferretto_cli::applet;

fn main() -> std::process::ExitCode {
    applet::main_of_tracebox()
}
