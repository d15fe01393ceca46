//! A client that uses frames: it sends anything in any order, and sees each answer as it came.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use ferretto_ipc::ports::ServiceDescriptor;
use ferretto_proto::messages::ipc_frame::Msg;
use ferretto_proto::messages::{
    DataSourceDescriptor, IPCFrame, Message, RegisterDataSourceRequest, TrackEventCategory,
    TrackEventDescriptor, ipc_frame,
};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use super::PATIENCE;

/// Returns a frame as it goes over the socket: the length and the message.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let mut frame = (message.len() as u32).to_le_bytes().to_vec();
    frame.extend_from_slice(message);
    frame
}

/// Returns a frame that calls method number `method` of the only bound service.
pub(crate) fn invoke(request: u64, method: u32, arguments: &[u8]) -> Vec<u8> {
    let frame = IPCFrame {
        request_id: Some(request),
        msg: Some(Msg::MsgInvokeMethod(Box::new(ipc_frame::InvokeMethod {
            service_id: Some(1),
            method_id: Some(method),
            args_proto: Some(arguments.to_vec()),
            ..Default::default()
        }))),
        ..Default::default()
    };
    framed(&frame.encode_to_vec())
}

/// The answer to a call.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) request: u64,
    /// The encoded reply; `None` if the call was rejected.
    pub(crate) reply: Option<Vec<u8>>,
    pub(crate) has_more: bool,
    /// The size of its frame in bytes.
    pub(crate) frame_size: usize,
    pub(crate) fd: Option<OwnedFd>,
}

impl Answer {
    /// Decodes the reply. Fails if the call was rejected.
    pub(crate) fn decode<M: Message + Default>(&self) -> M {
        let reply = self.reply.as_ref().expect("the call was rejected");
        M::decode_from_slice(reply).unwrap()
    }
}

/// Connects over TCP. To this type it is a socket like others.
pub(crate) fn over_network(address: &str) -> UnixStream {
    let stream = TcpStream::connect(address).expect("the service listens");
    UnixStream::from(OwnedFd::from(stream))
}

/// A connection on which one service is bound.
pub(crate) struct Client {
    stream: UnixStream,
    port: &'static ServiceDescriptor,
    last_request: u64,
    received: Vec<u8>,
    /// Received descriptors whose frames are still in `received`. Each has the length of `received` up to the data that it came with; it belongs to
    /// the frame of the last of these bytes.
    fds: VecDeque<(usize, OwnedFd)>,
    /// Answers to other calls than the awaited one.
    answers: VecDeque<Answer>,
}

impl Client {
    /// Connects without binding.
    pub(crate) fn unbound(socket: &Path, port: &'static ServiceDescriptor) -> Client {
        Client::over(UnixStream::connect(socket).expect("the service listens"), port)
    }

    /// Uses a connection, which may also be one of [`over_network`].
    pub(crate) fn over(stream: UnixStream, port: &'static ServiceDescriptor) -> Client {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Client {
            stream,
            port,
            last_request: 1,
            received: Vec::new(),
            fds: VecDeque::new(),
            answers: VecDeque::new(),
        }
    }

    /// Connects and binds.
    pub(crate) fn connect(socket: &Path, port: &'static ServiceDescriptor) -> Client {
        let mut client = Client::unbound(socket, port);
        let bind = IPCFrame {
            request_id: Some(1),
            msg: Some(Msg::MsgBindService(Box::new(ipc_frame::BindService {
                service_name: Some(port.name.to_owned()),
                ..Default::default()
            }))),
            ..Default::default()
        };
        client.send(&framed(&bind.encode_to_vec()), None);
        let (frame, ..) = client.next_frame().expect("an answer to the bind");
        assert!(
            matches!(frame.msg, Some(Msg::MsgBindServiceReply(_))),
            "{frame:?}"
        );
        client
    }

    /// Sends bytes, all of which the service has to take within a while.
    pub(crate) fn send(&mut self, bytes: &[u8], fd: Option<&OwnedFd>) {
        self.try_send(bytes, fd).expect("the service reads");
    }

    /// Sends bytes, unless the service hangs up.
    pub(crate) fn try_send(&mut self, mut bytes: &[u8], fd: Option<&OwnedFd>) -> Result<(), Errno> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        }
        while !bytes.is_empty() {
            let slices = [IoSlice::new(bytes)];
            let sent = rustix::io::retry_on_intr(|| {
                rustix::net::sendmsg(&self.stream, &slices, &mut control, SendFlags::NOSIGNAL)
            })?;
            control.clear();
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// Sends as many of the bytes as the socket takes at once; returns their number.
    pub(crate) fn send_what_fits(&mut self, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while sent < bytes.len() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::send(&self.stream, &bytes[sent..], flags) {
                Ok(count) => sent += count,
                Err(Errno::AGAIN) => break,
                Err(error) => panic!("{error}"),
            }
        }
        sent
    }

    /// Sends bytes, and keeps answers that come meanwhile, because the service does not read from a client that does not read.
    pub(crate) fn read_while_sending(&mut self, bytes: &[u8]) {
        let mut sent = 0;
        while sent < bytes.len() {
            sent += self.send_what_fits(&bytes[sent..]);
            while sent < bytes.len() && !self.takes_bytes() {
                assert!(self.receive(), "the service hung up");
            }
        }
    }

    /// Waits until the socket takes bytes or has some; returns whether it takes some.
    fn takes_bytes(&self) -> bool {
        let mut polled = [PollFd::new(&self.stream, PollFlags::IN | PollFlags::OUT)];
        let patience = PATIENCE.try_into().unwrap();
        assert!(
            rustix::event::poll(&mut polled, Some(&patience)).unwrap() > 0,
            "the service does not read"
        );
        polled[0].revents().contains(PollFlags::OUT)
    }

    /// Returns the numbers of the next call and of its method.
    fn next_call(&mut self, method: &str) -> (u64, u32) {
        self.last_request += 1;
        let position = self.port.methods.iter().position(|name| *name == method).unwrap();
        (self.last_request, position as u32 + 1)
    }

    /// Calls a method by name; returns the number of the call.
    pub(crate) fn call(&mut self, method: &str, arguments: &[u8]) -> u64 {
        self.call_with(method, arguments, None)
    }

    /// Calls a method with a descriptor.
    pub(crate) fn call_with(&mut self, method: &str, arguments: &[u8], fd: Option<&OwnedFd>) -> u64 {
        let (request, method) = self.next_call(method);
        self.send(&invoke(request, method, arguments), fd);
        request
    }

    /// Returns a call as bytes, to be sent together with others.
    pub(crate) fn encoded_call(&mut self, method: &str, arguments: &[u8]) -> Vec<u8> {
        let (request, method) = self.next_call(method);
        invoke(request, method, arguments)
    }

    /// Returns the next answer to this call.
    pub(crate) fn answer(&mut self, request: u64) -> Answer {
        if let Some(at) = self.answers.iter().position(|answer| answer.request == request) {
            return self.answers.remove(at).unwrap();
        }
        loop {
            let answer = self.next_answer().expect("the service hung up");
            if answer.request == request {
                return answer;
            }
            self.answers.push_back(answer);
        }
    }

    /// Calls a method and waits for the answer.
    pub(crate) fn ask(&mut self, method: &str, arguments: &[u8]) -> Answer {
        let request = self.call(method, arguments);
        self.answer(request)
    }

    /// Returns the next answer to any call; `None` if the service has hung up.
    pub(crate) fn next_answer(&mut self) -> Option<Answer> {
        let (frame, size, fd) = self.next_frame()?;
        match frame.msg {
            Some(Msg::MsgInvokeMethodReply(reply)) => Some(Answer {
                request: frame.request_id.unwrap_or_default(),
                reply: reply
                    .success
                    .unwrap_or_default()
                    .then(|| reply.reply_proto.clone().unwrap_or_default()),
                has_more: reply.has_more.unwrap_or_default(),
                frame_size: size,
                fd,
            }),
            other => panic!("no answer to a call: {other:?}"),
        }
    }

    /// Returns the next frame, its size, and its descriptor; `None` if the service has hung up.
    pub(crate) fn next_frame(&mut self) -> Option<(IPCFrame, usize, Option<OwnedFd>)> {
        loop {
            if let Some((header, rest)) = self.received.split_first_chunk::<4>() {
                let length = u32::from_le_bytes(*header) as usize;
                if let Some(message) = rest.get(..length) {
                    let frame = IPCFrame::decode_from_slice(message).unwrap();
                    let size = 4 + length;
                    self.received.drain(..size);
                    let is_its = self.fds.front().is_some_and(|(end, _)| *end <= size);
                    let fd = is_its.then(|| self.fds.pop_front()).flatten().map(|(_, fd)| fd);
                    for (end, _) in &mut self.fds {
                        *end -= size;
                    }
                    return Some((frame, size, fd));
                }
            }
            if !self.receive() {
                return None;
            }
        }
    }

    /// Reads once; `false` if the service has hung up.
    fn receive(&mut self) -> bool {
        let mut buffer = vec![0; 1 << 16];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::io::retry_on_intr(|| {
            let mut slices = [IoSliceMut::new(&mut buffer)];
            rustix::net::recvmsg(&self.stream, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)
        });
        match received {
            Ok(message) => {
                self.received.extend_from_slice(&buffer[..message.bytes]);
                let end = self.received.len();
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(fds) = message {
                        self.fds.extend(fds.map(|fd| (end, fd)));
                    }
                }
                message.bytes > 0
            }
            Err(Errno::CONNRESET) => false,
            Err(Errno::AGAIN) => panic!("the service says nothing"),
            Err(error) => panic!("{error}"),
        }
    }

    /// Whether the socket has no unread data.
    pub(crate) fn hears_nothing(&self) -> bool {
        let mut byte = [0];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        matches!(
            rustix::net::recv(&self.stream, &mut byte[..], flags),
            Err(Errno::AGAIN)
        )
    }
}

/// Returns a `RegisterDataSourceRequest` for a data source of this name.
pub(crate) fn registration(name: &str) -> Vec<u8> {
    registration_of(DataSourceDescriptor {
        name: Some(name.to_owned()),
        ..Default::default()
    })
}

/// The same for a data source with these categories.
pub(crate) fn registration_with(name: String, categories: Vec<TrackEventCategory>) -> Vec<u8> {
    registration_of(DataSourceDescriptor {
        name: Some(name),
        track_event_descriptor: TrackEventDescriptor {
            available_categories: categories,
            ..Default::default()
        }
        .into(),
        ..Default::default()
    })
}

/// Returns a `RegisterDataSourceRequest` for a data source with this descriptor.
pub(crate) fn registration_of(descriptor: DataSourceDescriptor) -> Vec<u8> {
    RegisterDataSourceRequest {
        data_source_descriptor: descriptor.into(),
        ..Default::default()
    }
    .encode_to_vec()
}
