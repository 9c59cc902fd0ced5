//! Tables of text with a name at the left of each line, as wide as the longest name.

/// Width of the names, if none is longer.
const NAMES: usize = 23;

/// A table: names to the left, figures to the right.
pub(super) struct Table {
    heads: Vec<&'static str>,
    rows: Vec<(String, Vec<String>)>,
}

impl Table {
    /// A table with the title of its names and the heads of its columns.
    pub(super) fn new(heads: &[&'static str]) -> Self {
        Self { heads: heads.to_vec(), rows: Vec::new() }
    }

    /// Adds a line with an entry for each column.
    pub(super) fn add(&mut self, name: &str, entries: impl Into<Vec<String>>) {
        self.rows.push((name.to_owned(), entries.into()));
    }

    /// Its lines below an empty one; nothing without rows.
    pub(super) fn text(&self) -> String {
        let [title, heads @ ..] = &self.heads[..] else { return String::new() };
        if self.rows.is_empty() {
            return String::new();
        }
        let wide = |text: &str| text.chars().count();
        let names = self.rows.iter().map(|(name, _)| wide(name)).fold(NAMES.max(wide(title)), usize::max);
        let width = |column: usize| {
            let entries = self.rows.iter().filter_map(|(_, entries)| entries.get(column));
            entries.map(|entry| wide(entry)).fold(wide(heads[column]), usize::max)
        };
        let widths: Vec<usize> = (0..heads.len()).map(width).collect();
        let line = |name: &str, entries: &mut dyn Iterator<Item = &str>| {
            let entries = entries.zip(&widths).map(|(entry, width)| format!("  {entry:>width$}"));
            format!("{name:<names$}{}\n", entries.collect::<String>())
        };
        let mut out = String::from("\n") + &line(title, &mut heads.iter().copied());
        for (name, entries) in &self.rows {
            out += &line(name, &mut entries.iter().map(String::as_str));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other_whatever_the_names() {
        let mut table = Table::new(&["Contender", "goodput", "RTT"]);
        assert_eq!(table.text(), "");
        table.add("kernel-cubic:http1:6:fast-open:x25519", ["1.00 Mbit/s".to_owned(), "–".to_owned()]);
        table.add("tiderace cubic", ["12.00 Mbit/s".to_owned(), "20.1 ms".to_owned()]);
        let text = table.text();
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some(""));
        let lines: Vec<&str> = lines.collect();
        assert_eq!(lines.len(), 3);
        let wide = lines[0].chars().count();
        assert!(wide > NAMES && lines.iter().all(|line| line.chars().count() == wide), "{text}");
        assert!(lines[0].ends_with("     goodput      RTT") && lines[1].ends_with("   1.00 Mbit/s        –"), "{text}");
    }
}
