//! `websocket_bridge` alone; the binary `ferretto` has it too.

use ferretto_cli::applet;

fn main() -> std::process::ExitCode {
    applet::main_of(applet::WEBSOCKET_BRIDGE)
}
