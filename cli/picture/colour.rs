//! Colours of blocks and of algorithms.

/// Ten colours that differ in hue and lightness.
const DISTINCT: [Colour; 10] = [
    Colour(0x35, 0x6e, 0xc4),
    Colour(0xe0, 0x7b, 0x1f),
    Colour(0x2f, 0x95, 0x5a),
    Colour(0xc8, 0x3c, 0x3c),
    Colour(0x82, 0x5a, 0xb8),
    Colour(0x8a, 0x5a, 0x3c),
    Colour(0xd4, 0x62, 0xa5),
    Colour(0x6f, 0x77, 0x80),
    Colour(0xa3, 0xa1, 0x1a),
    Colour(0x1c, 0xa5, 0xb8),
];

/// From early to late blocks, where there are more than [`DISTINCT`] ones: dark blue, over green, to
/// a yellow that still stands out from white, then red.
const SCALE: [Colour; 6] = [
    Colour(0x3b, 0x2f, 0x80),
    Colour(0x2b, 0x6c, 0xb0),
    Colour(0x23, 0x99, 0x8a),
    Colour(0x6a, 0xb0, 0x3e),
    Colour(0xe3, 0xa8, 0x1c),
    Colour(0xc9, 0x3b, 0x36),
];

/// Red, green and blue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Colour(u8, u8, u8);

impl Colour {
    /// The colour of one of `count` things.
    pub(crate) fn of(index: u32, count: u32) -> Self {
        if count <= DISTINCT.len() as u32 {
            return DISTINCT[index as usize % DISTINCT.len()];
        }
        let place = f64::from(index.min(count - 1)) / f64::from(count - 1);
        let along = place * (SCALE.len() - 1) as f64;
        let from = (along as usize).min(SCALE.len() - 2);
        SCALE[from].toward(SCALE[from + 1], along - from as f64)
    }

    /// As SVG has it.
    pub(crate) fn hex(self) -> String {
        format!("#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }

    /// The same hue, nearly white.
    pub(crate) fn tint(self) -> Self {
        self.toward(Self(255, 255, 255), 0.85)
    }

    /// The same hue, dark enough for text on white.
    pub(crate) fn shade(self) -> Self {
        self.toward(Self(0, 0, 0), 0.4)
    }

    /// Black or white, whichever is read more easily on this colour (relative luminance of
    /// WCAG 2.1, without its gamma).
    pub(crate) fn ink(self) -> &'static str {
        let luminance =
            0.2126 * f64::from(self.0) + 0.7152 * f64::from(self.1) + 0.0722 * f64::from(self.2);
        if luminance > 150.0 { "#000000" } else { "#ffffff" }
    }

    fn toward(self, other: Self, share: f64) -> Self {
        let mix = |a: u8, b: u8| (f64::from(a) + (f64::from(b) - f64::from(a)) * share) as u8;
        Self(mix(self.0, other.0), mix(self.1, other.1), mix(self.2, other.2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn blocks_have_colours_of_their_own() {
        for count in [1, 2, 10, 11, 17, 64] {
            let colours: BTreeSet<String> =
                (0..count).map(|index| Colour::of(index, count).hex()).collect();
            assert_eq!(colours.len(), count as usize, "{count} blocks");
        }
        assert_eq!(Colour::of(u32::MAX, u32::MAX).hex(), SCALE[5].hex());
    }
}
