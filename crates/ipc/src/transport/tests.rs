//! Sockets of every kind: bytes and descriptors arrive, names behave, peers are known.

#[path = "../../tests/reference/socket_folder.rs"]
mod socket_folder;

use std::io::{Read, Seek};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;

use socket_folder::socket_folder;

use super::*;
use crate::frame::{FrameDecoder, HEADER, OutgoingFrame};

fn wait_for(fd: impl AsFd, flags: PollFlags) {
    let mut poll = [PollFd::new(&fd, flags)];
    rustix::event::poll(&mut poll, None).unwrap();
}

/// Receives until a whole frame is there.
fn receive_frame(stream: &mut Stream, decoder: &mut FrameDecoder) -> (Vec<u8>, Option<OwnedFd>) {
    let mut buffer = [0; 1000];
    loop {
        if let Some(mut frame) = decoder.next_frame().unwrap() {
            return (
                decoder.body(&frame).to_vec(),
                frame.fd.take().map(PassedFd::into_inner),
            );
        }
        wait_for(&*stream, PollFlags::IN);
        let mut fd = None;
        match stream.recv(&mut buffer, &mut fd).unwrap() {
            Received::Bytes(count) => decoder.push(&buffer[..count], fd),
            Received::WouldBlock => {}
            Received::Closed => panic!("the stream ended within a frame"),
        }
    }
}

fn send_all(stream: &mut Stream, queue: &mut OutgoingQueue, peer: &mut Stream, decoder: &mut FrameDecoder) {
    let mut buffer = [0; 3000];
    while stream.flush(queue).unwrap() == Flushed::WouldBlock {
        let mut fd = None;
        if let Received::Bytes(count) = peer.recv(&mut buffer, &mut fd).unwrap() {
            decoder.push(&buffer[..count], fd);
        }
    }
}

fn accept(listener: &Listener) -> Stream {
    wait_for(listener, PollFlags::IN);
    listener.accept().unwrap().expect("a connection waits")
}

fn file_with(text: &str) -> OwnedFd {
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
    file.rewind().unwrap();
    file.into()
}

fn contents(fd: OwnedFd) -> String {
    let mut text = String::new();
    std::fs::File::from(fd).read_to_string(&mut text).unwrap();
    text
}

#[test]
fn each_descriptor_arrives_with_its_own_frame_among_others_of_all_sizes() {
    let (mut ours, mut theirs) = Stream::pair().unwrap();
    let mut queue = OutgoingQueue::new(10_000_000);
    let sizes = [0, 5, 100_000, 1, 70_000, 1000, 0, 3];
    for (position, size) in sizes.into_iter().enumerate() {
        let mut payload = format!("frame {position}").into_bytes();
        payload.resize(payload.len() + size, b'.');
        let fd = (position % 2 == 1).then(|| file_with(&format!("file {position}")));
        queue.push(OutgoingFrame::for_tests(payload, fd)).unwrap();
    }
    let mut decoder = FrameDecoder::new();
    send_all(&mut ours, &mut queue, &mut theirs, &mut decoder);
    for position in 0..sizes.len() {
        let (body, fd) = receive_frame(&mut theirs, &mut decoder);
        assert!(
            body.starts_with(format!("frame {position}").as_bytes()),
            "frame {position}"
        );
        let expected = (position % 2 == 1).then(|| format!("file {position}"));
        assert_eq!(fd.map(contents), expected, "frame {position}");
    }
}

#[test]
fn received_descriptors_do_not_leak_into_child_processes() {
    let (mut ours, mut theirs) = Stream::pair().unwrap();
    let mut queue = OutgoingQueue::new(100);
    queue
        .push(OutgoingFrame::for_tests(b"x".to_vec(), Some(file_with(""))))
        .unwrap();
    ours.flush(&mut queue).unwrap();
    let (_, fd) = receive_frame(&mut theirs, &mut FrameDecoder::new());
    let flags = rustix::io::fcntl_getfd(fd.unwrap()).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
}

#[test]
fn a_flood_of_descriptors_ends_the_connection() {
    let (ours, mut theirs) = Stream::pair().unwrap();
    let files: Vec<OwnedFd> = (0..20).map(|_| file_with("")).collect();
    let borrowed: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(20))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
    rustix::net::sendmsg(&ours, &[IoSlice::new(b"x")], &mut control, SendFlags::NOSIGNAL).unwrap();
    let error = theirs.recv(&mut [0; 10], &mut None).unwrap_err();
    assert!(matches!(error, TransportError::FdsCutOff), "{error}");
}

#[test]
fn nothing_to_read_is_distinguished_from_the_end_of_the_stream() {
    let (ours, mut theirs) = Stream::pair().unwrap();
    assert_eq!(
        theirs.recv(&mut [0; 10], &mut None).unwrap(),
        Received::WouldBlock
    );
    drop(ours);
    assert_eq!(theirs.recv(&mut [0; 10], &mut None).unwrap(), Received::Closed);
    let mut queue = OutgoingQueue::new(100);
    queue.push(OutgoingFrame::for_tests(b"x".to_vec(), None)).unwrap();
    assert!(matches!(
        theirs.flush(&mut queue),
        Err(TransportError::Send(Errno::PIPE))
    ));
}

#[test]
fn unix_sockets_replace_stale_ones_know_their_peer_and_take_permissions() {
    let directory = socket_folder("ferretto-test-");
    let path = directory.path().join("socket");
    let address = Address::Unix(path.clone());
    assert!(Stream::connect(&address).unwrap_err().is_unreachable());

    drop(Listener::bind(&address).unwrap());
    assert!(path.exists(), "a dead service leaves its socket file");
    assert!(Stream::connect(&address).unwrap_err().is_unreachable());

    let listener = Listener::bind(&address).unwrap();
    assert!(listener.accept().unwrap().is_none());
    let client = Stream::connect(&address).unwrap();
    let server = accept(&listener);
    let expected = PeerCredentials {
        uid: rustix::process::geteuid().as_raw(),
        pid: Some(rustix::process::getpid().as_raw_nonzero().get()),
    };
    assert_eq!(server.peer_credentials().unwrap(), Some(expected));
    assert_eq!(client.peer_credentials().unwrap(), Some(expected));

    listener.close();
    let permissions: SocketPermissions = "-1:0640".parse().unwrap();
    let _listener = Listener::bind_with(&address, &permissions).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o640);
}

#[test]
fn a_link_to_a_socket_is_as_stale_as_that() {
    let directory = socket_folder("ferretto-test-");
    let (target, link) = (directory.path().join("target"), directory.path().join("link"));
    let address = Address::Unix(link.clone());
    let target_address = Address::Unix(target.clone());
    std::os::unix::fs::symlink(&target, &link).unwrap();
    assert!(
        Stream::connect(&address).unwrap_err().is_unreachable(),
        "it leads nowhere"
    );

    let listener = Listener::bind(&target_address).unwrap();
    let error = Listener::bind(&address).unwrap_err();
    assert!(matches!(error, TransportError::Occupied { .. }), "{error}");
    drop(listener);
    assert!(Stream::connect(&address).unwrap_err().is_unreachable());

    let listener = Listener::bind(&address).unwrap();
    Stream::connect(&address).unwrap();
    assert!(!link.is_symlink() && target.exists(), "only the link is replaced");
    listener.close();

    std::fs::remove_file(&target).unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    Listener::bind(&address).unwrap().close();

    std::fs::write(&target, "").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let error = Listener::bind(&address).unwrap_err();
    assert!(matches!(error, TransportError::NotASocket(_)), "{error}");
    assert!(link.is_symlink() && target.exists());
}

#[test]
fn only_files_have_permissions() {
    let permissions: SocketPermissions = "-1:0640".parse().unwrap();
    for name in ["@ferretto-test-permissions", "127.0.0.1:0"] {
        let error = Listener::bind_with(&name.parse().unwrap(), &permissions).unwrap_err();
        assert!(matches!(error, TransportError::NoFile(_)), "{error}");
    }
}

#[test]
fn a_socket_that_somebody_listens_on_is_left_to_them() {
    let directory = socket_folder("ferretto-test-");
    let address = Address::Unix(directory.path().join("socket"));
    let listener = Listener::bind(&address).unwrap();
    let error = Listener::bind(&address).unwrap_err();
    let us = rustix::process::getpid().as_raw_nonzero().get();
    assert!(
        matches!(error, TransportError::Occupied { pid: Some(pid), .. } if pid == us),
        "{error}"
    );
    assert!(error.to_string().contains(&us.to_string()), "{error}");
    // It was a connection like any other, and is over.
    let mut asked = accept(&listener);
    assert_eq!(asked.recv(&mut [0; 10], &mut None).unwrap(), Received::Closed);
    Stream::connect(&address).unwrap();
}

#[test]
fn names_that_are_no_files_have_one_listener_as_well() {
    let process = rustix::process::getpid().as_raw_pid();
    let [.., high, low] = process.to_be_bytes();
    // A host of this process alone.
    let tcp = format!("127.1.{high}.{low}:20001");
    let name = format!("@ferretto-test-twice-{process}");
    for name in [tcp, name] {
        let address: Address = name.parse().unwrap();
        let listener = Listener::bind(&address).unwrap();
        let error = Listener::bind(&address).unwrap_err();
        assert!(
            error.to_string().contains("another service listens there"),
            "{error}"
        );
        listener.close();
        Listener::bind(&address).unwrap();
    }
}

#[test]
fn a_socket_of_another_kind_is_left_alone() {
    let directory = socket_folder("ferretto-test-");
    let path = directory.path().join("socket");
    let _datagrams = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    let error = Listener::bind(&Address::Unix(path.clone())).unwrap_err();
    assert!(
        matches!(error, TransportError::Occupied { pid: None, .. }),
        "{error}"
    );
    assert!(path.exists());
}

#[test]
fn a_listener_that_is_closed_removes_its_own_file_only() {
    let directory = socket_folder("ferretto-test-");
    let path = directory.path().join("socket");
    let address = Address::Unix(path.clone());
    Listener::bind(&address).unwrap().close();
    assert!(!path.exists());

    let first = Listener::bind(&address).unwrap();
    std::fs::remove_file(&path).unwrap();
    let _second = Listener::bind(&address).unwrap();
    first.close();
    assert!(path.exists(), "the name is the other's now");
    Stream::connect(&address).unwrap();
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = Listener::bind(&Address::Unix(file.path().into())).unwrap_err();
    assert!(matches!(error, TransportError::NotASocket(_)), "{error}");
    assert!(file.path().exists());
}

fn exchange(listener: &Listener, mut client: Stream) {
    let mut queue = OutgoingQueue::new(1000);
    queue
        .push(OutgoingFrame::for_tests(b"hello".to_vec(), None))
        .unwrap();
    while client.flush(&mut queue).unwrap() == Flushed::WouldBlock {
        wait_for(&client, PollFlags::OUT);
    }
    let mut server = accept(listener);
    let (body, _) = receive_frame(&mut server, &mut FrameDecoder::new());
    assert_eq!(body, b"hello");
}

#[test]
fn abstract_names_and_tcp_work_like_paths() {
    let name = format!("ferretto-test-{}", rustix::process::getpid().as_raw_nonzero());
    let address = Address::Abstract(name);
    let listener = Listener::bind(&address).unwrap();
    exchange(&listener, Stream::connect(&address).unwrap());

    let std_listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = std_listener.local_addr().unwrap().port();
    let listener = Listener::from_fd(std_listener.into()).unwrap();
    let client = Stream::connect(&Address::Tcp {
        host: "localhost".into(),
        port,
    })
    .unwrap();
    assert!(!client.passes_fds());
    assert_eq!(client.peer_credentials().unwrap(), None);
    exchange(&listener, client);
}

#[test]
fn connections_from_one_machine_have_one_host() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let clients = [(); 2].map(|()| std::net::TcpStream::connect(address).unwrap());
    for client in clients {
        let (served, from) = listener.accept().unwrap();
        let stream = Stream::from_fd(served.into()).unwrap();
        assert_eq!(stream.peer_host().as_deref(), Some("127.0.0.1"), "{from}");
        drop(client);
    }
    assert_eq!(Stream::pair().unwrap().0.peer_host(), None, "it is this machine");
}

#[test]
fn a_refused_tcp_connection_is_an_error_by_the_first_read() {
    let (_bound, address) = refusing("127.0.0.1");
    let failed = match Stream::connect(&Address::Tcp {
        host: "127.0.0.1".into(),
        port: address.port(),
    }) {
        Err(error) => error.is_unreachable(),
        Ok(mut client) => {
            wait_for(&client, PollFlags::OUT);
            matches!(
                client.recv(&mut [0; 1], &mut None),
                Err(TransportError::Receive(Errno::CONNREFUSED))
            )
        }
    };
    assert!(failed);
}

/// An address of this loopback host at which nobody listens. It belongs to the socket, so that nobody else will.
fn refusing(host: &str) -> (OwnedFd, SocketAddr) {
    let host: IpAddr = host.parse().unwrap();
    let family = match host {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let bound = rustix::net::socket(family, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&bound, &SocketAddr::from((host, 0))).unwrap();
    let address = rustix::net::getsockname(&bound).unwrap().try_into().unwrap();
    (bound, address)
}

#[test]
fn the_addresses_of_a_name_are_tried_until_one_accepts_on_the_same_descriptor() {
    let std_listener = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
    let good = std_listener.local_addr().unwrap();
    let listener = Listener::from_fd(std_listener.into()).unwrap();
    let (mut bound, mut addresses): (Vec<_>, Vec<_>) = (0..2).map(|_| refusing("127.0.0.1")).unzip();
    for _ in 0..2 {
        let mut all = addresses.clone();
        all.push(good);
        let client = Stream::connect_in_turn(&all).unwrap();
        let fd = client.as_fd().try_clone_to_owned().unwrap();
        exchange(&listener, client);
        let peer = rustix::net::getpeername(&fd).unwrap().unwrap();
        let peer = SocketAddr::try_from(peer).unwrap();
        assert_eq!((peer.ip().to_canonical(), peer.port()), (good.ip(), good.port()));
        // The same with both families.
        match std::net::TcpListener::bind("[::1]:0") {
            Ok(_) => {
                let (socket, address) = refusing("::1");
                bound.push(socket);
                addresses.insert(0, address);
            }
            Err(error) => return println!("skipped: this kernel has no IPv6: {error}"),
        }
    }
    let mut client = Stream::connect_in_turn(&addresses).unwrap();
    let refused = std::iter::repeat_with(|| {
        wait_for(&client, PollFlags::OUT);
        client.is_connected()
    });
    let refused = refused.take(addresses.len()).find(|end| *end != Ok(false));
    assert_eq!(refused, Some(Err(Errno::CONNREFUSED)));
}

#[test]
fn an_address_that_does_not_answer_does_not_keep_a_client_from_the_next() {
    let deaf = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&deaf, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    rustix::net::listen(&deaf, 0).unwrap();
    let address: SocketAddr = rustix::net::getsockname(&deaf).unwrap().try_into().unwrap();
    // The kernel drops attempts at a full queue, without a word.
    let _queue: Vec<Stream> = (0..8)
        .map(|_| Stream::connect_in_turn(&[address]).unwrap())
        .collect();
    let std_listener = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
    let good = std_listener.local_addr().unwrap();
    let listener = Listener::from_fd(std_listener.into()).unwrap();
    exchange(&listener, Stream::connect_in_turn(&[address, good]).unwrap());
}

#[test]
fn a_client_leaves_an_address_at_which_nobody_answers_it_for_the_next_and_the_last_is_the_last() {
    let listeners = ["127.0.0.1:0", "127.0.0.2:0"].map(|host| std::net::TcpListener::bind(host).unwrap());
    let addresses = listeners
        .each_ref()
        .map(|listener| listener.local_addr().unwrap());
    let [first, second] = listeners.map(|listener| Listener::from_fd(listener.into()).unwrap());
    let mut client = Stream::connect_in_turn(&addresses).unwrap();
    let mut closed = accept(&first);
    closed.write(b"what is left unread is of the past").unwrap();
    drop(closed);
    wait_for(&client, PollFlags::IN);
    assert!(client.connect_to_next());
    exchange(&second, client);

    let mut client = Stream::connect_in_turn(&addresses[..1]).unwrap();
    assert!(!client.connect_to_next());
    exchange(&first, client);
}

#[test]
fn vsock_works_where_the_kernel_has_a_loopback_for_it() {
    const LOOPBACK: u32 = 1;
    let port = 0x4000_0000 + rustix::process::getpid().as_raw_nonzero().get() as u32;
    let listener = match Listener::bind(&Address::Vsock { cid: u32::MAX, port }) {
        Ok(listener) => listener,
        Err(error) => return println!("skipped: this kernel has no vsock: {error}"),
    };
    match Stream::connect(&Address::Vsock { cid: LOOPBACK, port }) {
        Ok(client) => {
            // Without a loopback the kernel tries for seconds; with one it is there at once.
            let patience = rustix::event::Timespec {
                tv_sec: 0,
                tv_nsec: 300_000_000,
            };
            let mut poll = [PollFd::new(&client, PollFlags::OUT)];
            if rustix::event::poll(&mut poll, Some(&patience)).unwrap() == 0 {
                return println!("skipped: this kernel has no vsock loopback that answers");
            }
            if let Err(error) = sockopt::socket_error(&client).unwrap() {
                return println!("skipped: this kernel has no vsock loopback: {error}");
            }
            assert_eq!(client.peer_host().as_deref(), Some("vsock://1"));
            exchange(&listener, client);
        }
        Err(error) => println!("skipped: this kernel has no vsock loopback: {error}"),
    }
}

#[test]
fn frames_start_with_their_length() {
    let (mut ours, mut theirs) = Stream::pair().unwrap();
    let mut queue = OutgoingQueue::new(100);
    queue.push(OutgoingFrame::for_tests(vec![9; 3], None)).unwrap();
    ours.flush(&mut queue).unwrap();
    let mut buffer = [0; 100];
    let received = theirs.recv(&mut buffer, &mut None).unwrap();
    assert_eq!(received, Received::Bytes(HEADER + 3));
    assert_eq!(buffer[..HEADER], [3, 0, 0, 0]);
}
