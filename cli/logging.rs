//! What goes to standard error besides errors: `VERBCAST_LOG` chooses the level.

use tracing::level_filters::LevelFilter;

/// Starts logging to standard error at the level that `VERBCAST_LOG` names (`error`, `warn`,
/// `info`, `debug`, `trace` or `off`; `warn` if it is unset).
pub(crate) fn start() {
    let wanted = std::env::var("VERBCAST_LOG").ok();
    let level = wanted.as_deref().map_or(Ok(LevelFilter::WARN), str::parse);
    let unknown = level.is_err();
    tracing_subscriber::fmt()
        .with_max_level(level.unwrap_or(LevelFilter::WARN))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false)
        .init();
    if unknown {
        let given = wanted.unwrap_or_default();
        tracing::warn!("VERBCAST_LOG={given:?} is no level: use error, warn, info, debug or trace");
    }
}
