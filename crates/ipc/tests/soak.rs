//! Client and host over real sockets with small kernel buffers: whatever the sizes of reads and writes, every call gets
//! its own replies in order, and every descriptor arrives with its own message.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::io::{Read, Seek, Write};
use std::os::fd::OwnedFd;

use ferretto_ipc::client::{Call, CallId, ClientEvent, More, ServiceHandle};
use ferretto_ipc::host::{HostLimits, PeerIdentitySource, Reply, ReplyError, ReplyTo};
use ferretto_ipc::ports::ServiceDescriptor;
use ferretto_ipc::transport::{Connection, ReadEnd};
use ferretto_ipc::{ClientConnection, HostConnection, Stream};

static ECHO: ServiceDescriptor = ServiceDescriptor {
    name: "Echo",
    methods: &["Echo"],
};
static SERVICES: [&ServiceDescriptor; 1] = [&ECHO];

/// xorshift64*: enough to vary sizes, and the same on every run with one seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }

    fn size(&mut self) -> usize {
        match self.below(10) {
            0 => 0,
            1 => self.below(120_000),
            2..5 => self.below(3000),
            _ => self.below(100),
        }
    }
}

fn file_with(number: usize) -> OwnedFd {
    let mut file = tempfile::tempfile().unwrap();
    write!(file, "{number}").unwrap();
    file.rewind().unwrap();
    file.into()
}

fn number_in(fd: OwnedFd) -> usize {
    let mut text = String::new();
    let mut file = std::fs::File::from(fd);
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    text.parse().unwrap()
}

/// A message: how many replies it asks for, which call it is, and padding.
fn message(replies: usize, number: usize, padding: usize) -> Vec<u8> {
    let mut message = format!("{replies} {number} ").into_bytes();
    message.resize(message.len() + padding, b'x');
    message
}

fn parse(message: &[u8]) -> (usize, usize) {
    let text = std::str::from_utf8(message).unwrap();
    let mut words = text.split(' ');
    (
        words.next().unwrap().parse().unwrap(),
        words.next().unwrap().parse().unwrap(),
    )
}

/// A stream of replies that the host has not sent yet.
struct Due {
    to: ReplyTo,
    number: usize,
    next: usize,
    replies: usize,
    with_fd: bool,
}

struct Soak {
    random: Random,
    client: ClientConnection,
    client_stream: Stream,
    echo: ServiceHandle,
    host: HostConnection,
    host_stream: Stream,
    due: Vec<Due>,
    /// For each call: its number, how many replies it waits for, how many came, whether with descriptors.
    expected: HashMap<CallId, (usize, usize, usize, bool)>,
    made: usize,
}

impl Soak {
    fn new(seed: u64) -> Soak {
        let (client_stream, host_stream) = Stream::pair().unwrap();
        for stream in [&client_stream, &host_stream] {
            rustix::net::sockopt::set_socket_send_buffer_size(stream, 8192).unwrap();
        }
        let mut client = ClientConnection::new(400_000);
        let echo = client.bind("Echo").unwrap();
        let limits = HostLimits {
            frames_per_turn: 3,
            bytes_per_turn: 50_000,
            outgoing_bytes: 0,
        };
        let host = HostConnection::new(&SERVICES, PeerIdentitySource::Kernel, limits);
        Soak {
            random: Random(seed),
            client,
            client_stream,
            echo,
            host,
            host_stream,
            due: Vec::new(),
            expected: HashMap::new(),
            made: 0,
        }
    }

    fn call(&mut self) {
        let (replies, number) = (1 + self.random.below(4), self.made);
        let arguments = message(replies, number, self.random.size());
        let with_fd = self.random.below(4) == 0;
        let call = Call::new("Echo", arguments).with_fd(with_fd.then(|| file_with(number)));
        if let Ok(id) = self.client.invoke(self.echo, call) {
            self.made += 1;
            self.expected.insert(id, (number, replies, 0, with_fd));
        }
    }

    fn serve(&mut self) {
        self.host.begin_turn();
        while let Some(request) = self.host.next_request().unwrap() {
            let (replies, number) = parse(request.payload);
            let with_fd = request.fd.is_some();
            assert!(request.fd.is_none_or(|fd| number_in(fd.into_inner()) == number));
            self.due.push(Due {
                to: request.reply_to,
                number,
                next: 0,
                replies,
                with_fd,
            });
        }
        // Streams go on in any order, as far as the client reads.
        while !self.due.is_empty() {
            let index = self.random.below(self.due.len());
            let padding = self.random.size();
            let due = &mut self.due[index];
            let payload = message(due.next, due.number, padding);
            let last = due.next + 1 == due.replies;
            let reply = if last {
                Reply::last(payload)
            } else {
                Reply::more(payload)
            };
            let reply = if due.with_fd {
                reply.with_fd(file_with(due.number))
            } else {
                reply
            };
            match self.host.reply(due.to, reply) {
                Ok(()) if last => drop(self.due.swap_remove(index)),
                Ok(()) => due.next += 1,
                Err(ReplyError::Full(_)) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn listen(&mut self) {
        while let Some(event) = self.client.next_event().unwrap() {
            let ClientEvent::Reply {
                call,
                payload,
                more,
                fd,
            } = event
            else {
                assert!(matches!(event, ClientEvent::Bound(_)), "{event:?}");
                continue;
            };
            let (number, replies, came, with_fd) = self.expected.get_mut(&call).unwrap();
            assert_eq!(parse(payload), (*came, *number));
            assert_eq!(fd.map(number_in), with_fd.then_some(*number));
            *came += 1;
            assert_eq!(more == More::Last, came == replies);
            if more == More::Last {
                self.expected.remove(&call);
            }
        }
    }

    fn step(&mut self) {
        let mut scratch = vec![0; 1 + self.random.below(20_000)];
        match self.random.below(4) {
            0 => drop(self.client_stream.flush(self.client.outgoing()).unwrap()),
            1 => drop(self.host_stream.flush(self.host.outgoing()).unwrap()),
            2 => {
                if self.host.wants_input() {
                    let end = self.host_stream.read_into(&mut self.host, &mut scratch).unwrap();
                    assert_ne!(end, ReadEnd::Closed);
                }
                self.serve();
            }
            _ => {
                let end = self
                    .client_stream
                    .read_into(&mut self.client, &mut scratch)
                    .unwrap();
                assert_ne!(end, ReadEnd::Closed);
                self.listen();
            }
        }
    }
}

#[test]
fn every_call_gets_its_own_replies_and_descriptors() {
    for seed in 1..=6 {
        println!("seed {seed}");
        let mut soak = Soak::new(seed);
        while soak.made < 150 {
            if soak.random.below(3) == 0 {
                soak.call();
            }
            soak.step();
        }
        let mut steps = 0;
        while !soak.expected.is_empty() {
            soak.step();
            steps += 1;
            assert!(
                steps < 1_000_000,
                "{} calls get no more replies",
                soak.expected.len()
            );
        }
        assert!(soak.due.is_empty());
    }
}
