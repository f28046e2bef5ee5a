//! Tables for people.

/// Where a column's cells stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Lines of cells under a heading, each column as wide as its widest cell.
#[derive(Debug)]
pub(crate) struct Table<const COLUMNS: usize> {
    align: [Align; COLUMNS],
    lines: Vec<[String; COLUMNS]>,
}

impl<const COLUMNS: usize> Table<COLUMNS> {
    /// A table with this heading.
    pub(crate) fn new(heading: [(&str, Align); COLUMNS]) -> Self {
        Self {
            align: heading.map(|(_, align)| align),
            lines: vec![heading.map(|(name, _)| name.to_owned())],
        }
    }

    /// One more line.
    pub(crate) fn push(&mut self, line: [String; COLUMNS]) {
        self.lines.push(line);
    }
}

impl<const COLUMNS: usize> std::fmt::Display for Table<COLUMNS> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut widths = [0; COLUMNS];
        for line in &self.lines {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for line in &self.lines {
            let mut text = String::new();
            for ((cell, &width), align) in line.iter().zip(&widths).zip(self.align) {
                if width == 0 {
                    continue;
                }
                let gap = if text.is_empty() { "" } else { "  " };
                text += &match align {
                    Align::Left => format!("{gap}{cell:<width$}"),
                    Align::Right => format!("{gap}{cell:>width$}"),
                };
            }
            writeln!(f, "{}", text.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_under_each_other() {
        let mut table = Table::new([("NAME", Align::Left), ("N", Align::Right), ("", Align::Left)]);
        table.push(["a".into(), "7".into(), String::new()]);
        table.push(["long-name".into(), "1234".into(), String::new()]);
        assert_eq!(table.to_string(), "NAME          N\na             7\nlong-name  1234\n");
    }
}
