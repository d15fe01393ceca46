//! What is between a client and the server: a network that cuts connections, one that stalls, and a server that is overloaded. It counts what passes.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What happens to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Nothing.
    Pass,
    /// It is cut after so many bytes to the server.
    Cut(usize),
    /// A request with this in it is not passed on, nor is any after it. The connection stays open.
    Stall(&'static str),
    /// The server says that something is wrong.
    Answer(&'static str),
}

/// See the [module](self). Its threads end with the test's process.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    /// The fates of the next connections. After those the last one stays.
    fates: Arc<Mutex<VecDeque<Fate>>>,
    served: Arc<AtomicU64>,
}

impl Proxy {
    pub(crate) fn start(server: SocketAddr, fates: impl IntoIterator<Item = Fate>) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let fates = Arc::new(Mutex::new(fates.into_iter().collect::<VecDeque<_>>()));
        let next = fates.clone();
        let served = Arc::new(AtomicU64::new(0));
        let count = served.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let fate = {
                    let mut fates = next.lock().unwrap();
                    match fates.len() {
                        0 => Fate::Pass,
                        1 => fates[0],
                        _ => fates.pop_front().unwrap(),
                    }
                };
                let count = count.clone();
                std::thread::spawn(move || carry(stream.unwrap(), server, fate, count));
            }
        });
        Proxy {
            address,
            fates,
            served,
        }
    }

    /// Lets all connections to come pass.
    pub(crate) fn heal(&self) {
        *self.fates.lock().unwrap() = [Fate::Pass].into();
    }

    /// The bytes that have come from the server.
    pub(crate) fn served(&self) -> u64 {
        self.served.load(Ordering::SeqCst)
    }

    /// How many fates are left.
    pub(crate) fn left(&self) -> usize {
        self.fates.lock().unwrap().len()
    }
}

fn carry(mut client: TcpStream, server: SocketAddr, fate: Fate, served: Arc<AtomicU64>) {
    if let Fate::Answer(status) = fate {
        return answer(client, status);
    }
    let mut server = TcpStream::connect(server).unwrap();
    let (mut from_server, mut to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from_server.read(&mut buffer) {
            served.fetch_add(count as u64, Ordering::SeqCst);
            if to_client.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = to_client.shutdown(Shutdown::Both);
    });
    let mut buffer = vec![0; 64 << 10];
    let mut left = match fate {
        Fate::Cut(most) => most,
        _ => usize::MAX,
    };
    let mut stalled = false;
    while let Ok(count @ 1..) = client.read(&mut buffer) {
        let count = count.min(left);
        left -= count;
        // A client writes the head of a request at once: no read ends in the middle of one.
        if let Fate::Stall(request) = fate {
            stalled |= String::from_utf8_lossy(&buffer[..count]).contains(request);
        }
        // A stalled connection ends when its client goes.
        if !stalled && server.write_all(&buffer[..count]).is_err() || left == 0 {
            break;
        }
    }
    let _ = server.shutdown(Shutdown::Both);
    let _ = client.shutdown(Shutdown::Both);
}

/// Reads the head of a request, and answers.
fn answer(mut client: TcpStream, status: &str) {
    let mut head = Vec::new();
    let mut buffer = [0; 4096];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match client.read(&mut buffer) {
            Ok(count @ 1..) => head.extend_from_slice(&buffer[..count]),
            _ => return,
        }
    }
    let body = "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>";
    let _ = client.write_all(
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
        .as_bytes(),
    );
    let _ = client.shutdown(Shutdown::Write);
    // What the client still sends is thrown away, so that it reads the answer.
    let _ = client.set_read_timeout(Some(Duration::from_secs(5)));
    while let Ok(1..) = client.read(&mut buffer) {}
}
