//! What this machine has, read from its files.

use std::fs;
use std::path::Path;

/// Whether a file is a program that needs no dynamic linker: a 64-bit ELF file without the
/// PT_INTERP segment.
pub(crate) fn is_static_program(path: &Path) -> bool {
    const PT_INTERP: &[u8] = &3_u32.to_le_bytes();
    let Ok(file) = fs::read(path) else { return false };
    let number = |at: usize, len: usize| -> Option<usize> {
        let bytes = file.get(at..at.checked_add(len)?)?;
        bytes.iter().rev().try_fold(0_usize, |value, byte| {
            value.checked_mul(256)?.checked_add(usize::from(*byte))
        })
    };
    let interpreter = || -> Option<bool> {
        let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        for segment in 0..count {
            let at = table.checked_add(segment.checked_mul(size)?)?;
            if file.get(at..at.checked_add(4)?)? == PT_INTERP {
                return Some(true);
            }
        }
        Some(false)
    };
    file.get(..5) == Some(b"\x7fELF\x02") && interpreter() == Some(false)
}
