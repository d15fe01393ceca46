//! Producers over a network, which cannot share memory with the service. The chunks travel in the commits, with our program on either side. And
//! relays, which connect the producers of other machines.

mod our_relay;
mod relay;
mod relayed;
mod relays;
mod remote_consumer;

use crate::support::address::free_address;
use crate::support::trace::{LOSSES, Rows, TraceProcessor, numbers};
use crate::support::{Program, Programs, Side, System};

const PROCESSES: &str = r#"
duration_ms: 1500
buffers { size_kb: 16384 }
flush_period_ms: 500
data_sources { config {
  name: "linux.process_stats"
  process_stats_config { scan_all_processes_on_start: true proc_stats_poll_ms: 100 record_thread_names: true }
} }
data_sources { config {
  name: "linux.sys_stats"
  sys_stats_config { meminfo_period_ms: 100 stat_period_ms: 100 }
} }
"#;

fn records_over_tcp(programs: &Programs, traced: Side, probes: Side) {
    let Some(processor) = TraceProcessor::find() else {
        return;
    };
    let mut system = System::new(programs);
    let address = free_address();
    let sockets = format!("{},{address}", system.producer_socket().display());
    system.start_at(traced, Program::Traced, &sockets);
    system.start_at(probes, Program::TracedProbes, &address);
    system.await_state(|state| {
        state
            .data_sources
            .iter()
            .any(|source| source.ds_descriptor.name.as_deref() == Some("linux.process_stats"))
    });
    let recording = system.record(Side::Ours, PROCESSES);
    let trace = recording.finish();
    system.assert_running();
    let [losses, found] = processor.query(
        &trace,
        [
            LOSSES,
            "select
                (select count(*) > 5 from process where pid is not null),
                (select count(*) > 100 from counter)",
        ],
    );
    assert_eq!(losses, Rows::new(), "{traced} service, {probes} probes");
    assert_eq!(numbers(&found), [1, 1], "{traced} service, {probes} probes");
}

#[test]
fn our_probes_record_for_our_service() {
    records_over_tcp(&Programs::ours(), Side::Ours, Side::Ours);
}

#[test]
fn either_side_of_a_network_may_be_upstreams() {
    let Some(programs) = Programs::of_both() else {
        return;
    };
    records_over_tcp(&programs, Side::Upstream, Side::Ours);
    records_over_tcp(&programs, Side::Ours, Side::Upstream);
}
