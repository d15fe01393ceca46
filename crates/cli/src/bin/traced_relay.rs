//! `traced_relay` alone, without any tool; the binary `ferretto` has it too.

fn main() -> std::process::ExitCode {
    ferretto_daemons::traced_relay::run(std::env::args_os().skip(1).collect()).into()
}
