//! Suggestion of the name that was probably meant.

/// The candidate closest to `name`, if one is close enough to be a slip of the fingers.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| text.to_lowercase().replace('_', "-");
    let name = plain(name);
    candidates
        .into_iter()
        .map(|candidate| (distance(&name, &plain(candidate)), candidate))
        .min_by_key(|&(distance, _)| distance)
        .filter(|&(distance, candidate)| distance <= (candidate.len().max(name.len()) / 3).max(1))
        .map(|(_, candidate)| candidate)
}

/// Letters to insert, remove, replace or swap with their neighbour until `a` becomes `b`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let mut best = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    best = best.min(rows[i - 2][j - 2] + 1);
                }
                best
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_fingers() {
        let names = ["mobile", "production", "satellite", "high-loss"];
        for (written, meant) in [("mobil", "mobile"), ("satelite", "satellite"), ("high_loss", "high-loss")] {
            assert_eq!(nearest(written, names), Some(meant));
        }
        assert_eq!(nearest("Mobile", names), Some("mobile"));
        assert_eq!(nearest("moible", names), Some("mobile"));
        assert_eq!(nearest("lte", names), None);
        assert_eq!(nearest("", names), None);
        assert_eq!(nearest("x", []), None);
    }
}
