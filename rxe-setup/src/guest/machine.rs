//! The qemu process: its command line, its life and its streams.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getpid, getppid};

use super::stream::{Ended, copy_until};
use super::{Accelerator, GuestOptions, Output};
use crate::error::{Error, Result};
use crate::kernel::Image;

const QEMU: &str = "qemu-system-x86_64";
/// The hidden subcommand by which this program becomes qemu: see [`exec_qemu`].
pub(crate) const EXEC_QEMU: &str = "exec-qemu";
/// The kernel's command line: end on a panic, no time for what a short test needs not.
///
/// The self-tests of ciphers, the keys that verify modules and the tracer take a quarter of an
/// emulated boot; names that a kernel has not are ignored.
const KERNEL_LINE: &str = "console=ttyS0 quiet panic=-1 oops=panic mitigations=off \
    cryptomgr.notests=1 initcall_blacklist=init_kprobe_trace,crypto_kdf108_init,\
    load_system_certificate_list,init_encrypted,init_zswap";
/// More of it for an emulated guest. Its clock is the host's time stamp counter, the same on every
/// processor, though emulation fools the kernel's test of that. Translated code is kept by address,
/// so that a process starts three times as fast where its libraries lie at the same addresses as
/// before.
const KERNEL_LINE_EMULATED: &str = " tsc=reliable norandmaps";
/// The emulated processor: x86-64-v2 with random numbers. The translator's full set (`max`) boots a
/// third slower and copies memory at half the speed.
const EMULATED_CPU: &str = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt,+cx16,+rdrand";
/// Events that may wait for the main thread; the readers wait when there are more.
const EVENTS: usize = 256;
/// A longer line of the guest's console or control port is cut.
const LINE_BYTES: u64 = 4096;

/// One of the four streams between the guest and us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    /// The serial console, and what qemu itself says.
    Console,
    /// The reports of the guest's init.
    Control,
    /// The command's standard output.
    Stdout,
    /// The command's standard error.
    Stderr,
}

/// Something that came from the guest.
#[derive(Debug)]
pub(crate) enum Event {
    /// A line on the console.
    Console(String),
    /// A report of the guest's init.
    Control(String),
    /// A stream has ended. The console ends with the qemu process.
    End(Stream),
    /// What the command writes cannot be passed on.
    SinkClosed(io::Error),
}

/// A running qemu. It is killed when this is dropped, and by the kernel when our process ends.
#[derive(Debug)]
pub(crate) struct Machine {
    qemu: Child,
    events: Receiver<Event>,
    sender: SyncSender<Event>,
    /// Taken when streaming begins.
    output: Option<(UnixStream, UnixStream)>,
}

impl Machine {
    /// Powers a guest on. `job` is appended to the initramfs.
    ///
    /// Call it from the main thread: the guest ends with the thread that made it.
    pub(crate) fn start(
        image: &Image,
        accelerator: Accelerator,
        options: &GuestOptions,
        job: &[u8],
    ) -> Result<Self> {
        let error = |what| move |source| Error::System { what, source };
        let initramfs = appended(image, job)?;
        let pair = || UnixStream::pair().map_err(error("make a socket pair"));
        let (console, guest_console) = pair()?;
        let (control, guest_control) = pair()?;
        let (stdout, guest_stdout) = pair()?;
        let (stderr, guest_stderr) = pair()?;
        let ports = Ports {
            initramfs: inheritable(&initramfs)?,
            console: inheritable(&guest_console)?,
            control: inheritable(&guest_control)?,
            stdout: inheritable(&guest_stdout)?,
            stderr: inheritable(&guest_stderr)?,
        };
        let says =
            || -> io::Result<Stdio> { Ok(Stdio::from(OwnedFd::from(guest_console.try_clone()?))) };
        let qemu = Command::new("/proc/self/exe")
            .arg(EXEC_QEMU)
            .arg(getpid().to_string())
            .args(qemu_args(image, accelerator, options, &ports))
            .stdin(Stdio::null())
            .stdout(says().map_err(error("duplicate a socket"))?)
            .stderr(says().map_err(error("duplicate a socket"))?)
            .spawn()
            .map_err(error("start qemu"))?;
        let (sender, events) = sync_channel(EVENTS);
        read_lines(console, Stream::Console, sender.clone());
        read_lines(control, Stream::Control, sender.clone());
        Ok(Self { qemu, events, sender, output: Some((stdout, stderr)) })
    }

    /// The next event before the deadline.
    pub(crate) fn next_event(&mut self, deadline: Instant) -> Option<Event> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.events.recv_timeout(left).ok()
    }

    /// Passes the command's output on from now, up to `mark` on each stream.
    pub(crate) fn stream_output(&mut self, output: Output, mark: &[u8]) -> Result<()> {
        let Some((stdout, stderr)) = self.output.take() else {
            return Err(Error::Usage("the output of a guest can be streamed only once".to_owned()));
        };
        let sinks =
            [(stdout, output.stdout, Stream::Stdout), (stderr, output.stderr, Stream::Stderr)];
        for (from, mut to, stream) in sinks {
            let (sender, mark) = (self.sender.clone(), mark.to_vec());
            thread::spawn(move || {
                let event = match copy_until(from, &mut *to, &mark) {
                    Ended::Complete => Event::End(stream),
                    // The console's end tells of a guest that is gone.
                    Ended::CutShort => return,
                    Ended::SinkClosed(error) => Event::SinkClosed(error),
                };
                let _nobody_waits = sender.send(event);
            });
        }
        Ok(())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ended = self.qemu.kill();
        let _ended = self.qemu.wait();
    }
}

/// The file descriptors that qemu inherits.
struct Ports {
    initramfs: RawFd,
    console: RawFd,
    control: RawFd,
    stdout: RawFd,
    stderr: RawFd,
}

fn qemu_args(
    image: &Image,
    accelerator: Accelerator,
    options: &GuestOptions,
    ports: &Ports,
) -> Vec<String> {
    let mut args: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| args.extend(words.iter().map(|word| (*word).to_owned()));
    add(&["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
    add(&["-machine", "q35"]);
    let mut kernel_line = KERNEL_LINE.to_owned();
    match accelerator {
        Accelerator::Kvm => add(&["-accel", "kvm", "-cpu", "host"]),
        Accelerator::Emulation => {
            add(&["-accel", "tcg,thread=multi", "-cpu", EMULATED_CPU]);
            kernel_line.push_str(KERNEL_LINE_EMULATED);
        }
    }
    add(&["-m", &format!("{}M", options.memory_mib), "-smp", &options.cpus.to_string()]);
    add(&["-kernel", &image.kernel.to_string_lossy()]);
    add(&["-initrd", &format!("/proc/self/fd/{}", ports.initramfs)]);
    add(&["-append", &kernel_line]);
    add(&["-chardev", &format!("socket,id=console,fd={}", ports.console)]);
    add(&["-serial", "chardev:console"]);
    add(&["-device", "virtio-serial-pci"]);
    let streams = [("control", ports.control), ("stdout", ports.stdout), ("stderr", ports.stderr)];
    for (number, (name, fd)) in streams.iter().enumerate() {
        add(&["-chardev", &format!("socket,id={name},fd={fd}")]);
        let nr = number + 1;
        add(&["-device", &format!("virtserialport,chardev={name},name={name},nr={nr}")]);
    }
    // Folders on other file systems appear in the same share: their inode numbers are kept apart.
    add(&["-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"]);
    add(&["-device", "virtio-9p-pci,fsdev=host,mount_tag=host"]);
    for (number, share) in options.shares.iter().enumerate() {
        let path = share.to_string_lossy().replace(',', ",,");
        let id = format!("share{number}");
        add(&["-fsdev", &format!("local,id={id},path={path},security_model=none,multidevs=remap")]);
        add(&["-device", &format!("virtio-9p-pci,fsdev={id},mount_tag={id}")]);
    }
    args
}

/// Turns this process into qemu: the hidden subcommand's whole work.
///
/// Before it does, it asks the kernel to be killed when the process that started it ends, however
/// that ends, so that no guest is ever left over.
pub(crate) fn exec_qemu(parent: i32, args: &[String]) -> Result<std::convert::Infallible> {
    let error = |what| move |errno: nix::Error| Error::System { what, source: errno.into() };
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(error("tie the guest to its parent"))?;
    if getppid() != Pid::from_raw(parent) {
        return Err(Error::Usage("the process that wanted a guest is gone".to_owned()));
    }
    let source = Command::new(QEMU).args(args).exec();
    Err(Error::Start { program: QEMU.to_owned(), source })
}

/// The initramfs with the job's archive behind it, as a file without a name.
fn appended(image: &Image, job: &[u8]) -> Result<File> {
    let content = std::fs::read(&image.initramfs).map_err(Error::file("read", &image.initramfs))?;
    let system = |source| Error::System { what: "make a file in memory", source };
    let fd = memfd_create("initramfs", MFdFlags::empty()).map_err(|errno| system(errno.into()))?;
    let mut file = File::from(fd);
    file.write_all(&content).and_then(|()| file.write_all(job)).map_err(system)?;
    Ok(file)
}

/// Lets the child inherit a descriptor. Only the one child is started while it is open.
fn inheritable(fd: &(impl AsRawFd + std::os::fd::AsFd)) -> Result<RawFd> {
    fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))
        .map_err(|errno| Error::System { what: "pass a descriptor on", source: errno.into() })?;
    Ok(fd.as_raw_fd())
}

fn read_lines(from: UnixStream, stream: Stream, sender: SyncSender<Event>) {
    thread::spawn(move || {
        let mut reader = BufReader::new(from);
        let mut line = Vec::new();
        loop {
            line.clear();
            match reader.by_ref().take(LINE_BYTES).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            let event = match stream {
                Stream::Control => Event::Control(text),
                _ => Event::Console(text),
            };
            if sender.send(event).is_err() {
                return;
            }
        }
        let _nobody_waits = sender.send(Event::End(stream));
    });
}
