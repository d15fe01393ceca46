//! The data of browsers: frames, and random bytes that are compared afterwards.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags};
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::{Error, Message, WebSocket};

use crate::support::random::Random;
use crate::websocket_bridge::bridge::STUCK;

/// Random numbers, with a seed that is printed.
pub(crate) fn random() -> Random {
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    println!("seed {seed}");
    Random(seed)
}

pub(crate) const CONTINUATION: u8 = 0;
pub(crate) const TEXT: u8 = 1;
pub(crate) const BINARY: u8 = 2;
pub(crate) const PING: u8 = 9;
/// The bit of a message's last fragment.
pub(crate) const FINAL: u8 = 0x80;

/// A masked frame, as browsers send it.
pub(crate) fn frame(first_byte: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [0x5a, 0x01, 0xff, 0x80];
    let mut frame = vec![first_byte];
    match payload.len() {
        length @ ..126 => frame.push(0x80 | length as u8),
        length @ ..0x1_0000 => {
            frame.push(0x80 | 126);
            frame.extend((length as u16).to_be_bytes());
        }
        length => {
            frame.push(0x80 | 127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend(mask);
    frame.extend(
        payload
            .iter()
            .zip(mask.iter().cycle())
            .map(|(byte, mask)| byte ^ mask),
    );
    frame
}

/// Reads so many bytes, from messages of any size; also returns the number of pings that were answered meanwhile.
pub(crate) fn receive(websocket: &mut WebSocket<TcpStream>, count: usize) -> (Vec<u8>, usize) {
    let (mut bytes, mut pongs) = (Vec::new(), 0);
    while bytes.len() < count {
        match websocket.read().unwrap() {
            Message::Binary(message) => bytes.extend_from_slice(&message),
            Message::Pong(_) => pongs += 1,
            other => panic!("{other:?}"),
        }
    }
    (bytes, pongs)
}

/// Reads until the bridge closes; returns the code of its close frame, if it sent one.
pub(crate) fn closed(websocket: &mut WebSocket<TcpStream>) -> Option<CloseCode> {
    loop {
        match websocket.read() {
            Ok(Message::Close(frame)) => return frame.map(|frame| frame.code),
            Ok(_) => {}
            Err(Error::Io(error)) if error.kind() == ErrorKind::WouldBlock => panic!("it stays open"),
            Err(_) => return None,
        }
    }
}

/// Whether the other end has closed the connection.
pub(crate) fn hung_up(mut stream: impl Read) -> bool {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

/// Writes until nothing has been taken for a while; returns the bytes that were taken.
pub(crate) fn write_until_stuck(
    stream: &mut (impl Write + AsFd),
    mut next: impl FnMut() -> Vec<u8>,
) -> Vec<u8> {
    let mut taken = Vec::new();
    loop {
        let bytes = next();
        let mut sent = 0;
        while sent < bytes.len() {
            match stream.write(&bytes[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let mut polled = [PollFd::new(stream, PollFlags::OUT)];
                    if rustix::event::poll(&mut polled, Some(&STUCK.try_into().unwrap())).unwrap() == 0 {
                        taken.extend_from_slice(&bytes[..sent]);
                        return taken;
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
        taken.extend_from_slice(&bytes);
        assert!(
            taken.len() < 100 << 20,
            "everything is taken, though nobody reads"
        );
    }
}
