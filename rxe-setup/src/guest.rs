//! One guest: a command run on a kernel with Soft-RoCE, over the host's files.

mod accelerator;
mod job;
mod machine;
mod stream;

use std::collections::VecDeque;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub(crate) use accelerator::Accelerator;
pub(crate) use job::{Job, target_folder};
pub(crate) use machine::exec_qemu;

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::kernel::{Image, image};
use crate::plan::Cluster;
use machine::{Event, Machine, Stream};

/// The first line that the guest's init writes on its console.
const FIRST_LINE: &str = "verbcast-guest: up";
/// How long a guest under KVM may take to its first line before KVM has been proved here.
const KVM_PROOF: Duration = Duration::from_secs(8);
/// How long an emulated guest may take on a busy host.
const EMULATED_BOOT: Duration = Duration::from_secs(120);
/// How long the ends of the command's output may come after its status.
const LAST_OUTPUT: Duration = Duration::from_secs(10);
/// Lines of the guest's console that are kept to explain a failure.
const CONSOLE_LINES: usize = 40;

/// What a guest is given.
#[derive(Debug, Clone)]
pub(crate) struct GuestOptions {
    /// Memory in MiB. It also holds what the guest writes.
    pub(crate) memory_mib: u32,
    /// Virtual processors.
    pub(crate) cpus: u32,
    /// From power-on to the command's end.
    pub(crate) limit: Duration,
    /// The Soft-RoCE devices; `None` for a guest without any.
    pub(crate) cluster: Option<Cluster>,
    /// Folders of the host that the guest may write to.
    pub(crate) shares: Vec<PathBuf>,
    /// Pass the guest's console on to our standard error.
    pub(crate) show_console: bool,
}

/// Where the command's output goes.
pub(crate) struct Output {
    /// Its standard output.
    pub(crate) stdout: Box<dyn Write + Send>,
    /// Its standard error.
    pub(crate) stderr: Box<dyn Write + Send>,
}

impl Output {
    /// Ours.
    pub(crate) fn inherited() -> Self {
        Self { stdout: Box::new(std::io::stdout()), stderr: Box::new(std::io::stderr()) }
    }
}

/// Runs a command in a guest and returns its exit status, 128 + n if signal n ended it.
///
/// KVM is used where a guest has come up under it since this host was started, emulation where that
/// was tried and failed; where neither is known it is tried first.
///
/// # Errors
/// [`Error::TimeLimit`] if the command does not end in time, [`Error::Guest`] if the guest breaks
/// down, and whatever preparing its kernel can say. The guest is gone when this returns.
pub(crate) fn run(options: &GuestOptions, job: &Job, output: Output) -> Result<u8> {
    let cache = Cache::open()?;
    let image = image(&cache)?;
    let mark = stream::end_mark();
    let archive = job.archive(&cache, options, &mark)?;
    let mut console = Console::new(options.show_console);
    let (machine, accelerator) = power_on(&cache, &image, options, &archive, &mut console)?;
    let mut run = Run { machine, console, options, accelerator };
    run.until_end(output, &mark)
}

/// Whether KVM works here; tried with the cached image if it is not known yet. `None` without one.
pub(crate) fn prove_kvm(cache: &Cache) -> Result<Option<bool>> {
    let state = accelerator::recall(cache);
    if !state.may_be_kvm() {
        return Ok(Some(false));
    }
    if state == accelerator::Knowledge::Proved {
        return Ok(Some(true));
    }
    let Some(image) = crate::kernel::cached(cache)? else { return Ok(None) };
    let options = GuestOptions {
        memory_mib: 512,
        cpus: 1,
        limit: KVM_PROOF,
        cluster: None,
        shares: Vec::new(),
        show_console: false,
    };
    let mut machine = Machine::start(&image, Accelerator::Kvm, &options, &[])?;
    let works = first_line(&mut machine, KVM_PROOF, &mut Console::new(false)).is_ok();
    accelerator::remember(cache, works);
    Ok(Some(works))
}

/// Starts the guest under the best accelerator there is and waits for its first line.
fn power_on(
    cache: &Cache,
    image: &Image,
    options: &GuestOptions,
    archive: &[u8],
    console: &mut Console,
) -> Result<(Machine, Accelerator)> {
    if accelerator::recall(cache).may_be_kvm() {
        let mut machine = Machine::start(image, Accelerator::Kvm, options, archive)?;
        let first = first_line(&mut machine, KVM_PROOF, console);
        accelerator::remember(cache, first.is_ok());
        if first.is_ok() {
            return Ok((machine, Accelerator::Kvm));
        }
        let reason = console.lines.back().map_or("it says nothing", String::as_str);
        eprintln!(
            "rxe-setup: no guest comes up under KVM here ({reason}): emulating, which is slower"
        );
    }
    let mut machine = Machine::start(image, Accelerator::Emulation, options, archive)?;
    let limit = EMULATED_BOOT.min(options.limit);
    match first_line(&mut machine, limit, console) {
        Ok(()) => Ok((machine, Accelerator::Emulation)),
        Err(Silence::Late) if limit == options.limit => Err(Error::TimeLimit { limit }),
        Err(Silence::Late) => Err(console.failure("it did not come up in time")),
        Err(Silence::Gone) => Err(console.failure("qemu ended before the guest was up")),
    }
}

/// Why a guest's first line did not come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Silence {
    /// qemu is gone.
    Gone,
    /// The time passed.
    Late,
}

/// Waits for the guest's first line.
fn first_line(
    machine: &mut Machine,
    limit: Duration,
    console: &mut Console,
) -> std::result::Result<(), Silence> {
    let deadline = Instant::now() + limit;
    loop {
        match machine.next_event(deadline) {
            Some(Event::Console(line)) => {
                let up = line.contains(FIRST_LINE);
                console.keep(line);
                if up {
                    return Ok(());
                }
            }
            Some(Event::End(Stream::Console)) => return Err(Silence::Gone),
            Some(_) => {}
            None => return Err(Silence::Late),
        }
    }
}

/// The last lines of a guest's console.
struct Console {
    lines: VecDeque<String>,
    show: bool,
    power_on: Instant,
}

impl Console {
    fn new(show: bool) -> Self {
        Self { lines: VecDeque::with_capacity(CONSOLE_LINES), show, power_on: Instant::now() }
    }

    fn show(&self, line: &str) {
        if self.show {
            eprintln!("[{:7.2} s] {line}", self.power_on.elapsed().as_secs_f64());
        }
    }

    fn keep(&mut self, line: String) {
        self.show(&line);
        if self.lines.len() == CONSOLE_LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    fn failure(&self, reason: &str) -> Error {
        let console = self.lines.iter().map(|line| format!("{line}\n")).collect();
        Error::Guest { reason: reason.to_owned(), console }
    }
}

/// A guest that is up.
struct Run<'a> {
    machine: Machine,
    console: Console,
    options: &'a GuestOptions,
    accelerator: Accelerator,
}

impl Run<'_> {
    fn until_end(&mut self, output: Output, mark: &[u8]) -> Result<u8> {
        self.machine.stream_output(output, mark)?;
        let deadline = self.console.power_on + self.options.limit;
        let mut open = vec![Stream::Stdout, Stream::Stderr];
        let status = loop {
            match self.machine.next_event(deadline) {
                Some(Event::Console(line)) => self.console.keep(line),
                Some(Event::Control(line)) => {
                    if let Some(status) = self.control(&line)? {
                        break status;
                    }
                }
                Some(Event::End(Stream::Console | Stream::Control)) => {
                    return Err(self.console.failure("it stopped before the command ended"));
                }
                Some(Event::End(stream)) => open.retain(|other| *other != stream),
                Some(Event::SinkClosed(source)) => {
                    return Err(Error::System { what: "pass the command's output on", source });
                }
                None => return Err(Error::TimeLimit { limit: self.options.limit }),
            }
        };
        let deadline = Instant::now() + LAST_OUTPUT;
        while !open.is_empty() {
            match self.machine.next_event(deadline) {
                Some(Event::End(Stream::Console | Stream::Control)) | None => {
                    return Err(self
                        .console
                        .failure("the end of the command's output did not come"));
                }
                Some(Event::End(stream)) => open.retain(|other| *other != stream),
                Some(Event::Console(line)) => self.console.keep(line),
                Some(Event::SinkClosed(source)) => {
                    return Err(Error::System { what: "pass the command's output on", source });
                }
                Some(Event::Control(_)) => {}
            }
        }
        Ok(status)
    }

    /// Takes a line of the guest's init: the status, if it says one.
    fn control(&mut self, line: &str) -> Result<Option<u8>> {
        if let Some(reason) = line.strip_prefix("FAIL ") {
            return Err(self.console.failure(reason));
        }
        if line == "START" {
            self.console.show(&format!("the command starts (under {})", self.accelerator));
        }
        let Some(status) = line.strip_prefix("STATUS ") else { return Ok(None) };
        match status.trim().parse() {
            Ok(status) => Ok(Some(status)),
            Err(_) => Err(self.console.failure("it reported a status that is none")),
        }
    }
}
