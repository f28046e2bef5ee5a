//! Checks a host for Soft-RoCE, brings Soft-RoCE clusters up and down, and runs a command in a guest.

#![forbid(unsafe_code)]
#![expect(dead_code, reason = "the commands for the host's own kernel are not wired up yet")]

mod args;
mod cache;
mod error;
mod guest;
mod kernel;
mod plan;
mod probe;
mod run;
mod vm;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command, Vm};
use error::Result;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match dispatch(cli.command) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("rxe-setup: {error}");
            ExitCode::from(error.exit_status())
        }
    }
}

fn dispatch(command: Command) -> Result<u8> {
    match command {
        Command::Vm(Vm::Run(args)) => vm::run(&args),
        Command::Vm(Vm::Prepare) => vm::prepare().map(|()| 0),
        Command::ExecQemu { parent, args } => match guest::exec_qemu(parent, &args)? {},
    }
}
