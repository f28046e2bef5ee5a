//! Signals that whoever started this process had it ignore: `nohup`, or a shell script that put it into
//! the background. They stay ignored.

use nix::sys::signal::Signal;

/// Whether a signal was ignored when the process started, where the system tells; to be asked before
/// any is handled.
pub(crate) fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    is_in_mask(&status, signal)
}

/// Whether the line `SigIgn:` has the signal's bit, of which number 1 is the lowest.
fn is_in_mask(status: &str, signal: Signal) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal as i32 - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_is_read_by_number() {
        let status = "SigBlk:\tffffffffffffffff\nSigIgn:\t0000000000001001\nSigCgt:\t0\n";
        assert!(is_in_mask(status, Signal::SIGHUP));
        assert!(is_in_mask(status, Signal::SIGPIPE));
        assert!(!is_in_mask(status, Signal::SIGINT));
        assert!(!is_in_mask("", Signal::SIGHUP));
        assert!(!is_in_mask("SigIgn:\tmany\n", Signal::SIGHUP));
    }
}
