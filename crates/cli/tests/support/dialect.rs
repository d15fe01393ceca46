//! Conversations as text: a client's messages to the service, byte for byte, and the answers that it waits for.
//!
//! A script in `tests/dialects` is one connection. Its lines are
//!
//! ```text
//! send [with memory | with file]   a frame begins, perhaps with a descriptor; its bytes follow, up to the next of these words
//! answer 3 ok | more | rejected    waits for an answer to request 3: the last one, one of several, a rejection
//! command 3 6                      waits for an answer to request 3 that holds field 6: a command to a producer
//! error 4                          waits for the answer to request 4 that reports an error
//! chunk 0 "text"                   writes a complete chunk with a packet for testing into page 0 of the shared memory
//! mark here                        a place that a test can play the script up to
//! packet                           a packet that the service writes into the trace; its bytes follow
//! ```
//!
//! Bytes are hexadecimal digits, `00*12` for twelve equal bytes, `"text"`, and `{ ... }`, which stands for a length (the shortest varint, or one of four
//! bytes after `{4`) and as many bytes. A `#` begins a comment. The four bytes of length before each frame are left out, because they are the same for all clients.
//!
//! [`record`] makes scripts from the bytes of a real client; scripts of older and newer clients are written by hand.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Mutex;

use ferretto_ipc::ports::{CONSUMER_PORT, ServiceDescriptor};
use ferretto_proto::messages::ipc_frame::Msg;
use ferretto_proto::messages::{GetAsyncCommandResponse, IPCFrame, Message};
use ferretto_wire::{
    MAX_FIELD_NUMBER, Reader, WireType, decode_varint_wrapping, field_number, put_padded_varint, varint_len,
    wire_type,
};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use super::wire::{Client, framed};

/// One line of a script.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Send { message: Vec<u8>, with: With },
    Answer { request: u64, kind: Kind },
    Command { request: u64, field: u32 },
    Error { request: u64 },
    Chunk { page: u64, text: Vec<u8> },
    Mark(String),
    Packet(Vec<u8>),
}

/// The descriptor that is sent with a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
enum With {
    Nothing,
    Memory,
    File,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Last,
    More,
    Rejected,
}

/// A script that is being played.
pub(crate) struct Player {
    client: Client,
    steps: VecDeque<Step>,
    /// Memory that the script offered, or that the service sent.
    memory: Option<std::fs::File>,
    /// The file into which `send with file` makes the service write the trace.
    file: std::fs::File,
    /// Answers for which the script has not waited.
    unmet: Vec<Met>,
    /// Answers for which the script has waited.
    pub(crate) met: Vec<Met>,
}

/// An answer as the script sees it.
#[derive(Debug)]
pub(crate) struct Met {
    pub(crate) request: u64,
    msg: Msg,
}

impl Met {
    /// Returns the encoded reply, if the answer is one.
    pub(crate) fn reply(&self) -> Option<&[u8]> {
        match &self.msg {
            Msg::MsgInvokeMethodReply(reply) if reply.success.unwrap_or_default() => {
                Some(reply.reply_proto.as_deref().unwrap_or_default())
            }
            _ => None,
        }
    }

    fn satisfies(&self, step: &Step) -> bool {
        match (step, &self.msg) {
            (Step::Answer { request, kind }, Msg::MsgInvokeMethodReply(reply)) => {
                let (success, more) = (
                    reply.success.unwrap_or_default(),
                    reply.has_more.unwrap_or_default(),
                );
                *request == self.request && *kind == Kind::of(success, more)
            }
            (Step::Answer { request, kind }, Msg::MsgBindServiceReply(reply)) => {
                *request == self.request && *kind == Kind::of(reply.success.unwrap_or_default(), false)
            }
            (Step::Command { request, field }, _) => {
                let holds = |reply| Reader::new(reply).flatten().any(|found| found.number == *field);
                *request == self.request && self.reply().is_some_and(holds)
            }
            (Step::Error { request }, Msg::MsgRequestError(_)) => *request == self.request,
            _ => false,
        }
    }
}

impl Kind {
    fn of(success: bool, more: bool) -> Kind {
        match (success, more) {
            (false, _) => Kind::Rejected,
            (true, true) => Kind::More,
            (true, false) => Kind::Last,
        }
    }
}

impl Player {
    /// Opens a connection for the script `name`.
    pub(crate) fn new(name: &str, socket: &Path, port: &'static ServiceDescriptor) -> Player {
        Player::over(
            UnixStream::connect(socket).expect("the service listens"),
            name,
            port,
        )
    }

    /// Plays the script `name` over this connection.
    pub(crate) fn over(stream: UnixStream, name: &str, port: &'static ServiceDescriptor) -> Player {
        Player {
            client: Client::over(stream, port),
            steps: script(name).into(),
            memory: None,
            file: tempfile::tempfile().unwrap(),
            unmet: Vec::new(),
            met: Vec::new(),
        }
    }

    /// Plays up to this mark.
    pub(crate) fn play_to(&mut self, mark: &str) {
        while let Some(step) = self.steps.pop_front() {
            if step == Step::Mark(mark.to_owned()) {
                return;
            }
            self.play_step(&step);
        }
        panic!("the script has no mark {mark:?}");
    }

    /// Plays up to the wait for the command that stops a data source, or to the end.
    pub(crate) fn play_to_stop(&mut self) {
        let stops = |step: &Step| matches!(step, Step::Command { field, .. } if *field == GetAsyncCommandResponse::STOP_DATA_SOURCE);
        while !self.steps.front().is_none_or(stops) {
            let step = self.steps.pop_front().expect("one was seen");
            self.play_step(&step);
        }
    }

    /// Plays the rest.
    pub(crate) fn play(&mut self) {
        while let Some(step) = self.steps.pop_front() {
            self.play_step(&step);
        }
    }

    /// Returns the content of the file that the service was given.
    pub(crate) fn file(&self) -> Vec<u8> {
        let mut trace = vec![0; self.file.metadata().unwrap().len() as usize];
        self.file.read_exact_at(&mut trace, 0).unwrap();
        trace
    }

    /// Returns the replies to this request, whether or not the script waited for them.
    pub(crate) fn stream(&self, request: u64) -> Vec<&[u8]> {
        let told = self.unmet.iter().chain(&self.met);
        told.filter(|met| met.request == request)
            .filter_map(Met::reply)
            .collect()
    }

    /// Returns the replies to this request for which the script waited.
    pub(crate) fn replies(&self, request: u64) -> Vec<&[u8]> {
        let of_request = self.met.iter().filter(|met| met.request == request);
        of_request.filter_map(Met::reply).collect()
    }

    fn play_step(&mut self, step: &Step) {
        // The output is shown if the test fails.
        match step {
            Step::Send { message, with } => println!("send with {with:?}: {}", hex(message)),
            Step::Packet(_) => {}
            other => println!("{other:02x?}"),
        }
        match step {
            Step::Send { message, with } => {
                let fd: Option<OwnedFd> = match with {
                    With::Nothing => None,
                    With::File => Some(self.file.try_clone().unwrap().into()),
                    With::Memory => {
                        let memory = super::peers::shared_memory(256 * 1024);
                        self.memory = Some(memory.try_clone().unwrap().into());
                        Some(memory)
                    }
                };
                self.client.send(&framed(message), fd.as_ref());
            }
            Step::Chunk { page, text } => self.write_chunk(*page, text),
            Step::Mark(_) | Step::Packet(_) => {}
            awaited => self.await_answer(awaited),
        }
    }

    fn await_answer(&mut self, step: &Step) {
        if let Some(at) = self.unmet.iter().position(|met| met.satisfies(step)) {
            let met = self.unmet.remove(at);
            return self.met.push(met);
        }
        loop {
            let Some((frame, _, fd)) = self.client.next_frame() else {
                panic!("the service hung up before {step:?}");
            };
            if let Some(fd) = fd {
                self.memory = Some(fd.into());
            }
            let met = Met {
                request: frame.request_id.unwrap_or_default(),
                msg: frame.msg.expect("an answer"),
            };
            if met.satisfies(step) {
                return self.met.push(met);
            }
            // If the last or only answer to a request is another one than expected, the expected one will never come.
            let refused = matches!(step, Step::Answer { request, .. } if *request == met.request)
                && matches!(&met.msg, Msg::MsgInvokeMethodReply(reply) if !reply.has_more.unwrap_or_default());
            assert!(!refused, "{step:?} did not come, but {met:?}");
            self.unmet.push(met);
        }
    }

    /// Writes a page with one complete chunk, as a producer does.
    fn write_chunk(&self, page: u64, text: &[u8]) {
        const PAGE_SIZE: u64 = 4096;
        const ONE_COMPLETE_CHUNK: u32 = 1 << 28 | 3;
        const PAGE_HEADER: u64 = 8;
        let memory = self.memory.as_ref().expect("the service has sent memory");
        let chunk = super::peers::chunk(0, text);
        memory
            .write_all_at(&chunk, page * PAGE_SIZE + PAGE_HEADER)
            .unwrap();
        memory
            .write_all_at(&ONE_COMPLETE_CHUNK.to_le_bytes(), page * PAGE_SIZE)
            .unwrap();
    }
}

fn script(name: &str) -> Vec<Step> {
    let path = script_path(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the packets that the script `name` has of the trace.
pub(crate) fn packets(name: &str) -> Vec<Vec<u8>> {
    let packet = |step| match step {
        Step::Packet(packet) => Some(packet),
        _ => None,
    };
    script(name).into_iter().filter_map(packet).collect()
}

/// Prints packets as the end of a script.
pub(crate) fn print_packets(packets: &[Vec<u8>]) -> String {
    let mut script = String::new();
    for packet in packets {
        script.push_str("\npacket\n");
        print(packet, 2, &mut script);
    }
    script
}

fn script_path(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/dialects/{name}.txt"))
}

/// Returns every word of a script, with texts and braces as words of their own.
fn words(text: &str) -> Result<Vec<Vec<Word>>, String> {
    text.lines()
        .zip(1..)
        .map(|(line, number)| words_of_line(line).map_err(|error| format!("line {number}: {error}")))
        .collect()
}

#[derive(Debug, PartialEq)]
enum Word {
    Plain(String),
    Text(Vec<u8>),
    /// The number of bytes of the length; 0 for as many as it needs.
    Open(usize),
    Close,
}

fn words_of_line(line: &str) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while let Some(first) = rest.chars().next() {
        let (word, used) = match first {
            '#' => break,
            '{' => match rest[1..].chars().next().and_then(|width| width.to_digit(10)) {
                Some(width) => (Word::Open(width as usize), 2),
                None => (Word::Open(0), 1),
            },
            '}' => (Word::Close, 1),
            '"' => {
                let end = rest[1..].find('"').ok_or("a text without an end")?;
                (Word::Text(rest[1..=end].into()), end + 2)
            }
            _ => {
                let end = rest.find([' ', '{', '}', '"', '#']).unwrap_or(rest.len());
                (Word::Plain(rest[..end].to_owned()), end)
            }
        };
        words.push(word);
        rest = rest[used..].trim_start();
    }
    Ok(words)
}

fn parse(text: &str) -> Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    let mut levels = Levels::new();
    for (line, number) in words(text)?.into_iter().zip(1..) {
        let at = |error: &str| format!("line {number}: {error}");
        let plain: Vec<&str> = line
            .iter()
            .filter_map(|word| match word {
                Word::Plain(word) => Some(word.as_str()),
                _ => None,
            })
            .collect();
        let number_at = |index: usize| -> Result<u64, String> {
            let word = plain.get(index).ok_or_else(|| at("a number is missing"))?;
            word.parse().map_err(|_| at("this is no number"))
        };
        let step = match plain.first().copied() {
            Some("send") => {
                let with = match plain[1..] {
                    [] => With::Nothing,
                    ["with", "memory"] => With::Memory,
                    ["with", "file"] => With::File,
                    _ => return Err(at("with what?")),
                };
                Step::Send {
                    message: Vec::new(),
                    with,
                }
            }
            Some("answer") => Step::Answer {
                request: number_at(1)?,
                kind: match plain.get(2) {
                    Some(&"ok") => Kind::Last,
                    Some(&"more") => Kind::More,
                    Some(&"rejected") => Kind::Rejected,
                    _ => return Err(at("an answer is ok, more or rejected")),
                },
            },
            Some("command") => Step::Command {
                request: number_at(1)?,
                field: number_at(2)? as u32,
            },
            Some("error") => Step::Error {
                request: number_at(1)?,
            },
            Some("packet") => Step::Packet(Vec::new()),
            Some("mark") => Step::Mark(plain.get(1).ok_or_else(|| at("a name is missing"))?.to_string()),
            Some("chunk") => match line.last() {
                Some(Word::Text(text)) => Step::Chunk {
                    page: number_at(1)?,
                    text: text.clone(),
                },
                _ => return Err(at("the text of the chunk is missing")),
            },
            _ => {
                bytes(line, &mut levels).map_err(|error| at(&error))?;
                continue;
            }
        };
        finish(&mut steps, &mut levels).map_err(|error| at(&error))?;
        steps.push(step);
    }
    finish(&mut steps, &mut levels)?;
    Ok(steps)
}

/// The open braces of the message that is being parsed: the width of each length, and the content so far.
type Levels = Vec<(usize, Vec<u8>)>;

fn bytes(line: Vec<Word>, levels: &mut Levels) -> Result<(), String> {
    for word in line {
        if levels.is_empty() {
            levels.push((0, Vec::new()));
        }
        match word {
            Word::Open(width) => levels.push((width, Vec::new())),
            Word::Close => {
                let (width, inner) = levels.pop().unwrap_or_default();
                let (_, outer) = levels.last_mut().ok_or("a brace closes that was not opened")?;
                outer.extend(padded_varint(inner.len(), width));
                outer.extend(inner);
            }
            Word::Text(text) => levels.last_mut().ok_or("no message")?.1.extend(text),
            Word::Plain(digits) => {
                let (digits, times) = match digits.split_once('*') {
                    Some((byte, times)) => {
                        (byte, times.parse().map_err(|_| format!("{digits}: how often?"))?)
                    }
                    None => (digits.as_str(), 1),
                };
                if digits.len() % 2 != 0 {
                    return Err(format!("{digits}: bytes have two digits"));
                }
                for at in (0..digits.len()).step_by(2) {
                    let byte = digits
                        .get(at..at + 2)
                        .and_then(|pair| u8::from_str_radix(pair, 16).ok());
                    let byte =
                        byte.ok_or_else(|| format!("{digits}: neither a word of scripts nor hexadecimal"))?;
                    let level = levels.last_mut().ok_or("no message")?;
                    level.1.extend(std::iter::repeat_n(byte, times));
                }
            }
        }
    }
    Ok(())
}

/// Completes the frame that was being parsed.
fn finish(steps: &mut [Step], levels: &mut Levels) -> Result<(), String> {
    let Some((_, whole)) = levels.pop() else {
        return Ok(());
    };
    if !levels.is_empty() {
        return Err("a brace is open".into());
    }
    match steps.last_mut() {
        Some(Step::Send { message, .. } | Step::Packet(message)) => *message = whole,
        _ => return Err("bytes without a send before them".into()),
    }
    Ok(())
}

/// Encodes a length as a varint of `width` bytes, or more if it needs more.
fn padded_varint(length: usize, width: usize) -> Vec<u8> {
    let mut bytes = vec![0; width.max(varint_len(length as u64))];
    put_padded_varint(&mut bytes, length as u64);
    bytes
}

/// A field in its original encoding: tag and number, or the tag and the width of the length for bytes.
enum Part<'a> {
    Number(&'a [u8]),
    Bytes {
        tag: &'a [u8],
        width: usize,
        bytes: &'a [u8],
    },
}

/// Returns the fields of a message; `None` if the bytes are no message.
fn parts(mut message: &[u8]) -> Option<Vec<Part<'_>>> {
    let mut parts = Vec::new();
    while !message.is_empty() {
        let (tag, tag_width) = decode_varint_wrapping(message)?;
        let (head, rest) = message.split_at(tag_width);
        if !(1..=MAX_FIELD_NUMBER.into()).contains(&field_number(tag)) {
            return None;
        }
        let fixed = match wire_type(tag).ok()? {
            WireType::Varint => decode_varint_wrapping(rest)?.1,
            WireType::Fixed64 => 8,
            WireType::Fixed32 => 4,
            WireType::Bytes => {
                let (length, width) = decode_varint_wrapping(rest)?;
                let bytes = rest.get(width..width.checked_add(length as usize)?)?;
                message = &rest[width + bytes.len()..];
                let shortest = padded_varint(bytes.len(), 0).len();
                parts.push(Part::Bytes {
                    tag: head,
                    width: if width == shortest { 0 } else { width },
                    bytes,
                });
                continue;
            }
        };
        parts.push(Part::Number(message.get(..tag_width + fixed)?));
        message = &message[tag_width + fixed..];
    }
    Some(parts)
}

/// Of bytes that are no message.
const WORDS_A_LINE: usize = 40;

/// Prints a message as indented lines of a script, one for each field.
fn print(message: &[u8], indent: usize, out: &mut String) {
    let margin = " ".repeat(indent);
    let Some(parts) = parts(message) else {
        for line in hex_words(message).chunks(WORDS_A_LINE) {
            let _ = writeln!(out, "{margin}{}", line.join(" "));
        }
        return;
    };
    for part in parts {
        let _ = match part {
            Part::Number(bytes) => writeln!(out, "{margin}{}", hex(bytes)),
            Part::Bytes { tag, width, bytes } => {
                let width = if width == 0 {
                    String::new()
                } else {
                    width.to_string()
                };
                let _ = write!(out, "{margin}{} {{{width}", hex(tag));
                let is_text = bytes
                    .iter()
                    .all(|byte| matches!(byte, b' '..=b'~') && *byte != b'"');
                match std::str::from_utf8(bytes) {
                    _ if bytes.is_empty() => writeln!(out, "}}"),
                    Ok(text) if is_text => writeln!(out, " \"{text}\" }}"),
                    _ => {
                        let _ = writeln!(out);
                        print(bytes, indent + 2, out);
                        writeln!(out, "{margin}}}")
                    }
                }
            }
        };
    }
}

fn hex(bytes: &[u8]) -> String {
    hex_words(bytes).join(" ")
}

/// Returns a word for each byte, or for a run of equal ones.
fn hex_words(bytes: &[u8]) -> Vec<String> {
    const MANY: usize = 8;
    let mut words = Vec::new();
    for equal in bytes.chunk_by(|a, b| a == b) {
        match equal {
            [byte, ..] if equal.len() >= MANY => words.push(format!("{byte:02x}*{}", equal.len())),
            _ => words.extend(equal.iter().map(|byte| format!("{byte:02x}"))),
        }
    }
    words
}

/// Relays between one client, which connects to `here`, and the service at the other end of `service`; returns the script when the client has gone.
pub(crate) fn record(here: &Path, service: &UnixStream, port: &ServiceDescriptor) -> String {
    let listener = std::os::unix::net::UnixListener::bind(here).unwrap();
    let (client, _) = listener.accept().unwrap();
    let script = Mutex::new(String::new());
    std::thread::scope(|threads| {
        threads.spawn(|| {
            pass_on(&client, service, |frame, fd| {
                let mut printed = String::new();
                print(frame, 2, &mut printed);
                let read = parse(&format!("send\n{printed}"));
                assert!(
                    matches!(&read.unwrap()[..], [Step::Send { message, .. }] if message == frame),
                    "{printed}"
                );
                let with = match fd {
                    false => "",
                    true if port.name == CONSUMER_PORT.name => " with file",
                    true => " with memory",
                };
                let mut script = script.lock().unwrap();
                let _ = write!(script, "\nsend{with}{}\n{printed}", comment(frame, port));
            });
            let _ = service.shutdown(std::net::Shutdown::Both);
        });
        pass_on(service, &client, |frame, _| {
            let line = answer_line(frame);
            script.lock().unwrap().push_str(&line);
        });
    });
    script.into_inner().unwrap()
}

fn comment(frame: &[u8], port: &ServiceDescriptor) -> String {
    let frame = IPCFrame::decode_from_slice(frame).unwrap();
    let request = frame.request_id.unwrap_or_default();
    match &frame.msg {
        Some(Msg::MsgBindService(_)) => format!("  # {request}: bind"),
        Some(Msg::MsgInvokeMethod(call)) => {
            let method = port.methods[call.method_id.unwrap() as usize - 1];
            let silent = if call.drop_reply.unwrap_or_default() {
                ", no answer"
            } else {
                ""
            };
            format!("  # {request}: {method}{silent}")
        }
        _ => String::new(),
    }
}

fn answer_line(frame: &[u8]) -> String {
    let frame = IPCFrame::decode_from_slice(frame).unwrap();
    let request = frame.request_id.unwrap_or_default();
    match &frame.msg {
        Some(Msg::MsgBindServiceReply(_)) => format!("answer {request} ok\n"),
        Some(Msg::MsgInvokeMethodReply(reply)) => match (reply.success, reply.has_more) {
            (Some(true), Some(true)) => {
                let reply = reply.reply_proto.as_deref().unwrap_or_default();
                match Reader::new(reply).flatten().next() {
                    Some(field) => format!("command {request} {}\n", field.number),
                    None => format!("answer {request} more\n"),
                }
            }
            (Some(true), _) => format!("answer {request} ok\n"),
            _ => format!("answer {request} rejected\n"),
        },
        _ => format!("error {request}\n"),
    }
}

/// Passes all data on, with descriptors, until the sender has gone. Shows each frame to `see` first.
fn pass_on(from: &UnixStream, to: &UnixStream, mut see: impl FnMut(&[u8], bool)) {
    let mut waiting = Vec::new();
    let mut buffer = vec![0; 1 << 17];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = {
            let mut slices = [IoSliceMut::new(&mut buffer)];
            rustix::net::recvmsg(from, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)
        };
        let Ok(count @ 1..) = received.map(|message| message.bytes) else {
            return;
        };
        let fds: Vec<OwnedFd> = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten()
            .collect();
        waiting.extend_from_slice(&buffer[..count]);
        while let Some((header, rest)) = waiting.split_first_chunk::<4>() {
            let length = u32::from_le_bytes(*header) as usize;
            let Some(frame) = rest.get(..length) else { break };
            see(frame, !fds.is_empty());
            waiting.drain(..4 + length);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            let slices = [IoSlice::new(rest)];
            let Ok(sent) = rustix::net::sendmsg(to, &slices, &mut control, SendFlags::NOSIGNAL) else {
                return;
            };
            control.clear();
            rest = &rest[sent..];
        }
    }
}

/// Writes a recorded script.
pub(crate) fn save(name: &str, about: &str, script: &str) {
    let path = script_path(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, format!("{about}{script}")).unwrap();
}
