//! Colours, bars and widths of text for a terminal.

/// Columns of a line.
pub(super) const COLUMNS: usize = 80;

/// Style of text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Style {
    /// Escape sequences for colours, and small bars behind values.
    pub colour: bool,
}

impl Style {
    /// In bold.
    pub(super) fn bold(self, text: &str) -> String {
        if self.colour { format!("\x1b[1m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// As the best of its row.
    pub(super) fn best(self, text: &str) -> String {
        if self.colour { format!("\x1b[1;32m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// Styles text as a warning.
    pub(super) fn alarm(self, text: &str) -> String {
        if self.colour { format!("\x1b[1;31m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// A bar one column wide, with a height relative to the largest value of its row; empty without a terminal.
    pub(super) fn bar(self, value: f64, largest: f64) -> String {
        const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        if !self.colour || largest <= 0.0 {
            return String::new();
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let level = (value / largest * 8.0).ceil().clamp(1.0, 8.0) as usize;
        format!("\x1b[2m{}\x1b[0m", LEVELS[level - 1])
    }
}

/// Columns on a terminal: every character that is printed here is one wide.
pub(super) fn width(text: &str) -> usize {
    text.chars().count()
}

/// Breaks text into lines of at most 80 columns; all but the first begin with `indent` spaces. Words joined by a no-break
/// space stay together.
pub fn wrap(text: &str, indent: usize) -> String {
    let words = text.trim_start_matches(' ');
    let mut column = text.len() - words.len();
    let mut out = " ".repeat(column);
    let mut first = true;
    for word in words.split(' ') {
        let size = width(word);
        if !first && column + 1 + size > COLUMNS {
            out.truncate(out.trim_end_matches(' ').len());
            out.push('\n');
            out.extend(core::iter::repeat_n(' ', indent));
            column = indent;
        } else if !first {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += size;
        first = false;
    }
    out.push('\n');
    out.replace('\u{a0}', " ")
}

/// Groups columns of these widths into blocks that fit beside a first column, two spaces apart.
pub(super) fn blocks(first: usize, widths: &[usize]) -> Vec<core::ops::Range<usize>> {
    let mut blocks = Vec::new();
    let (mut start, mut used) = (0, first);
    for (index, width) in widths.iter().enumerate() {
        if index > start && used + 2 + width > COLUMNS {
            blocks.push(start..index);
            (start, used) = (index, first);
        }
        used += 2 + width;
    }
    if start < widths.len() {
        blocks.push(start..widths.len());
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_fits() {
        let text = format!("{} 12\u{a0}Mbit/s", "word ".repeat(30));
        let wrapped = wrap(text.trim(), 2);
        assert!(wrapped.lines().all(|line| width(line) <= COLUMNS && !line.ends_with(' ')));
        assert!(wrapped.lines().skip(1).all(|line| line.starts_with("  ")) && wrapped.contains("12 Mbit/s"));
        assert_eq!(wrap("  a  b", 4), "  a  b\n");
        assert_eq!(blocks(20, &[10, 10, 10, 10, 10, 10]), [0..5, 5..6]);
        assert_eq!(blocks(70, &[30, 5, 5]), [0..1, 1..2, 2..3], "a column that never fits stands alone");
        assert!(blocks(20, &[]).is_empty());
    }

    #[test]
    fn nothing_but_text_without_a_terminal() {
        let plain = Style::default();
        assert_eq!(plain.best("1") + &plain.bold("2") + &plain.bar(1.0, 1.0), "12");
        let coloured = Style { colour: true };
        assert!(coloured.bar(1.0, 1.0).contains('█') && coloured.bar(0.0, 1.0).contains('▁'));
        assert_eq!(coloured.bar(0.0, 0.0), "");
    }
}
