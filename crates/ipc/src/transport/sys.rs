//! System calls about sockets that `rustix` has no safe form for: vsock addresses, the credentials of a peer whose process id does not exist here,
//! and groups by name. Called by [`super`] and its modules only.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::net::addr::{SocketAddrArg, SocketAddrLen, SocketAddrOpaque};
use rustix::net::{AddressFamily, SocketAddrAny};

use super::PeerCredentials;

/// `struct sockaddr_vm` of `linux/vm_sockets.h`.
#[repr(transparent)]
pub(super) struct VsockAddress(libc::sockaddr_vm);

impl VsockAddress {
    pub(super) fn new(cid: u32, port: u32) -> Self {
        // SAFETY: `sockaddr_vm` consists of integers only, for which all zeroes is a value.
        let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
        address.svm_family = libc::AF_VSOCK as libc::sa_family_t;
        address.svm_cid = cid;
        address.svm_port = port;
        VsockAddress(address)
    }
}

// SAFETY: `with_sockaddr` hands out a pointer to a whole, initialised `sockaddr_vm` that outlives the call, together with its size, and the family
// field gives its type.
unsafe impl SocketAddrArg for VsockAddress {
    unsafe fn with_sockaddr<R>(&self, f: impl FnOnce(*const SocketAddrOpaque, SocketAddrLen) -> R) -> R {
        const { assert!(offset_of!(libc::sockaddr_vm, svm_family) == 0) };
        f(
            (&raw const self.0).cast(),
            size_of::<libc::sockaddr_vm>() as SocketAddrLen,
        )
    }
}

/// The context id in a vsock address; `None` for addresses of other kinds.
pub(super) fn vsock_cid(address: &SocketAddrAny) -> Option<u32> {
    let is_whole = address.addr_len() as usize >= size_of::<libc::sockaddr_vm>();
    if address.address_family() != AddressFamily::VSOCK || !is_whole {
        return None;
    }
    // SAFETY: the pointer is to as many initialised bytes as the address is long, which are enough, and any bytes make a
    // `sockaddr_vm`, which consists of integers.
    let address = unsafe { address.as_ptr().cast::<libc::sockaddr_vm>().read_unaligned() };
    Some(address.svm_cid)
}

/// Reads `SO_PEERCRED`.
///
/// `rustix::net::sockopt::socket_peercred` types the process id as non-zero, but the kernel reports 0 for a
/// peer in a process namespace that is not ours nor below ours (a producer outside the container of the
/// service), so the option is read here as plain integers.
pub(super) fn peer_credentials(socket: BorrowedFd<'_>) -> Result<PeerCredentials, Errno> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers are to live locals, `length` is the size of the buffer, and any bytes the kernel
    // stores make a valid `ucred`, which consists of integers.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(PeerCredentials {
        uid: credentials.uid,
        pid: (credentials.pid > 0).then_some(credentials.pid),
    })
}

/// The id of the group of this name, from wherever this system keeps its groups.
pub(super) fn group_id(name: &CStr) -> Result<Option<u32>, Errno> {
    /// A group may have many members, whose names are put there as well.
    const ENOUGH: usize = 1 << 24;
    let mut names = vec![0_u8; 1 << 10];
    loop {
        // SAFETY: `group` consists of pointers and integers, for which all zeroes is a value.
        let mut group: libc::group = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        // SAFETY: the name ends with a NUL byte, the pointers are to live locals, and the buffer is as long as it is said to be.
        let error = unsafe {
            libc::getgrnam_r(
                name.as_ptr(),
                &raw mut group,
                names.as_mut_ptr().cast(),
                names.len(),
                &raw mut found,
            )
        };
        match error {
            0 => return Ok((!found.is_null()).then_some(group.gr_gid)),
            libc::EINTR => {}
            libc::ERANGE if names.len() < ENOUGH => names.resize(names.len() * 2, 0),
            // Several systems report an unknown name in this way.
            libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM => return Ok(None),
            error => return Err(Errno::from_raw_os_error(error)),
        }
    }
}
