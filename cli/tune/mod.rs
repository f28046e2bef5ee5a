//! `verbcast tune`: measures what the links between the ranks of this job do.

mod estimate;
mod measure;
mod profile;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use verbcast::{Error, World};

use crate::exit;
use crate::files::bytes::{display, display_rate};
use crate::files::progress::Progress;
use crate::launch::seconds;
use crate::table::{Align, Table};
use crate::time::display_ns;
use estimate::Estimate;
use measure::{Measured, STEPS};

const COMMAND: &str = "verbcast tune";

const EXAMPLES: &str = "\
Examples:
  verbcast launch -n 4 -- verbcast tune --output fabric.toml
  VERBCAST_PROFILE=fabric.toml verbcast launch -n 4 -- verbcast broadcast FILE DEST
  verbcast plan -n 64 --profile fabric.toml";

/// Measures the links between the ranks of a job and writes them down as a profile; run it under
/// `verbcast launch`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Write the profile into this file, as rank 0 sees it [default: only show it]
    #[arg(long, short, value_name = "FILE.toml")]
    output: Option<PathBuf>,
    /// Seconds that all measurements may take together
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds)]
    within: Duration,
    /// One JSON object per measurement and line
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> ExitCode {
    match tune(args) {
        Ok(status) => status,
        Err(error) => exit::failed(COMMAND, &error),
    }
}

fn tune(args: &Args) -> Result<ExitCode, Error> {
    let world = World::from_env()?;
    if world.size() < 2 {
        eprintln!(
            "{COMMAND}: there is nothing between one rank and itself: verbcast launch -n 4 -- \
             verbcast tune"
        );
        world.finalize()?;
        return Ok(ExitCode::from(exit::WRONG_USAGE));
    }
    let is_first = world.rank() == 0;
    let output = args.output.as_deref().filter(|_| is_first);
    let file = output.map(profile::Output::create).transpose();
    // Nobody measures for minutes what cannot be written down.
    let failure = file.as_ref().err().map(|error| exit::chain(error));
    world.agree_all(failure)?;
    let progress = Progress::steps(STEPS, is_first);
    let measured = measure::measure(&world, args.within, || progress.advance(1))?;
    drop(progress);
    let of = profile::Origin::of(&world);
    world.finalize()?;
    if !is_first {
        return Ok(ExitCode::SUCCESS);
    }
    let written = match file {
        Ok(Some(file)) => file.write(&measured, &of),
        _ => Ok(()),
    };
    let done = written.map_err(io::Error::other).and_then(|()| print(args, &measured, &of));
    Ok(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::failed(COMMAND, &error),
    })
}

/// A line of the table.
#[derive(Serialize)]
struct Line {
    name: &'static str,
    unit: &'static str,
    #[serde(flatten)]
    estimate: Estimate,
    #[serde(skip)]
    meaning: &'static str,
}

fn lines(measured: &Measured) -> impl Iterator<Item = Line> {
    let line = |name, unit, estimate, meaning| Line { name, unit, estimate, meaning };
    let Measured { latency_ns, gap_ns, bytes_per_second, .. } = *measured;
    let eager = measured.eager_limit_bytes as f64;
    let eager = Estimate { value: eager, low: eager, high: eager, samples: 1 };
    let lines = [
        line("L", "ns", latency_ns, "from one rank to the next"),
        line("g", "ns", gap_ns, "one more tiny block"),
        line("turn", "ns", measured.turn_ns, "one more rank that a root serves itself"),
        line("o", "ns", measured.overhead_ns, "of g, what is not done while bytes move"),
        line("beta", "B/s", bytes_per_second, "of a rank that receives and sends"),
        line("eager limit", "B", eager, "up to here no grant is faster"),
        line("link set-up", "ns", measured.link_setup_ns, "the first message over a link"),
        line("wake", "ns", measured.wake_ns, "a message to a rank that sleeps"),
        line("copy, one rank", "B/s", measured.copy_one, "within memory, the others idle"),
        line("copy, all ranks", "B/s", measured.copy_all, "within memory, together"),
    ];
    // Two ranks have no turns.
    lines.into_iter().filter(|line| line.estimate.samples > 0)
}

fn print(args: &Args, measured: &Measured, of: &profile::Origin) -> io::Result<()> {
    let mut to = io::stdout().lock();
    if args.json {
        for line in lines(measured) {
            writeln!(to, "{}", serde_json::to_string(&line)?)?;
        }
        return Ok(());
    }
    writeln!(to, "{of}\n")?;
    let mut table = Table::new([
        ("", Align::Left),
        ("MEDIAN", Align::Right),
        ("95 % FROM", Align::Right),
        ("TO", Align::Right),
        ("SAMPLES", Align::Right),
        ("", Align::Left),
    ]);
    for Line { name, unit, estimate, meaning } in lines(measured) {
        let show = |value: f64| match unit {
            "ns" => display_ns(value),
            "B" => display(value as u64),
            _ => display_rate(value),
        };
        let Estimate { value, low, high, samples } = estimate;
        let samples = samples.to_string();
        table.push([name.into(), show(value), show(low), show(high), samples, meaning.into()]);
    }
    write!(to, "{table}")?;
    match &args.output {
        Some(path) => {
            let path = path.display();
            writeln!(to, "\nWritten to {path}; VERBCAST_PROFILE={path} makes a job choose by it")
        }
        None => writeln!(to, "\nNot written down: --output FILE.toml does that"),
    }
}
