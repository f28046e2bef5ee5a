//! Times as people read them.

/// A time for people: `350 ns`, `1.5 us`, `12 ms`.
pub(crate) fn display_ns(ns: f64) -> String {
    let (value, unit) = match ns {
        _ if ns >= 1e9 => (ns / 1e9, "s"),
        _ if ns >= 1e6 => (ns / 1e6, "ms"),
        _ if ns >= 1e3 => (ns / 1e3, "us"),
        _ => (ns, "ns"),
    };
    let digits = match value {
        _ if value >= 99.95 => 0,
        _ if value >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    let text = match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => &text,
    };
    format!("{text} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        for (ns, text) in [
            (0.0, "0 ns"),
            (350.0, "350 ns"),
            (1500.0, "1.5 us"),
            (12_340_000.0, "12.3 ms"),
            (999_960.0, "1000 us"),
            (2.5e9, "2.5 s"),
        ] {
            assert_eq!(display_ns(ns), text);
        }
    }
}
