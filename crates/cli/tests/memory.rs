//! The memory of our `traced`: the memory of sessions, their clones and the data read from them returns to the system when they are over.
//! `bench/service-memory` measures their memory while they live, beside upstream's.

use std::time::{Duration, Instant};

use crate::support::peers::{Producer, Session, chunk, commit, config, introduction};
use crate::support::process::anonymous_kb;
use crate::support::wire::Client;
use crate::support::{PATIENCE, Program, Programs, Side, System};
use ferretto_ipc::ports::CONSUMER_PORT;
use ferretto_proto::messages::{
    CloneSessionRequest, CloneSessionResponse, Message, TraceConfig, clone_session_request,
};

const SOURCE: &str = "test.memory";
const NAME: &str = "to be cloned";
/// The size of a session's buffer, which is filled.
const BUFFER_KB: u32 = 4096;
/// The additional memory that a service may keep after its first session: heaps have holes, and pages of the program are written to.
const SLACK_KB: u64 = 1024;

/// A session whose buffer is full.
fn filled(system: &System<'_>) -> Session {
    let mut config = TraceConfig {
        unique_session_name: Some(NAME.into()),
        ..config(SOURCE)
    };
    config.buffers[0].size_kb = Some(BUFFER_KB);
    let session = Session::begin(system, config);
    let mut producer = Producer::new(system, &introduction(SOURCE), None);
    let (_, target) = producer.join(SOURCE);
    for number in 0..BUFFER_KB / 2 {
        let chunk = chunk(number, &[number as u8; 2000]);
        producer.client.call("CommitData", &commit(target, chunk));
    }
    producer.sync();
    // The producer would have to acknowledge a flush before each clone.
    drop(producer);
    system.await_state(|state| state.producers.is_empty());
    session
}

/// Consumers that each have a clone of the session.
fn cloned(system: &System<'_>, clones: usize) -> Vec<Client> {
    let mut consumers: Vec<Client> = (0..clones)
        .map(|_| Client::connect(&system.consumer_socket(), &CONSUMER_PORT))
        .collect();
    let request = CloneSessionRequest {
        selector: Some(clone_session_request::Selector::UniqueSessionName(NAME.into())),
        ..Default::default()
    };
    let calls: Vec<u64> = consumers
        .iter_mut()
        .map(|consumer| consumer.call("CloneSession", &request.encode_to_vec()))
        .collect();
    for (consumer, call) in consumers.iter_mut().zip(calls) {
        let cloned: CloneSessionResponse = consumer.answer(call).decode();
        assert_eq!(cloned.success, Some(true), "{cloned:?}");
    }
    consumers
}

/// Fills the buffer of a session, makes this many clones, reads all of them, and ends them.
fn session(system: &System<'_>, clones: usize) {
    let session = filled(system);
    let mut bytes = 0;
    for mut consumer in cloned(system, clones) {
        let read = consumer.call("ReadBuffers", &[]);
        loop {
            let answer = consumer.answer(read);
            bytes += answer.frame_size;
            if !answer.has_more {
                break;
            }
        }
    }
    bytes += session.end().iter().map(Vec::len).sum::<usize>();
    let least = (clones + 1) * BUFFER_KB as usize * 1024 / 2;
    assert!(bytes > least, "{bytes} bytes read of {clones} clones");
}

#[test]
fn clones_of_one_session_share_its_memory() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let service = system.start(Side::Ours, Program::Traced);
    let session = filled(&system);
    let before = anonymous_kb(service);
    let clones = cloned(&system, 30);
    let now = anonymous_kb(service);
    assert!(
        now < before + SLACK_KB + u64::from(BUFFER_KB) / 4,
        "{now} KB with 30 clones, {before} KB before, with a buffer of {BUFFER_KB} KB"
    );
    drop(clones);
    session.end();
}

#[test]
fn memory_of_sessions_clones_and_reading_is_returned() {
    let programs = Programs::ours();
    let mut system = System::new(&programs);
    let service = system.start(Side::Ours, Program::Traced);
    let before = anonymous_kb(service);
    // The allocator lets the amount of freed memory determine how much it keeps.
    session(&system, 6);
    session(&system, 0);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = anonymous_kb(service);
        if now <= before + SLACK_KB {
            return;
        }
        assert!(Instant::now() < deadline, "{now} KB, {before} KB before");
        std::thread::sleep(Duration::from_millis(20));
    }
}
