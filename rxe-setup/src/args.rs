//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Checks a host for Soft-RoCE, brings Soft-RoCE clusters up and down, and runs commands in guests.
#[derive(Debug, Parser)]
#[command(version, about)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Work with guests
    #[command(subcommand)]
    Vm(Vm),
    /// Become qemu, tied to the life of the parent process
    #[command(hide = true)]
    ExecQemu {
        /// The process that starts the guest.
        parent: i32,
        /// qemu's arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

/// What can be done with guests.
#[derive(Debug, Subcommand)]
pub(crate) enum Vm {
    /// Run one command in a guest over the host's files, with Soft-RoCE set up
    Run(VmRun),
    /// Fetch the guest's kernel and build its initramfs, so that the next run starts at once
    Prepare,
}

/// The arguments of `vm run`.
#[derive(Debug, Args)]
pub(crate) struct VmRun {
    /// Make N devices rxe0..rxe{N-1} on a private bridge, one per node [default: one rxe0 that loops back]
    #[arg(long, value_name = "N")]
    pub(crate) nodes: Option<u32>,
    /// Make no Soft-RoCE device at all
    #[arg(long, conflicts_with = "nodes")]
    pub(crate) no_devices: bool,
    /// Memory of the guest in MiB; what it writes outside the shared folders is kept in it, too
    #[arg(long, value_name = "MB", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(256..=1_048_576))]
    pub(crate) memory: u32,
    /// Virtual processors
    #[arg(long, value_name = "C", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) cpus: u32,
    /// Stop the guest after this many seconds and exit with status 124
    #[arg(long, value_name = "SECS", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub(crate) timeout: u32,
    /// Set a variable for the command; without a value, pass ours on
    #[arg(long, value_name = "K[=V]")]
    pub(crate) env: Vec<String>,
    /// Let the guest write to this folder of the host, beside the target folder
    #[arg(long, value_name = "DIR")]
    pub(crate) share: Vec<PathBuf>,
    /// Do not share the target folder: nothing the guest does reaches the host
    #[arg(long)]
    pub(crate) no_target: bool,
    /// Show the guest's console
    #[arg(long)]
    pub(crate) console: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}
