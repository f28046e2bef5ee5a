//! Checks a host for Soft-RoCE, brings Soft-RoCE clusters up and down, and runs a command in a guest.

#![forbid(unsafe_code)]

/// Prints a line on the standard output. A reader that has gone away (`| head`) ends nothing that was
/// begun: the work goes on, unseen.
macro_rules! say {
    ($($format:tt)*) => {{
        let _reader_is_gone = std::io::Write::write_fmt(
            &mut std::io::stdout().lock(),
            format_args!("{}\n", format_args!($($format)*)),
        );
    }};
}

mod args;
mod cache;
mod cargo;
mod check;
mod demo;
mod deps;
mod error;
mod guest;
mod host;
mod kernel;
mod mutation;
mod plan;
mod probe;
mod run;
mod verify;
mod vm;

use std::process::ExitCode;

use args::{Cli, Command, Vm};
use error::Result;

fn main() -> ExitCode {
    let cli = Cli::parse_lenient(std::env::args_os());
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
        Command::Deps { wanted, dry_run } => deps::install(wanted, dry_run),
        Command::Check { json } => check::report(json),
        Command::Up { nodes, dry_run } => host::up(nodes, dry_run),
        Command::Down { dry_run } => host::down(dry_run),
        Command::Status { json } => host::status(json),
        Command::Demo(args) => demo::run(&args),
        Command::Verify { full } => verify::run(full),
        Command::Vm(Vm::Run(args)) => return vm::run(&args),
        Command::Vm(Vm::Prepare) => vm::prepare(),
        Command::ExecQemu { parent, args } => match guest::exec_qemu(parent, &args)? {},
    }?;
    Ok(0)
}
