//! The subcommand `vm`.

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::args::VmRun;
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::guest::{self, GuestOptions, Job, Output, target_folder};
use crate::kernel::image;
use crate::plan::Cluster;

/// Runs a command in a guest; the result is the command's exit status.
pub(crate) fn run(args: &VmRun) -> Result<u8> {
    let folder = env::current_dir()
        .map_err(|source| Error::System { what: "find the working folder", source })?;
    let cluster = if args.no_devices { None } else { Some(Cluster::from_option(args.nodes)?) };
    let options = GuestOptions {
        memory_mib: args.memory,
        cpus: args.cpus,
        limit: Duration::from_secs(args.timeout.into()),
        cluster,
        shares: shares(args, &folder)?,
        show_console: args.console,
    };
    let env = args.env.iter().map(|text| variable(text)).collect::<Result<Vec<_>>>()?;
    let job = Job { command: args.command.clone(), folder, visible: Vec::new(), env };
    guest::run(&options, &job, Output::inherited())
}

/// Fetches and builds what a guest needs.
pub(crate) fn prepare() -> Result<()> {
    let image = image(&Cache::open()?)?;
    say!("{}", image.kernel.display());
    say!("{}", image.initramfs.display());
    Ok(())
}

fn shares(args: &VmRun, folder: &Path) -> Result<Vec<PathBuf>> {
    let mut shares = Vec::new();
    if !args.no_target {
        shares.extend(target_folder(folder));
    }
    for share in &args.share {
        let share = share.canonicalize().map_err(Error::file("share", share))?;
        if !share.is_dir() || share == Path::new("/") {
            return Err(Error::Usage(format!(
                "--share {} is not possible: name a folder below /",
                share.display()
            )));
        }
        if !shares.contains(&share) {
            shares.push(share);
        }
    }
    Ok(shares)
}

fn variable(text: &str) -> Result<(String, String)> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, value.to_owned()),
        None => (text, env::var(text).unwrap_or_default()),
    };
    let valid = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(valid) {
        return Err(Error::Usage(format!("--env {text} is not possible: `{name}` is not a name")));
    }
    Ok((name.to_owned(), value))
}
