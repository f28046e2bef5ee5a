//! The timeline: a row for each rank, time to the right, a box for each block sent or received.

use verbcast::schedule::Direction;

use super::colour::Colour;
use super::svg::{Anchor, Drawing, FAINT, GRID, PAPER, Text, text_width};
use crate::time::display_ns;

/// Ranks shown at most: the rows of more could not be told apart.
pub(crate) const RANKS_MAX: u32 = 128;

/// Boxes shown at most, which bounds the file to some 20 MB.
pub(crate) const BOXES_MAX: usize = 100_000;

/// What a timeline shows.
#[derive(Debug)]
pub(crate) struct Timeline {
    pub(crate) title: String,
    pub(crate) subtitle: String,
    /// The ranks 0 to this one less one have a row.
    pub(crate) ranks: u32,
    pub(crate) root: Option<u32>,
    pub(crate) blocks: u32,
    /// The end of the axis, in the unit of the boxes.
    pub(crate) end: f64,
    pub(crate) axis: Axis,
    pub(crate) boxes: Vec<Span>,
    /// Ranks that are marked as having failed, from this time on.
    pub(crate) dead: Vec<(u32, f64)>,
}

/// What is on the axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Axis {
    /// Rounds, each one wide.
    Rounds,
    /// Nanoseconds.
    Time,
}

/// A block on its way out of a rank, or into it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) rank: u32,
    pub(crate) peer: u32,
    pub(crate) block: u32,
    pub(crate) direction: Direction,
    pub(crate) start: f64,
    pub(crate) end: f64,
    /// The one of how many parts of the row it takes.
    pub(crate) port: u16,
    /// It does not arrive.
    pub(crate) lost: bool,
}

/// Where things are.
struct Layout {
    left: f64,
    top: f64,
    row: f64,
    scale: f64,
    ports: u16,
}

/// What went wrong.
const DEAD: &str = "#c83c3c";
const MARGIN: f64 = 28.0;
const WIDTH_LEAST: f64 = 760.0;
const PLOT_WIDTH: f64 = 1120.0;

impl Timeline {
    /// Draws it.
    pub(crate) fn draw(&self) -> Drawing {
        let layout = self.layout();
        let plot = (self.end * layout.scale, layout.row * f64::from(self.ranks));
        let legend_top = layout.top + plot.1 + 52.0;
        let legend = self.legend();
        let width = (layout.left + plot.0 + MARGIN).max(WIDTH_LEAST).max(legend.width + MARGIN);
        let width = width.max(MARGIN * 2.0 + text_width(&self.subtitle, 12.0));
        let mut drawing = Drawing::new(width, legend_top + legend.height + MARGIN);
        drawing.text(Text::at(MARGIN, 26.0, 17.0).bold(), &self.title);
        drawing.text(Text::at(MARGIN, 48.0, 12.0).colour(FAINT), &self.subtitle);
        self.draw_axis(&mut drawing, &layout, plot);
        for span in &self.boxes {
            draw_span(&mut drawing, &layout, span, Colour::of(span.block, self.blocks));
        }
        self.draw_dead(&mut drawing, &layout, plot.0);
        drawing.place((MARGIN, legend_top), &legend);
        drawing
    }

    fn layout(&self) -> Layout {
        let ports = self.boxes.iter().map(|span| span.port + 1).max().unwrap_or(1);
        // A lane for each port, sends above receives.
        let (lane, most): (f64, f64) = match self.ranks {
            0..=16 => (17.5, 180.0),
            17..=32 => (12.5, 90.0),
            33..=64 => (9.5, 60.0),
            _ => (4.5, 30.0),
        };
        let row = (2.0 * f64::from(ports) * lane + 3.0).min(most);
        let scale = match self.axis {
            Axis::Rounds if self.end <= 8.0 => 96.0,
            Axis::Rounds => (PLOT_WIDTH / self.end).clamp(4.0, 56.0),
            Axis::Time => PLOT_WIDTH / self.end.max(1.0),
        };
        Layout { left: MARGIN + 74.0, top: 92.0, row, scale, ports }
    }

    fn draw_axis(&self, drawing: &mut Drawing, layout: &Layout, (width, height): (f64, f64)) {
        let Layout { left, top, row, scale, .. } = *layout;
        let label = Text::at(0.0, 0.0, if row < 12.0 { 8.5 } else { 11.0 });
        for rank in 0..self.ranks {
            let y = top + f64::from(rank) * row;
            if rank % 2 == 0 {
                drawing.rectangle((left, y), (width, row), "#f5f7f9", None);
            }
            let is_root = self.root == Some(rank);
            let text = if is_root { format!("root {rank}") } else { rank.to_string() };
            let place = Text { x: left - 8.0, y: y + row / 2.0, ..label }.anchor(Anchor::End);
            drawing.text(if is_root { place.bold() } else { place.colour(FAINT) }, &text);
        }
        drawing.text(Text::at(left - 8.0, top - 12.0, 11.0).anchor(Anchor::End).bold(), "rank");
        let step = tick_step(
            self.end,
            width / if self.axis == Axis::Rounds { 26.0 } else { 70.0 },
            self.axis,
        );
        let mut tick = 0.0;
        while tick <= self.end + step * 1e-6 {
            let x = left + tick * scale;
            drawing.line(&[(x, top - 4.0), (x, top + height)], GRID, 1.0, "");
            let place = match self.axis {
                // A round's number stands over its column.
                Axis::Rounds if tick >= self.end => break,
                Axis::Rounds => x + scale / 2.0,
                Axis::Time => x,
            };
            let text = match self.axis {
                Axis::Rounds => format!("{tick:.0}"),
                Axis::Time if tick == 0.0 => "0".into(),
                Axis::Time => display_ns(tick),
            };
            let place = Text::at(place, top - 12.0, 11.0).anchor(Anchor::Middle).colour(FAINT);
            drawing.text(place, &text);
            tick += step;
        }
        let name = match self.axis {
            Axis::Rounds => "round",
            Axis::Time => "time",
        };
        let place = Text::at(left + width / 2.0, top + height + 16.0, 12.0).anchor(Anchor::Middle);
        drawing.text(place, name);
    }

    fn draw_dead(&self, drawing: &mut Drawing, layout: &Layout, width: f64) {
        for &(rank, since) in self.dead.iter().filter(|(rank, _)| *rank < self.ranks) {
            let y = layout.top + (f64::from(rank) + 0.5) * layout.row;
            let x = layout.left + (since * layout.scale).min(width);
            drawing.line(&[(x, y), (layout.left + width, y)], DEAD, 1.5, "5 4");
            drawing.text(Text::at(x + 4.0, y - 6.0, 10.0).colour(DEAD).bold(), "dead");
        }
    }

    /// Sends, receives, and the colours of the blocks.
    fn legend(&self) -> Drawing {
        let mut drawing = Drawing::new(0.0, 26.0);
        let grey = Colour::of(7, 10);
        let mut x = 0.0;
        for (direction, name) in [
            (Direction::Send, "sends (hollow, above)"),
            (Direction::Recv, "receives (full, below)"),
        ] {
            draw_box(&mut drawing, (x, 5.0), (26.0, 14.0), grey, direction, 2.0);
            drawing.text(Text::at(x + 34.0, 12.0, 12.0), name);
            x += 34.0 + text_width(name, 12.0) + 14.0;
        }
        if self.boxes.iter().any(|span| span.lost) {
            draw_lost(&mut drawing, (x, 5.0), (26.0, 14.0));
            drawing.text(Text::at(x + 34.0, 12.0, 12.0), "lost");
            x += 34.0 + text_width("lost", 12.0) + 14.0;
        }
        let ends = format!("blocks 0 to {}", self.blocks.saturating_sub(1));
        let name = if self.blocks <= 20 { "block" } else { ends.as_str() };
        drawing.text(Text::at(x, 12.0, 12.0), name);
        x += text_width(name, 12.0) + 6.0;
        let (shown, width) = if self.blocks <= 20 { (self.blocks, 24.0) } else { (60, 5.0) };
        for swatch in 0..shown {
            let block = if shown == self.blocks {
                swatch
            } else {
                (u64::from(swatch) * u64::from(self.blocks - 1) / 59) as u32
            };
            let colour = Colour::of(block, self.blocks);
            drawing.rectangle((x, 5.0), (width, 14.0), &colour.hex(), None);
            if shown == self.blocks {
                let place = Text::at(x + width / 2.0, 12.0, 10.0).anchor(Anchor::Middle);
                drawing.text(place.colour(colour.ink()), &block.to_string());
            }
            x += width + if shown == self.blocks { 3.0 } else { 0.0 };
        }
        drawing.width = x;
        drawing
    }
}

fn draw_span(drawing: &mut Drawing, layout: &Layout, span: &Span, colour: Colour) {
    let lane = (layout.row - 3.0) / 2.0;
    let part = lane / f64::from(layout.ports);
    let half = if span.direction == Direction::Send { 0.0 } else { lane };
    let x = layout.left + span.start * layout.scale;
    let y =
        layout.top + f64::from(span.rank) * layout.row + 1.0 + half + f64::from(span.port) * part;
    let full = ((span.end - span.start) * layout.scale).max(0.5);
    let gap = if full > 6.0 { 1.0 } else { 0.0 };
    let size = (full - gap, (part - if part > 6.0 { 1.0 } else { 0.4 }).max(1.0));
    let thickness = if part > 10.0 { 1.6 } else { 1.0 };
    let corner = (x + gap / 2.0, y);
    if span.lost {
        draw_lost(drawing, corner, size);
        return;
    }
    draw_box(drawing, corner, size, colour, span.direction, thickness);
    let arrow = if span.direction == Direction::Send { '→' } else { '←' };
    let long = format!("{} {arrow}{}", span.block, span.peer);
    let short = span.block.to_string();
    let font = (size.1 - 1.8).min(10.5);
    let fits = |(text, font): &(&String, f64)| text_width(text, *font) < size.0 + 1.0;
    let texts = [(&long, font), (&short, font), (&short, font.min(7.5))];
    let Some((text, font)) = texts.into_iter().find(fits) else {
        return;
    };
    if font >= 6.5 {
        let shade = colour.shade().hex();
        let ink = if span.direction == Direction::Send { shade.as_str() } else { colour.ink() };
        let place = Text::at(x + full / 2.0, y + size.1 / 2.0, font).anchor(Anchor::Middle);
        drawing.text(place.colour(ink), text);
    }
}

fn draw_box(
    drawing: &mut Drawing,
    place: (f64, f64),
    size: (f64, f64),
    colour: Colour,
    direction: Direction,
    thickness: f64,
) {
    match direction {
        Direction::Send if size.0 > 3.0 && size.1 > 3.0 => {
            let fill = if size.1 > 8.0 { colour.tint().hex() } else { PAPER.into() };
            drawing.rectangle(place, size, &fill, Some((&colour.hex(), thickness)));
        }
        // Too small for a border: half as high.
        Direction::Send => {
            drawing.rectangle(place, (size.0, size.1 / 2.0), &colour.hex(), None);
        }
        Direction::Recv => drawing.rectangle(place, size, &colour.hex(), None),
    }
}

fn draw_lost(drawing: &mut Drawing, (x, y): (f64, f64), size: (f64, f64)) {
    drawing.rectangle((x, y), size, "#f7dede", (size.0 > 3.0).then_some((DEAD, 1.0)));
    if size.0 > 8.0 {
        drawing.line(&[(x, y), (x + size.0, y + size.1)], DEAD, 1.0, "");
        drawing.line(&[(x, y + size.1), (x + size.0, y)], DEAD, 1.0, "");
    }
}

/// A round distance of ticks, so that there are not more than `most` of them.
fn tick_step(end: f64, most: f64, axis: Axis) -> f64 {
    let least = end / most.max(1.0);
    let decade = 10_f64.powf(least.max(1e-9).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|digit| digit * decade);
    let step = step.into_iter().find(|step| *step >= least).unwrap_or(10.0 * decade);
    if axis == Axis::Rounds { step.max(1.0) } else { step }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_not_too_many() {
        assert_eq!(tick_step(20.0, 20.0, Axis::Rounds), 1.0);
        assert_eq!(tick_step(137.0, 20.0, Axis::Rounds), 10.0);
        assert_eq!(tick_step(3.0, 20.0, Axis::Rounds), 1.0);
        assert!((tick_step(1_234_567.0, 20.0, Axis::Time) - 100_000.0).abs() < 1e-3);
    }

    #[test]
    fn every_box_is_drawn_within_the_picture() {
        let span = |rank, direction| Span {
            rank,
            peer: 1 - rank,
            block: 0,
            direction,
            start: 0.0,
            end: 1.0,
            port: 0,
            lost: false,
        };
        let timeline = Timeline {
            title: "a <title>".into(),
            subtitle: String::new(),
            ranks: 2,
            root: Some(0),
            blocks: 1,
            end: 1.0,
            axis: Axis::Rounds,
            boxes: vec![span(0, Direction::Send), span(1, Direction::Recv)],
            dead: Vec::new(),
        };
        let document = timeline.draw().into_document("x");
        assert!(document.contains("0 →1") && document.contains("0 ←0"), "{document}");
        assert!(document.contains("root 0") && document.contains("a &lt;title&gt;"));
    }
}
