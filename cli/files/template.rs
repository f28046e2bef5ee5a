//! DEST, in which each rank puts its own name.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// What a rank puts into DEST.
#[derive(Debug)]
pub(crate) struct Place {
    /// For `{rank}`.
    pub(crate) rank: u32,
    /// For `{local_rank}`.
    pub(crate) local_rank: u32,
    /// For `{host}`.
    pub(crate) host: OsString,
}

const RANK: &str = "{rank}";
const LOCAL_RANK: &str = "{local_rank}";
const HOST: &str = "{host}";

/// `template` with `{rank}`, `{local_rank}` and `{host}` replaced; everything else, other braces
/// too, stays.
pub(crate) fn expand(template: &OsStr, place: &Place) -> OsString {
    let mut rest = template.as_bytes();
    let mut path = Vec::with_capacity(rest.len());
    while let Some(&first) = rest.first() {
        let values = [
            (RANK, place.rank.to_string().into_bytes()),
            (LOCAL_RANK, place.local_rank.to_string().into_bytes()),
            (HOST, place.host.as_bytes().to_vec()),
        ];
        match values.iter().find(|(name, _)| rest.starts_with(name.as_bytes())) {
            Some((name, value)) => {
                path.extend_from_slice(value);
                rest = &rest[name.len()..];
            }
            None => {
                path.push(first);
                rest = &rest[1..];
            }
        }
    }
    OsString::from_vec(path)
}

/// Whether ranks of one host get different names.
pub(crate) fn tells_local_ranks_apart(template: &OsStr) -> bool {
    [RANK, LOCAL_RANK]
        .iter()
        .any(|name| template.as_bytes().windows(name.len()).any(|window| window == name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_replaced_wherever_they_stand() {
        let place = Place { rank: 12, local_rank: 3, host: "node{rank}".into() };
        let expanded = |template: &str| expand(template.as_ref(), &place).into_string().unwrap();
        assert_eq!(expanded("/d/{host}/f.{rank}.{local_rank}"), "/d/node{rank}/f.12.3");
        assert_eq!(expanded("{rank}{rank}{ran{rank}"), "1212{ran12");
        assert_eq!(expanded("{}é{size}"), "{}é{size}");
        assert!(tells_local_ranks_apart("a{local_rank}".as_ref()));
        assert!(!tells_local_ranks_apart("a{host}".as_ref()));
    }
}
