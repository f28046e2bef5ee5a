//! Numbers of bytes as people write and read them.

/// Bytes from a number with an optional binary unit: `4096`, `64K`, `256M`, `1.5G`, `64KiB`.
///
/// # Errors
/// If it is no number, negative, or more than 2^63.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let unit = unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(&unit);
    let shift = match unit {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(format!("unknown unit {unit:?}: use K, M, G or T (powers of 1024)")),
    };
    let scale = (1_u64 << shift) as f64;
    let bytes = match (number.parse::<u64>(), number.parse::<f64>()) {
        (Ok(whole), _) => whole.checked_mul(1 << shift),
        (_, Ok(broken)) if broken * scale < (1_u64 << 63) as f64 => Some((broken * scale) as u64),
        (_, Ok(_)) => None,
        (_, Err(_)) => return Err(format!("{text:?} is no number of bytes")),
    };
    bytes.filter(|bytes| *bytes < 1 << 63).ok_or_else(|| format!("{text:?} is too much"))
}

/// Bytes for people, in binary units: `1023 B`, `1.5 KiB`.
pub(crate) fn display(bytes: u64) -> String {
    scaled(bytes as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

/// A rate for people, in decimal units as links are: `1.25 GB/s`.
pub(crate) fn display_rate(bytes_per_second: f64) -> String {
    scaled(bytes_per_second, 1000.0, &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"])
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value >= step && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = if unit == 0 || value.fract() == 0.0 || value >= 100.0 { 0 } else { 2 };
    format!("{value:.digits$} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65536),
            ("64KiB", 65536),
            ("64 kb", 65536),
            ("256M", 256 << 20),
            ("1.5G", 3 << 29),
            ("2T", 2 << 40),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "-1", "1X", "1.2.3", "8388608T", "99999999999999999999"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn people_read_three_digits() {
        assert_eq!(display(1023), "1023 B");
        assert_eq!(display(1536), "1.50 KiB");
        assert_eq!(display(256 << 20), "256 MiB");
        assert_eq!(display_rate(1.25e9), "1.25 GB/s");
        assert_eq!(display_rate(0.0), "0 B/s");
    }
}
