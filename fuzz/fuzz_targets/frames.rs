//! The service's end of a connection: bytes of a hostile client, cut in any way, through the frame decoder and through
//! `HostConnection` with both ports. The frames are the same as from one piece, and as a naive reader finds.

#![no_main]

use ferretto_fuzz::{naive_frames, stream_in_pieces, take_outgoing};
use ferretto_ipc::HostConnection;
use ferretto_ipc::frame::{FrameDecoder, Violation};
use ferretto_ipc::host::{HostLimits, PeerIdentitySource, Reply};
use ferretto_ipc::ports::{CONSUMER_PORT, PRODUCER_PORT, ServiceDescriptor};
use ferretto_ipc::transport::Connection;
use libfuzzer_sys::fuzz_target;

static SERVICES: [&ServiceDescriptor; 2] = [&PRODUCER_PORT, &CONSUMER_PORT];

fuzz_target!(|data: &[u8]| {
    let (stream, pieces) = stream_in_pieces(data);
    let mut decoder = FrameDecoder::new();
    let (expected, too_large) = naive_frames(stream);
    let mut expected = expected.into_iter();
    let mut violated = false;
    for piece in pieces {
        decoder.push(piece, None);
        while let Some(frame) = decoder.next_frame().unwrap_or_else(|_| {
            violated = true;
            None
        }) {
            assert_eq!(Some(decoder.body(&frame)), expected.next());
        }
        if violated {
            break;
        }
    }
    assert_eq!((expected.next(), violated), (None, too_large));

    let (_, pieces) = stream_in_pieces(data);
    assert_eq!(serve(pieces), serve([stream].into_iter()));
});

/// The calls that a stream makes (port, method, arguments), and how it ends.
type Calls = (Vec<(&'static str, &'static str, Vec<u8>)>, Option<Violation>);

/// Serves a client in turns of a few frames, whose replies it reads at once.
fn serve<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Calls {
    let limits = HostLimits {
        frames_per_turn: 3,
        ..HostLimits::default()
    };
    let mut host = HostConnection::new(&SERVICES, PeerIdentitySource::Declared, limits);
    let mut calls = Vec::new();
    for piece in pieces {
        host.receive(piece, None);
        loop {
            host.begin_turn();
            loop {
                let request = match host.next_request() {
                    Ok(Some(request)) => request,
                    Ok(None) => break,
                    Err(violation) => return (calls, Some(violation)),
                };
                assert!(request.service.methods.contains(&request.method));
                calls.push((request.service.name, request.method, request.payload.to_vec()));
                let to = request.reply_to;
                host.reply(to, Reply::more(vec![8, 1]))
                    .expect("room, for the client reads");
                host.reply(to, Reply::rejected())
                    .expect("room, for the client reads");
            }
            take_outgoing(host.outgoing());
            if !host.turn_is_over() {
                break;
            }
        }
    }
    (calls, None)
}
