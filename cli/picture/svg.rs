//! The few elements of SVG 1.1 that the pictures need, as text.
//!
//! Lengths are in pixels. Colours are written by [`super::colour`] and by constants of this crate;
//! all text that is shown goes through [`escape`].

use std::fmt::Write as _;

/// Text on the background.
pub(crate) const INK: &str = "#1f2328";
/// Text that explains.
pub(crate) const FAINT: &str = "#59636e";
/// Lines that help the eye.
pub(crate) const GRID: &str = "#d9dee3";
/// The background: always painted, so that a dark page does not shine through.
pub(crate) const PAPER: &str = "#ffffff";
/// The width of a character as a share of the font's size, generously.
const CHARACTER: f64 = 0.6;

/// Where a text stands against its place.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Anchor {
    /// It begins there.
    Start,
    /// It is centred there.
    Middle,
    /// It ends there.
    End,
}

/// A drawing under construction: its size and its elements.
#[derive(Debug, Default)]
pub(crate) struct Drawing {
    pub(crate) width: f64,
    pub(crate) height: f64,
    body: String,
}

/// A text to be drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    pub(crate) x: f64,
    /// The middle of the line of text.
    pub(crate) y: f64,
    pub(crate) size: f64,
    pub(crate) anchor: Anchor,
    pub(crate) colour: &'a str,
    pub(crate) bold: bool,
}

impl<'a> Text<'a> {
    /// Plain text that begins at the place.
    pub(crate) fn at(x: f64, y: f64, size: f64) -> Self {
        Self { x, y, size, anchor: Anchor::Start, colour: INK, bold: false }
    }

    pub(crate) fn anchor(self, anchor: Anchor) -> Self {
        Self { anchor, ..self }
    }

    pub(crate) fn colour(self, colour: &'a str) -> Self {
        Self { colour, ..self }
    }

    pub(crate) fn bold(self) -> Self {
        Self { bold: true, ..self }
    }
}

impl Drawing {
    /// An empty drawing.
    pub(crate) fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new() }
    }

    /// A rectangle: its place and size, what fills it, and a border inside its edge.
    pub(crate) fn rectangle(
        &mut self,
        (x, y): (f64, f64),
        (width, height): (f64, f64),
        fill: &str,
        border: Option<(&str, f64)>,
    ) {
        let inset = border.map_or(0.0, |(_, thickness)| thickness / 2.0);
        let (x, y) = (number(x + inset), number(y + inset));
        let (width, height) =
            (number((width - 2.0 * inset).max(0.1)), number((height - 2.0 * inset).max(0.1)));
        self.push(format_args!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\""
        ));
        if let Some((colour, thickness)) = border {
            let thickness = number(thickness);
            self.push(format_args!(" stroke=\"{colour}\" stroke-width=\"{thickness}\""));
        }
        self.body.push_str("/>\n");
    }

    /// A line through the points; `dashes` as in `stroke-dasharray`.
    pub(crate) fn line(&mut self, points: &[(f64, f64)], colour: &str, width: f64, dashes: &str) {
        if points.len() < 2 {
            return;
        }
        self.body.push_str("<polyline points=\"");
        for &(x, y) in points {
            let (x, y) = (number(x), number(y));
            self.push(format_args!("{x},{y} "));
        }
        self.body.truncate(self.body.trim_end().len());
        let width = number(width);
        self.push(format_args!(
            "\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" stroke-linejoin=\"round\""
        ));
        if !dashes.is_empty() {
            self.push(format_args!(" stroke-dasharray=\"{dashes}\""));
        }
        self.body.push_str("/>\n");
    }

    /// A small disc with a white edge.
    pub(crate) fn dot(&mut self, (x, y): (f64, f64), radius: f64, colour: &str) {
        let (x, y, radius) = (number(x), number(y), number(radius));
        self.push(format_args!(
            "<circle cx=\"{x}\" cy=\"{y}\" r=\"{radius}\" fill=\"{colour}\" stroke=\"{PAPER}\"/>\n"
        ));
    }

    /// A line of text.
    pub(crate) fn text(&mut self, text: Text<'_>, content: &str) {
        let Text { x, y, size, anchor, colour, bold } = text;
        // Not dominant-baseline, which some viewers do not know: digits are 0.72 of the size high.
        let (x, y, size) = (number(x), number(y + 0.36 * size), number(size));
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let weight = if bold { " font-weight=\"bold\"" } else { "" };
        let content = escape(content);
        self.push(format_args!(
            "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\" fill=\"{colour}\"{anchor}{weight}>\
             {content}</text>\n"
        ));
    }

    /// Puts another drawing into this one, its corner at `place`.
    pub(crate) fn place(&mut self, (x, y): (f64, f64), other: &Self) {
        let (x, y) = (number(x), number(y));
        self.push(format_args!("<g transform=\"translate({x},{y})\">\n{}</g>\n", other.body));
    }

    /// The whole file.
    pub(crate) fn into_document(self, title: &str) -> String {
        let (width, height) = (number(self.width), number(self.height));
        format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" \
             font-family=\"DejaVu Sans, Verdana, Helvetica, Arial, sans-serif\">\n\
             <title>{}</title>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"{PAPER}\"/>\n{}</svg>\n",
            escape(title),
            self.body
        )
    }

    fn push(&mut self, arguments: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _written = self.body.write_fmt(arguments);
    }
}

/// The width that a text takes at most, in pixels.
pub(crate) fn text_width(content: &str, size: f64) -> f64 {
    content.chars().count() as f64 * CHARACTER * size
}

/// Text as it stands in XML: the five special characters named, and what XML 1.0 has no place for
/// left out.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            '\u{fffe}' | '\u{ffff}' => {}
            _ if character.is_control() => escaped.push(' '),
            _ => escaped.push(character),
        }
    }
    escaped
}

/// A length with at most two digits after the point.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    match text.trim_end_matches('0').trim_end_matches('.') {
        "-0" => "0".into(),
        short => short.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_given_can_leave_its_place() {
        let hostile = "</text><script>\"&'\u{0}\u{ffff}";
        let mut drawing = Drawing::new(10.0, 10.0);
        drawing.text(Text::at(1.0, 2.0, 10.0), hostile);
        let document = drawing.into_document(hostile);
        assert!(!document.contains("<script"), "{document}");
        assert!(!document.contains('\u{0}') && !document.contains('\u{ffff}'));
        assert_eq!(document.matches("&lt;/text&gt;&lt;script&gt;&quot;&amp;&apos;").count(), 2);
    }

    #[test]
    fn numbers_are_short_and_never_minus_zero() {
        for (value, text) in [(1.0, "1"), (0.126, "0.13"), (-0.001, "0"), (10.5, "10.5")] {
            assert_eq!(number(value), text);
        }
    }
}
