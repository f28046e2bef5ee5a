//! `--check`: a schedule from elsewhere, verified.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use verbcast::Algorithm;
use verbcast::check::{CheckError, Claim, ReadError, Report, check, read_schedules};

use super::question::{PlanError, Subject, counted};
use crate::exit;

/// Why a schedule is not right.
#[derive(Debug, thiserror::Error)]
enum Fault {
    /// The file.
    #[error("cannot be opened")]
    Open(#[source] io::Error),
    /// Its lines.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// What they say.
    #[error(transparent)]
    Check(#[from] CheckError),
}

/// Checks the schedule in `path`, or of standard input if that is `-`.
///
/// # Errors
/// Wrong usage, or standard output. That the schedule is wrong is told here, by the status.
pub(super) fn run(
    path: &Path,
    subject: &Subject,
    rounds: Option<u64>,
    json: bool,
) -> Result<ExitCode, PlanError> {
    let given = claim(subject, rounds)?;
    let (text, status) = match verify(path, given, rounds) {
        Ok((claim, report)) => (right(&claim, &report, json), ExitCode::SUCCESS),
        Err(fault) => {
            let name =
                if is_stdin(path) { "standard input".into() } else { path.display().to_string() };
            let text = format!("{name}: {}", exit::chain(&fault));
            if !json {
                eprintln!("{}: {text}", super::COMMAND);
                return Ok(ExitCode::from(exit::FAILED));
            }
            let line = json!({ "right": false, "fault": text });
            (line.to_string(), ExitCode::from(exit::FAILED))
        }
    };
    writeln!(io::stdout().lock(), "{text}")?;
    Ok(status)
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// What the arguments claim; nothing if they do not name the ranks.
fn claim(subject: &Subject, rounds: Option<u64>) -> Result<Option<Claim>, PlanError> {
    if !subject.has_ranks() {
        return Ok(None);
    }
    let question = subject.question()?;
    let shape = question.shape(question.blocks.unwrap_or(1))?;
    let mut claim = Claim::new(shape, rounds.unwrap_or(0));
    if question.algorithm == Some(Algorithm::ScatterAllgather) {
        claim.message_blocks = u32::MAX;
    }
    Ok(Some(claim))
}

fn verify(
    path: &Path,
    given: Option<Claim>,
    rounds: Option<u64>,
) -> Result<(Claim, Report), Fault> {
    let (mut claim, steps) = if is_stdin(path) {
        read_schedules(io::stdin().lock(), given)?
    } else {
        read_schedules(BufReader::new(File::open(path).map_err(Fault::Open)?), given)?
    };
    if given.is_some_and(|given| claim == given) && rounds.is_none() {
        // Nobody claims a number of rounds: whatever there are.
        let last = steps.iter().filter_map(|steps| steps.last()).map(|step| step.round).max();
        claim.rounds = last.map_or(0, |round| u64::from(round) + 1);
    }
    let report = check(&claim, &steps)?;
    Ok((claim, report))
}

fn right(claim: &Claim, report: &Report, json: bool) -> String {
    let Claim { operation, ranks, root, blocks, ports, rounds, .. } = *claim;
    let Report { transfers, most_send_peers, most_recv_peers, .. } = *report;
    if json {
        let line = json!({
            "right": true, "op": operation.name(), "ranks": ranks, "root": root, "blocks": blocks,
            "ports": ports, "rounds": rounds, "transfers": transfers,
            "most_send_peers": most_send_peers, "most_recv_peers": most_recv_peers,
        });
        return line.to_string();
    }
    let of = if operation.has_parts() { " of each rank" } else { "" };
    format!(
        "right: {operation} with root {root}, {}, {}{of}, {}: {rounds} rounds, {transfers} blocks sent, \
         at most {most_send_peers} peers to send to and {most_recv_peers} to receive from",
        counted(ranks, "rank"),
        counted(blocks, "block"),
        counted(ports.into(), "port"),
    )
}
