//! The real service and the real relay, with the tunnel between them.

use std::path::PathBuf;
use std::process::Command;

use crate::ends::{Running, command, free_address};
use crate::fleet::{Fleet, HOST};

/// `traced` or `traced_relay`.
fn daemon(which: &str) -> Command {
    let tunnel = PathBuf::from(env!("CARGO_BIN_EXE_ferretto-tunnel"));
    let mut command = Command::new(tunnel.with_file_name("examples").join("daemons"));
    command.arg(which);
    command
}

#[test]
fn a_relay_reaches_its_service_through_the_tunnel_and_clocks_are_compared() {
    let fleet = Fleet::new();
    let path = |name: &str| fleet.path(name);
    let text = |name: &str| path(name).to_str().unwrap().to_owned();
    let (service, between) = (free_address(), free_address());
    let mut traced = daemon("traced");
    traced
        .env(
            "PERFETTO_PRODUCER_SOCK_NAME",
            format!("{},{service}", text("producer")),
        )
        .env("PERFETTO_CONSUMER_SOCK_NAME", path("consumer"))
        .args(["--enable-relay-endpoint-on", &service]);
    let mut traced = Running::start(&mut traced, &path("traced.log"));
    traced.await_log("traced is listening");
    let mut host = command("host", &between, &service, &fleet.host());
    let mut host = Running::start(&mut host, &path("host.log"));
    host.await_log("ferretto-tunnel is listening");
    let mut guest = command("guest", &text("tunnel"), &between, &fleet.guest());
    let mut guest = Running::start(guest.args(["--tls-name", HOST]), &path("guest.log"));
    guest.await_log("ferretto-tunnel is listening");
    let mut relay = daemon("traced_relay");
    relay
        .env("PERFETTO_RELAY_SOCK_NAME", path("tunnel"))
        .env("PERFETTO_PRODUCER_SOCK_NAME", path("guest-producer"))
        .env("PERFETTO_MACHINE_NAME", "guest")
        .args(["--machine-id", "another machine"]);
    let mut relay = Running::start(&mut relay, &path("relay.log"));
    relay.await_log("connected to the service at");
    relay.await_log("the service knows this machine's clocks");
    for end in [&host, &guest] {
        assert_eq!(end.log().lines().count(), 1, "{}", end.log());
    }
}
