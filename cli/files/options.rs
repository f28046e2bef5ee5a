//! The options that all commands for files have.

use std::time::Duration;

use super::bytes;
use super::plan::MEMORY_MIN;
use crate::launch::seconds;

/// How a file is moved.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Memory that each rank may use for the file's bytes
    #[arg(long, value_name = "BYTES", default_value = "256M", value_parser = memory)]
    pub(crate) memory: u64,
    /// Bytes of a block [default: what the model finds fastest]
    #[arg(long, value_name = "BYTES", value_parser = block_bytes)]
    pub(crate) block_size: Option<u64>,
    /// Give up when it has taken this long [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) deadline: Option<Duration>,
    /// Queue pairs per link [default: one per rail]
    #[arg(long, value_name = "D", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) lanes: Option<u32>,
    /// Print nothing but errors
    #[arg(long, short, conflicts_with = "json")]
    pub(crate) quiet: bool,
    /// Print the report as JSON, an object per line
    #[arg(long)]
    pub(crate) json: bool,
}

fn memory(text: &str) -> Result<u64, String> {
    let bytes = bytes::parse(text)?;
    if bytes < MEMORY_MIN {
        return Err(format!("at least {} are needed", bytes::display(MEMORY_MIN)));
    }
    Ok(bytes)
}

/// A number of bytes of which there must be one.
pub(crate) fn block_bytes(text: &str) -> Result<u64, String> {
    match bytes::parse(text)? {
        0 => Err("it has to be at least one byte".into()),
        bytes => Ok(bytes),
    }
}
