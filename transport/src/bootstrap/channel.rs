//! A nonblocking control connection, and the wait for several of them.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, connect, setsockopt, socket,
    sockopt,
};

use super::frame::FrameBuffer;

/// Unacknowledged data, or silence, of a host for this long means that the host is gone.
const HOST_TIMEOUT: Duration = Duration::from_secs(30);

const READ_BYTES: usize = 16 << 10;

/// What one read gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Bytes, which are in [`Channel::input`] now.
    Bytes,
    /// Nothing for now.
    Nothing,
    /// The other end has closed.
    Closed,
}

/// A connection with its buffers.
pub(crate) struct Channel {
    stream: TcpStream,
    /// What has arrived.
    pub(crate) input: FrameBuffer,
    output: Vec<u8>,
    written: usize,
}

impl Channel {
    /// Takes over a connection, which need not be complete.
    pub(crate) fn new(stream: TcpStream) -> std::io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, input: FrameBuffer::default(), output: Vec::new(), written: 0 })
    }

    /// Starts to connect; the channel is writable when that has succeeded or failed.
    pub(crate) fn dial(address: SocketAddr) -> std::io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket: OwnedFd = socket(family, SockType::Stream, flags, SockProtocol::Tcp)?;
        match connect(std::os::fd::AsRawFd::as_raw_fd(&socket), &SockaddrStorage::from(address)) {
            Ok(()) | Err(Errno::EINPROGRESS | Errno::EINTR) => Self::new(TcpStream::from(socket)),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes the kernel notice a host that has vanished. A stopped process answers through its
    /// kernel and stays alive.
    pub(crate) fn watch_host(&self) -> std::io::Result<()> {
        setsockopt(&self.stream, sockopt::KeepAlive, &true)?;
        setsockopt(&self.stream, sockopt::TcpKeepIdle, &15)?;
        setsockopt(&self.stream, sockopt::TcpKeepInterval, &5)?;
        setsockopt(&self.stream, sockopt::TcpKeepCount, &3)?;
        setsockopt(&self.stream, sockopt::TcpUserTimeout, &(HOST_TIMEOUT.as_millis() as u32))?;
        Ok(())
    }

    /// How connecting ended, if it failed.
    pub(crate) fn connect_error(&self) -> Option<std::io::Error> {
        match self.stream.take_error() {
            Ok(error) => error,
            Err(error) => Some(error),
        }
    }

    /// Reads once.
    pub(crate) fn receive(&mut self) -> std::io::Result<Received> {
        let mut bytes = [0; READ_BYTES];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Ok(Received::Closed),
                Ok(count) => {
                    self.input.extend(&bytes[..count]);
                    return Ok(Received::Bytes);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok(Received::Nothing);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Queues bytes; [`Channel::flush`] writes them.
    pub(crate) fn queue(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
    }

    /// Bytes that are queued and not written.
    pub(crate) fn unwritten(&self) -> usize {
        self.output.len() - self.written
    }

    /// Writes as much as the kernel takes.
    pub(crate) fn flush(&mut self) -> std::io::Result<()> {
        while self.unwritten() > 0 {
            match self.stream.write(&self.output[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.output.drain(..self.written);
        self.written = 0;
        Ok(())
    }

    /// Forgets what is not written: the other end is gone.
    pub(crate) fn discard_output(&mut self) {
        self.output.clear();
        self.written = 0;
    }

    /// What to wait for: bytes to read, and room if there are bytes to write.
    pub(crate) fn interest(&self) -> PollFlags {
        let writing = if self.unwritten() > 0 { PollFlags::POLLOUT } else { PollFlags::empty() };
        PollFlags::POLLIN | writing
    }

    /// The address of this end.
    pub(crate) fn local_address(&self) -> std::io::Result<SocketAddr> {
        self.stream.local_addr()
    }

    /// Says that nothing more will be written; what was written still arrives.
    pub(crate) fn end_writing(&self) {
        // A connection that is gone already has nothing to end.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Sleeps until one of `interests` is ready or `until` has come (`None`: for ever); what is ready
/// of each, in their order. May come back early with nothing.
pub(crate) fn wait(
    interests: &[(BorrowedFd<'_>, PollFlags)],
    until: Option<Instant>,
) -> std::io::Result<Vec<PollFlags>> {
    let mut fds: Vec<PollFd<'_>> =
        interests.iter().map(|(fd, flags)| PollFd::new(*fd, *flags)).collect();
    match nix::poll::poll(&mut fds, poll_timeout(until)) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(fds.iter().map(|fd| fd.revents().unwrap_or(PollFlags::empty())).collect())
}

fn poll_timeout(until: Option<Instant>) -> PollTimeout {
    let Some(until) = until else { return PollTimeout::NONE };
    let left = until.saturating_duration_since(Instant::now());
    // Rounded up, so that the time has come when poll returns.
    let millis = if left.is_zero() { 0 } else { left.as_millis() + 1 };
    PollTimeout::from(u16::try_from(millis).unwrap_or(u16::MAX))
}
