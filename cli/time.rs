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

/// Picoseconds from a number with a unit: `500ns`, `1.5us`, `2ms`, `1s`.
///
/// # Errors
/// If it is no number, negative, without a unit, or 2^63 ps (106 days) or more.
pub(crate) fn parse_ps(text: &str) -> Result<u64, String> {
    let unit = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let scale = match unit {
        "ps" => 1.0,
        "ns" => 1e3,
        "us" => 1e6,
        "ms" => 1e9,
        "s" => 1e12,
        _ => return Err(format!("{text:?} is no time: use a number with ns, us, ms or s")),
    };
    match number.trim().parse::<f64>() {
        Ok(value) if value >= 0.0 && value * scale < (1_u64 << 63) as f64 => {
            Ok((value * scale).round() as u64)
        }
        Ok(value) if value < 0.0 => Err(format!("{text:?}: a time is not negative")),
        Ok(_) => Err(format!("{text:?} is too long")),
        Err(_) => Err(format!("{text:?} is no time: use a number with ns, us, ms or s")),
    }
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

    #[test]
    fn times_have_a_unit() {
        for (text, ps) in
            [("0ns", 0), ("500ns", 500_000), ("1.5 us", 1_500_000), ("2s", 2_000_000_000_000)]
        {
            assert_eq!(parse_ps(text), Ok(ps), "{text}");
        }
        for text in ["", "5", "ns", "-1us", "NaNs", "infs", "1e30s", "5 minutes", "nan ns"] {
            assert!(parse_ps(text).is_err(), "{text}");
        }
    }
}
