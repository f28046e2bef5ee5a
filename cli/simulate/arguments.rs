//! Faults as they are written on the command line.

use crate::time::parse_ps;

/// A share in per cent as parts of a million: `0.1` is 1000.
///
/// # Errors
/// If it is no number from 0 to 100.
pub(super) fn per_cent(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    match number.parse::<f64>() {
        Ok(value) if (0.0..=100.0).contains(&value) => Ok((value * 1e4).round() as u32),
        _ => Err(format!("{text:?} is no share in per cent, from 0 to 100")),
    }
}

/// `RANK:FACTOR`: a rank, and the per cent of the usual time that it takes for everything.
///
/// # Errors
/// If it is something else, or the factor is not from 0.01 to 10000.
pub(super) fn slow(text: &str) -> Result<(u32, u32), String> {
    let (rank, factor) = pair(text, "RANK:FACTOR")?;
    match factor.parse::<f64>() {
        Ok(factor) if (0.01..=1e4).contains(&factor) => Ok((rank, (factor * 100.0).round() as u32)),
        _ => Err(format!("{text:?}: the factor is a number from 0.01 to 10000")),
    }
}

/// `RANK:TIME`: a rank and picoseconds.
///
/// # Errors
/// If it is something else.
pub(super) fn late(text: &str) -> Result<(u32, u64), String> {
    let (rank, time) = pair(text, "RANK:TIME")?;
    Ok((rank, parse_ps(time)?))
}

/// `RANK` or `RANK:TIME`: a rank and picoseconds, 0 if they are left out.
///
/// # Errors
/// If it is something else.
pub(super) fn dead(text: &str) -> Result<(u32, u64), String> {
    match text.parse() {
        Ok(rank) => Ok((rank, 0)),
        Err(_) => late(text),
    }
}

fn pair<'a>(text: &'a str, form: &str) -> Result<(u32, &'a str), String> {
    let wrong = || format!("{text:?} is not of the form {form}");
    let (rank, rest) = text.split_once(':').ok_or_else(wrong)?;
    Ok((rank.parse().map_err(|_| wrong())?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read() {
        assert_eq!(per_cent("0.1"), Ok(1000));
        assert_eq!(per_cent("100%"), Ok(1_000_000));
        assert_eq!(slow("3:2.5"), Ok((3, 250)));
        assert_eq!(late("3:2us"), Ok((3, 2_000_000)));
        assert_eq!(dead("7"), Ok((7, 0)));
        assert_eq!(dead("7:1ms"), Ok((7, 1_000_000_000)));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "-1", "101", "NaN", "inf", "x"] {
            assert!(per_cent(text).is_err(), "{text}");
        }
        for text in ["", "3", "3:", "3:0", "3:-1", "3:NaN", "3:inf", "x:2", "-3:2"] {
            assert!(slow(text).is_err(), "{text}");
        }
        for text in ["", "3", "3:5", "3:-1us", "x:1us"] {
            assert!(late(text).is_err(), "{text}");
        }
        assert!(dead("-1").is_err() && dead("1:").is_err());
    }
}
