//! The curve: the time of each algorithm against the size of the message, both logarithmic.

use super::colour::Colour;
use super::svg::{Anchor, Drawing, FAINT, GRID, INK, PAPER, Text, text_width};
use crate::files::bytes;
use crate::time::display_ns;

/// What the curve shows.
#[derive(Debug)]
pub(crate) struct Curve {
    pub(crate) title: String,
    pub(crate) subtitle: String,
    /// The sizes in bytes, ascending, at least two; the abscissa of every line.
    pub(crate) sizes: Vec<u64>,
    /// A line for each algorithm: its name, and its time in ns at each size.
    pub(crate) lines: Vec<(String, Vec<f64>)>,
    /// The lower bound in ns at each size.
    pub(crate) bound: Vec<f64>,
    /// Which line is chosen from which size on, ascending; the first begins with the first size.
    pub(crate) chosen: Vec<Switch>,
    /// The size that was asked about, marked.
    pub(crate) asked: u64,
    /// Single runs: the index of the line, the size, and the time in ns.
    pub(crate) dots: Vec<(usize, u64, f64)>,
}

/// From this size on another line is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Switch {
    pub(crate) bytes: u64,
    /// The index in [`Curve::lines`].
    pub(crate) line: usize,
}

const LEFT: f64 = 96.0;
const TOP: f64 = 104.0;
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 470.0;
const LABELS: f64 = 210.0;
const MARGIN: f64 = 28.0;
const LABEL_SIZE: f64 = 12.0;
/// The least distance of two labels, one below the other.
const LABEL_STEP: f64 = 16.0;

/// Dashes that tell lines apart for those who cannot by colour.
const DASHES: [&str; 4] = ["", "9 3", "2 3", "9 3 2 3"];

/// Both axes: the logarithms at their ends.
struct Scale {
    x: (f64, f64),
    y: (f64, f64),
}

impl Scale {
    fn place(&self, bytes: u64, ns: f64) -> (f64, f64) {
        let across = (log(bytes as f64) - self.x.0) / (self.x.1 - self.x.0);
        let up = (log(ns) - self.y.0) / (self.y.1 - self.y.0);
        (LEFT + across * WIDTH, TOP + (1.0 - up) * HEIGHT)
    }
}

/// The decimal logarithm, of 1 at least: no time is under a nanosecond, no size under a byte. What
/// has no measure stands above everything.
fn log(value: f64) -> f64 {
    value.clamp(1.0, 1e21).log10()
}

impl Curve {
    /// Draws it.
    pub(crate) fn draw(&self) -> Drawing {
        let scale = self.scale();
        let width = (LEFT + WIDTH + LABELS).max(MARGIN * 2.0 + text_width(&self.subtitle, 12.0));
        let mut drawing = Drawing::new(width, TOP + HEIGHT + 78.0);
        drawing.text(Text::at(MARGIN, 26.0, 17.0).bold(), &self.title);
        drawing.text(Text::at(MARGIN, 48.0, 12.0).colour(FAINT), &self.subtitle);
        self.draw_axes(&mut drawing, &scale);
        self.draw_chosen(&mut drawing, &scale);
        let points = |times: &[f64]| -> Vec<(f64, f64)> {
            self.sizes.iter().zip(times).map(|(bytes, ns)| scale.place(*bytes, *ns)).collect()
        };
        drawing.line(&points(&self.bound), INK, 1.6, "1 4");
        for (index, (_, times)) in self.lines.iter().enumerate() {
            let colour = self.colour(index).hex();
            drawing.line(&points(times), &colour, 2.0, DASHES[index % DASHES.len()]);
        }
        for &(line, bytes, ns) in &self.dots {
            drawing.dot(scale.place(bytes, ns), 3.6, &self.colour(line).hex());
        }
        self.draw_labels(&mut drawing, &scale);
        drawing
    }

    fn scale(&self) -> Scale {
        let all = self.lines.iter().flat_map(|(_, times)| times).chain(&self.bound);
        let all = all.copied().chain(self.dots.iter().map(|dot| dot.2));
        let times = all.filter(|time| time.is_finite() && *time >= 1.0);
        let (mut least, mut most) = (f64::INFINITY, 10.0_f64);
        for time in times {
            (least, most) = (least.min(time), most.max(time));
        }
        let sizes = (self.sizes.first().copied().unwrap_or(1), self.sizes.last().copied());
        let x = (log(sizes.0 as f64), log(sizes.1.unwrap_or(1) as f64));
        let y = (log(least.min(most)).floor(), log(most));
        // An axis without length would divide by zero.
        Scale { x: (x.0, x.1.max(x.0 + 1.0)), y: (y.0, y.1.max(y.0 + 1.0) + 0.08) }
    }

    fn colour(&self, line: usize) -> Colour {
        // The scale of more than ten would give neighbours that look alike: colours repeat, and the
        // dashes differ.
        Colour::of((line % 10) as u32, 10)
    }

    fn draw_axes(&self, drawing: &mut Drawing, scale: &Scale) {
        let (right, bottom) = (LEFT + WIDTH, TOP + HEIGHT);
        for decade in scale.y.0 as i32..=scale.y.1 as i32 {
            for digit in 1..10 {
                let ns = f64::from(digit) * 10_f64.powi(decade);
                let (_, y) = scale.place(1, ns);
                if y < TOP || y > bottom + 0.5 {
                    continue;
                }
                let (colour, width) = if digit == 1 { (GRID, 1.2) } else { ("#eef1f4", 0.8) };
                drawing.line(&[(LEFT, y), (right, y)], colour, width, "");
                if digit == 1 {
                    let place = Text::at(LEFT - 8.0, y, 11.5).anchor(Anchor::End).colour(FAINT);
                    drawing.text(place, &display_ns(ns));
                }
            }
        }
        for shift in (0..63).step_by(3) {
            let (x, _) = scale.place(1 << shift, 1.0);
            if x < LEFT - 0.5 || x > right + 0.5 {
                continue;
            }
            drawing.line(&[(x, TOP), (x, bottom)], GRID, 1.0, "");
            let place = Text::at(x, bottom + 16.0, 11.5).anchor(Anchor::Middle).colour(FAINT);
            drawing.text(place, &bytes::display(1 << shift));
        }
        let middle = Text::at(LEFT + WIDTH / 2.0, bottom + 40.0, 12.5).anchor(Anchor::Middle);
        drawing.text(middle, "bytes of the message");
        drawing.text(Text::at(LEFT - 8.0, TOP - 18.0, 12.5).anchor(Anchor::End).bold(), "time");
    }

    /// The band above the plot: which line is chosen where, and at which sizes that changes.
    fn draw_chosen(&self, drawing: &mut Drawing, scale: &Scale) {
        let band = (TOP - 32.0, 18.0);
        for (index, switch) in self.chosen.iter().enumerate() {
            let (from, _) = scale.place(switch.bytes, 1.0);
            let next = self.chosen.get(index + 1);
            let (to, _) = next.map_or((LEFT + WIDTH, 0.0), |next| scale.place(next.bytes, 1.0));
            let colour = self.colour(switch.line);
            let hex = colour.hex();
            drawing.rectangle((from, band.0), (to - from, band.1), &hex, Some((PAPER, 1.0)));
            let name = &self.lines[switch.line].0;
            if text_width(name, 11.0) + 6.0 < to - from {
                let place = Text::at((from + to) / 2.0, band.0 + 9.0, 11.0);
                drawing.text(place.anchor(Anchor::Middle).colour(colour.ink()), name);
            }
            if index > 0 {
                drawing.line(&[(from, band.0), (from, TOP + HEIGHT)], FAINT, 1.0, "4 3");
                // Beside its line, one lower than the next where several are close together.
                let y = TOP + 12.0 + 15.0 * f64::from((index as u32 - 1) % 3);
                let text = bytes::display(switch.bytes);
                let width = text_width(&text, 11.0);
                let size = (width + 4.0, 14.0);
                drawing.rectangle((from + 3.0, y - 7.0), size, PAPER, None);
                drawing.text(Text::at(from + 5.0, y, 11.0), &text);
            }
        }
        let (x, _) = scale.place(self.asked, 1.0);
        if (LEFT..=LEFT + WIDTH).contains(&x) {
            let bottom = TOP + HEIGHT;
            drawing.line(&[(x, TOP), (x, bottom)], INK, 1.4, "");
            let place = Text::at(x, bottom + 58.0, 12.0).anchor(Anchor::Middle).bold();
            drawing.text(place, &format!("↑ {}", bytes::display(self.asked)));
        }
    }

    /// Names the lines at their right ends; where ends are close, the names are moved apart.
    fn draw_labels(&self, drawing: &mut Drawing, scale: &Scale) {
        let last = self.sizes.last().copied().unwrap_or(1);
        let mut ends: Vec<(f64, Option<usize>)> = Vec::new();
        for (index, (_, times)) in self.lines.iter().enumerate() {
            if let Some(&ns) = times.last() {
                ends.push((scale.place(last, ns).1, Some(index)));
            }
        }
        if let Some(&ns) = self.bound.last() {
            ends.push((scale.place(last, ns).1, None));
        }
        ends.sort_by(|a, b| a.0.total_cmp(&b.0));
        let lowest = TOP + HEIGHT;
        let places = spread(ends.iter().map(|(y, _)| *y), TOP, lowest);
        for (&(end, line), y) in ends.iter().zip(places) {
            let (name, colour, dashes) = match line {
                Some(line) => {
                    let dashes = DASHES[line % DASHES.len()];
                    (self.lines[line].0.as_str(), self.colour(line), dashes)
                }
                None => ("lower bound", Colour::of(7, 10), "1 4"),
            };
            let x = LEFT + WIDTH;
            let (hex, ink) = match line {
                Some(_) => (colour.hex(), colour.shade().hex()),
                None => (INK.into(), INK.into()),
            };
            drawing.line(&[(x, end), (x + 14.0, y)], &hex, 1.0, "");
            drawing.line(&[(x + 14.0, y), (x + 40.0, y)], &hex, 2.0, dashes);
            drawing.text(Text::at(x + 46.0, y, LABEL_SIZE).colour(&ink), name);
        }
    }
}

/// Places near the wished ones, which ascend, at least [`LABEL_STEP`] apart and within the ends.
fn spread(wished: impl Iterator<Item = f64>, top: f64, bottom: f64) -> Vec<f64> {
    let mut places: Vec<f64> = wished.collect();
    let mut least = top;
    for place in &mut places {
        *place = place.max(least);
        least = *place + LABEL_STEP;
    }
    let mut most = bottom;
    for place in places.iter_mut().rev() {
        *place = place.min(most);
        most = *place - LABEL_STEP;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_do_not_cover_each_other() {
        let places = spread([10.0, 11.0, 12.0, 300.0, 300.0].into_iter(), 0.0, 300.0);
        for pair in places.windows(2) {
            assert!(pair[1] - pair[0] >= LABEL_STEP - 1e-9, "{places:?}");
        }
        assert!(places[4] <= 300.0 && places[0] >= 0.0, "{places:?}");
    }

    #[test]
    fn times_without_measure_do_not_break_the_picture() {
        let curve = Curve {
            title: "t".into(),
            subtitle: "s".into(),
            sizes: vec![8, 16],
            lines: vec![("flat".into(), vec![0.0, f64::INFINITY])],
            bound: vec![0.0, 0.0],
            chosen: vec![Switch { bytes: 8, line: 0 }],
            asked: 16,
            dots: vec![(0, 8, 5.0)],
        };
        let document = curve.draw().into_document("x");
        assert!(!document.contains("NaN") && !document.contains("inf"), "{document}");
        assert!(document.contains("lower bound") && document.contains("flat"));
    }
}
