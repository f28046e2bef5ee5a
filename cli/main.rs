//! The `verbcast` command.

#![forbid(unsafe_code)]

mod broadcast;
mod devices;
mod exit;
mod files;
mod gather;
mod ignored;
mod launch;
mod logging;
mod picture;
mod plan;
mod scatter;
mod selftest;
mod simulate;
mod table;
mod time;
mod tune;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Moves data from one node to many and back, over RDMA verbs or shared memory.
#[derive(Debug, Parser)]
#[command(version, about, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Launch(launch::Args),
    Broadcast(broadcast::Args),
    Scatter(scatter::Args),
    Gather(gather::Args),
    Devices(devices::Args),
    Plan(plan::Args),
    Simulate(simulate::Args),
    Tune(tune::Args),
    #[command(hide = true)]
    Selftest(selftest::Args),
}

fn main() -> ExitCode {
    if let Some(rank) = launch::rank_exec::requested() {
        return rank.exec();
    }
    if let Some(name) = files::heir::requested() {
        return files::heir::run(&name);
    }
    let cli = Cli::parse();
    logging::start();
    match cli.command {
        Command::Launch(args) => launch::run(&args),
        Command::Devices(args) => devices::run(&args),
        Command::Broadcast(args) => broadcast::run(&args),
        Command::Scatter(args) => scatter::run(&args),
        Command::Gather(args) => gather::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Selftest(args) => selftest::run(&args),
    }
}
