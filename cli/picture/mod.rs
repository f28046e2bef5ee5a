//! Pictures as SVG files: [`timeline`] and [`curve`], one above the other.

mod colour;
pub(crate) mod curve;
mod svg;
pub(crate) mod timeline;

use svg::Drawing;

/// The picture: a timeline, a curve below it, or only one of them.
pub(crate) fn document(
    title: &str,
    timeline: Option<&timeline::Timeline>,
    curve: Option<&curve::Curve>,
) -> String {
    let parts = [timeline.map(timeline::Timeline::draw), curve.map(curve::Curve::draw)];
    let parts: Vec<Drawing> = parts.into_iter().flatten().collect();
    let width = parts.iter().map(|part| part.width).fold(0.0, f64::max);
    let height = parts.iter().map(|part| part.height).sum();
    let mut whole = Drawing::new(width, height);
    let mut y = 0.0;
    for part in &parts {
        whole.place((0.0, y), part);
        y += part.height;
    }
    whole.into_document(title)
}
