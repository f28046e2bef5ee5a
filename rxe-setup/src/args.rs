//! The command line.

use std::ffi::OsString;
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

impl Cli {
    /// Parses the command line; `cargo demo -- --soft-roce` arrives as `demo -- --soft-roce`, and the
    /// `--` was meant for cargo.
    pub(crate) fn parse_lenient(args: impl Iterator<Item = OsString>) -> Self {
        let mut args: Vec<OsString> = args.collect();
        let alias = |word: &OsString| word == "demo" || word == "verify";
        if args.get(1).is_some_and(alias) && args.get(2).is_some_and(|word| word == "--") {
            args.remove(2);
        }
        Self::parse_from(args)
    }
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Install what is missing to build Verbcast and to run guests
    Deps {
        /// What it is for
        #[arg(long = "for", value_enum, default_value_t = Purpose::All)]
        wanted: Purpose,
        /// Only say what would be installed
        #[arg(long)]
        dry_run: bool,
    },
    /// Say what this host can do: Soft-RoCE in its kernel, guests, verbs
    Check {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Set Soft-RoCE up in this host's kernel
    Up {
        /// Make N devices rxe0..rxe{N-1} on a private bridge [default: one rxe0 that loops back]
        #[arg(long, value_name = "N")]
        nodes: Option<u32>,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Remove what `up` made, and nothing else
    Down {
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Show the RDMA devices of this host and which of them `up` made
    Status {
        /// Print one JSON object per device and line
        #[arg(long)]
        json: bool,
    },
    /// Work with guests
    #[command(subcommand)]
    Vm(Vm),
    /// Broadcast a file to local ranks and show what it took
    Demo(Demo),
    /// Pass every check and test, those in guests included
    Verify {
        /// Run the guest tests over their whole matrix, which takes much longer
        #[arg(long)]
        full: bool,
    },
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

/// What dependencies are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Purpose {
    /// To build Verbcast with verbs.
    Build,
    /// To run guests.
    Guest,
    /// To run the tests, beside what building and guests need.
    Test,
    /// Everything.
    All,
}

/// The arguments of `demo`.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// The file to broadcast [default: one of 256 MiB that is made for it]
    pub(crate) file: Option<PathBuf>,
    /// Broadcast over real verbs, on Soft-RoCE devices in a guest
    #[arg(long)]
    pub(crate) soft_roce: bool,
    /// The number of ranks
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) ranks: u32,
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Command {
        Cli::parse_lenient(line.split(' ').map(OsString::from)).command
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn both_ways_to_pass_options_through_cargo_work() {
        for line in ["x demo --soft-roce big.bin", "x demo -- --soft-roce big.bin"] {
            let Command::Demo(demo) = parse(line) else { panic!("{line}") };
            assert!(demo.soft_roce && demo.ranks == 4, "{line}");
            assert_eq!(demo.file, Some(PathBuf::from("big.bin")), "{line}");
        }
        assert!(matches!(parse("x verify"), Command::Verify { full: false }));
        assert!(matches!(parse("x verify -- --full"), Command::Verify { full: true }));
    }

    #[test]
    fn a_guests_command_is_taken_word_for_word() {
        let Command::Vm(Vm::Run(run)) = parse("x vm run --nodes 4 -- sh -c --nodes") else {
            panic!("not vm run")
        };
        assert_eq!(run.nodes, Some(4));
        assert_eq!(run.command, ["sh", "-c", "--nodes"]);
    }
}
