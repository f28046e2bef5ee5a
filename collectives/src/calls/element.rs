//! What operations move: plain data.

use std::any::type_name;

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A type whose values are their bytes, any of which are a value: integers, floats, arrays of them, and
/// structures that derive zerocopy's `FromBytes`, `IntoBytes` and `Immutable`.
///
/// # Examples
///
/// ```
/// use verbcast_collectives::Element;
///
/// fn moved<T: Element>(_: &[T]) {}
/// moved(&[1.5_f64]);
/// moved(&[[1_u32; 3]]);
/// ```
pub trait Element: FromBytes + IntoBytes + Immutable {}

impl<T: FromBytes + IntoBytes + Immutable> Element for T {}

/// The types with codes of their own, from 0.
const NAMED: [&str; 14] = [
    "u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "u128", "i128", "f32", "f64", "usize",
    "isize",
];

/// The type in a signature: 0 to 13 for the primitive types, else 128 and above, by name and size, which
/// tells most of the others apart.
pub(super) fn code<T: Element>() -> u8 {
    let name = type_name::<T>();
    if let Some(place) = NAMED.iter().position(|named| *named == name) {
        return place as u8;
    }
    // FNV-1a.
    let hash = name
        .bytes()
        .chain(size_of::<T>().to_le_bytes())
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    0x80 | (hash >> 25) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_0_and_types_of_one_size_differ() {
        assert_eq!(code::<u8>(), 0);
        let codes = [code::<f32>(), code::<u32>(), code::<i32>(), code::<[u8; 4]>()];
        for (place, one) in codes.iter().enumerate() {
            assert!(!codes[..place].contains(one), "{codes:?}");
        }
        assert_ne!(code::<[u16; 3]>(), code::<[u16; 4]>());
    }
}
