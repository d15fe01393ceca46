//! Checks of sockets and the processes that own them.

use ferretto_ipc::Address;
use ferretto_ipc::address::AddressError;
use ferretto_ipc::socket_names::{CONSUMER_SOCK_NAME, PRODUCER_SOCK_NAME, SocketNameError};

use super::super::fake::{CONSUMER, PRODUCER, TRACED, service};
use super::*;

#[test]
fn a_running_service_is_introduced() {
    let fake = Fake::healthy();
    let expected =
        "traced (pid 100) of root at /run/perfetto/traced-consumer.sock: Perfetto v58.2; records nothing now";
    assert_eq!(found(&fake, "service").what, expected);
    let expected = "1 producer with 5 data sources: linux.ftrace, linux.perf, linux.process_stats, linux.sys_stats, org.example";
    assert_eq!(found(&fake, "sources").what, expected);
    // A service over the network, or in another container.
    let mut fake = Fake::healthy();
    let Answer::Service { listener, .. } = &mut fake.answer else {
        panic!("no service");
    };
    *listener = None;
    assert_ok(&found(&fake, "service"), "somebody at /run");
}

#[test]
fn a_service_without_probes_is_a_note() {
    let mut fake = Fake::of_maria();
    fake.remove("/proc/101");
    fake.answer = service(&["a", "b", "c", "d", "e", "f", "linux.sys_stats"]);
    let mend = "sudo ferretto traced_probes --background";
    let what = "1 producer with 7 data sources: linux.sys_stats, a, b, c, d, e, …; but not linux.ftrace";
    assert_note(&found(&fake, "sources"), what, "no kernel events", &[mend]);
    fake.answer = service(&[]);
    assert_note(
        &found(&fake, "sources"),
        "no producer is connected",
        "no kernel events",
        &[mend],
    );
}

#[test]
fn probes_that_are_not_connected_to_this_service_are_a_note() {
    let mut fake = Fake::healthy();
    fake.process(102, "traced_probes");
    assert_eq!(all(&fake, "probes"), [], "this service has its own");
    fake.answer = service(&["linux.sys_stats"]);
    fake.process(102, "ferretto");
    fake.write("/proc/102/cmdline", "ferretto\0traced_probes\0");
    let mend = format!("kill 102; {PRODUCER_SOCK_NAME}={PRODUCER} ferretto traced_probes --background");
    assert_note(
        &found(&fake, "probes"),
        "traced_probes (pid 102) runs",
        "not in recordings",
        &[&mend],
    );
    fake.write("/proc/102/environ", "HOME=/\0FERRETTO_STARTED_BY=55\0");
    assert_eq!(all(&fake, "probes"), [], "it is of somebody's recording");
}

#[test]
fn without_a_service_recordings_have_their_own() {
    let mut fake = Fake::of_maria().without_service();
    let mend = [
        "sudo ferretto traced --background",
        "sudo ferretto traced_probes --background",
    ];
    assert_note(
        &found(&fake, "service"),
        "none listens at /run",
        "need one that stays",
        &mend,
    );
    fake.answer = Answer::Stale;
    assert_note(
        &found(&fake, "service"),
        "only the socket of one that has ended; `ferretto` starts",
        "need one",
        &mend,
    );
}

#[test]
fn a_stale_socket_blocks_a_user_who_cannot_remove_it() {
    let stale = |folder_mode, owner, user| {
        let mut fake = Fake::healthy().without_service();
        fake.user(user, "0");
        fake.consumer_address = Ok(Address::Unix("/tmp/perfetto-consumer".into()));
        fake.answer = Answer::Stale;
        fake.own("/tmp", 0, folder_mode);
        fake.own("/tmp/perfetto-consumer", owner, 0o755);
        all(&fake, "sockets")
    };
    let [finding] = &stale(0o1777, 0, 1000)[..] else {
        panic!("no finding");
    };
    assert_note(
        finding,
        "left over from a service of root",
        "cannot start",
        &["sudo rm /tmp/perfetto-consumer"],
    );
    for (folder_mode, owner, user) in [(0o1777, 1000, 1000), (0o777, 0, 1000), (0o1777, 1000, 0)] {
        assert_eq!(stale(folder_mode, owner, user), []);
    }
}

#[test]
fn an_unreachable_service_is_a_problem() {
    let mut fake = Fake::of_maria();
    fake.answer = Answer::Denied;
    fake.own(CONSUMER, 0, 0o600);
    let finding = found(&fake, "service");
    assert_eq!(finding.mark, Mark::Problem);
    assert!(
        finding.what.ends_with("it belongs to root (mode 0600)"),
        "{finding:?}"
    );
    let to_a_group = [
        "sudo groupadd --system --force ferretto".to_owned(),
        "sudo usermod -aG ferretto $USER".to_owned(),
        format!("sudo chgrp ferretto {CONSUMER}"),
        format!("sudo chmod 0660 {CONSUMER}"),
    ];
    assert_eq!(finding.mend, to_a_group);
    // The socket has a group of its own.
    fake.own_by_group(CONSUMER, 500, 0o660);
    assert_eq!(
        found(&fake, "service").mend,
        ["sudo usermod -aG traced-consumer $USER"]
    );
    // Maria is in the first group already. The second group has no name.
    for group in [24, 501] {
        fake.own_by_group(CONSUMER, group, 0o660);
        assert_eq!(found(&fake, "service").mend, to_a_group);
    }

    let mut fake = Fake::of_maria();
    fake.answer = Answer::Useless("no answer within 20 s".into());
    let finding = found(&fake, "service");
    assert_eq!(finding.mark, Mark::Problem);
    assert!(
        finding
            .what
            .ends_with("gave no answer that could be used: no answer within 20 s"),
        "{finding:?}"
    );
    assert_eq!(finding.mend, ["sudo kill 100  # traced"]);
    fake.remove("/proc/net/unix");
    assert_eq!(found(&fake, "service").mend, [""; 0]);
    fake.variables.insert(CONSUMER_SOCK_NAME, CONSUMER.to_owned());
    assert_eq!(
        found(&fake, "service").mend,
        [format!("unset {CONSUMER_SOCK_NAME}")]
    );

    let mut fake = Fake::of_maria();
    let error = |variable| SocketNameError {
        variable,
        reason: AddressError::Empty,
    };
    fake.consumer_address = Err(error(CONSUMER_SOCK_NAME));
    let finding = found(&fake, "service");
    assert_eq!(
        (finding.mark, finding.mend),
        (Mark::Problem, vec![format!("unset {CONSUMER_SOCK_NAME}")])
    );
    assert_eq!(worst(&examine(&fake)), Mark::Problem);
}

#[test]
fn a_service_that_programs_do_not_find_is_a_note() {
    let mut fake = Fake::healthy();
    assert_eq!(all(&fake, "producers"), []);
    let costs = "cannot bring their own events";
    fake.producer_addresses = Ok(vec![
        Address::Unix("/elsewhere".into()),
        Address::Abstract("x".into()),
    ]);
    let mend = format!("env | grep -e {CONSUMER_SOCK_NAME} -e {PRODUCER_SOCK_NAME}");
    assert_note(
        &found(&fake, "producers"),
        "nobody listens for producers at /elsewhere",
        costs,
        &[&mend],
    );
    // A file without a listener.
    fake.own("/elsewhere", 0, 0o666);
    assert_note(&found(&fake, "producers"), "nobody listens", costs, &[&mend]);
    // The table may be from another network namespace than the service's.
    let table = fake.read("/proc/net/unix").unwrap();
    fake.write("/proc/net/unix", "");
    assert_eq!(all(&fake, "producers"), []);
    fake.write("/proc/net/unix", &table);
    fake.listen(TRACED, "/elsewhere", 13);
    fake.protect("/elsewhere");
    assert_note(
        &found(&fake, "producers"),
        "/elsewhere is closed",
        costs,
        &["sudo chmod o+rw /elsewhere"],
    );
    fake.producer_addresses = Err(SocketNameError {
        variable: PRODUCER_SOCK_NAME,
        reason: AddressError::Empty,
    });
    assert_note(
        &found(&fake, "producers"),
        "empty",
        costs,
        &[&format!("unset {PRODUCER_SOCK_NAME}")],
    );
}

#[test]
fn unused_services_are_reported() {
    let mut fake = Fake::healthy();
    fake.process(200, "tracebox");
    fake.write("/proc/200/cmdline", "tracebox\0traced\0");
    fake.listen(200, "/tmp/perfetto-consumer", 21);
    let [_, other] = &all(&fake, "service")[..] else {
        panic!("not two services");
    };
    let mend = "export PERFETTO_CONSUMER_SOCK_NAME=/tmp/perfetto-consumer PERFETTO_PRODUCER_SOCK_NAME=/tmp/perfetto-producer";
    assert_note(
        other,
        "traced (pid 200) listens at /tmp/perfetto-consumer, too",
        "nothing here asks it",
        &[mend],
    );

    fake.close("/tmp/perfetto-consumer");
    assert_note(
        &all(&fake, "service")[1],
        "/tmp/perfetto-consumer, too, closed to this user",
        "asks it",
        &[],
    );

    let mut fake = Fake::healthy().without_service();
    fake.process(200, "traced");
    assert_eq!(all(&fake, "service").len(), 1, "its sockets are not to be seen");
    fake.listen(200, "/home/x/consumer", 22);
    let mend =
        "export PERFETTO_CONSUMER_SOCK_NAME=/home/x/consumer PERFETTO_PRODUCER_SOCK_NAME=/home/x/producer";
    assert_note(
        &all(&fake, "service")[1],
        "traced (pid 200) runs, but listens at /home/x/consumer",
        "asks it",
        &[],
    );
    fake.listen(200, "/home/x/producer", 23);
    assert_note(
        &all(&fake, "service")[1],
        "/home/x/consumer, /home/x/producer",
        "asks it",
        &[mend],
    );
    fake.write("/proc/200/environ", "FERRETTO_STARTED_BY=55\0");
    assert_eq!(all(&fake, "service").len(), 1, "it is of somebody's recording");
}
