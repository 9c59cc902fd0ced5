//! Absolute values first: medians with intervals, the best of each row or point marked, and the conclusion.

use core::fmt::Write;

use crate::{
    figure::Figure,
    report::{
        MatrixReport,
        board::{Board, Row},
        brief::is_best,
        plain::{label, plain_name, printed},
        plot::escape,
        points::{LISTED, short},
    },
    stats::interval::Interval,
};

/// Prints the absolute values and the conclusion.
pub(super) fn results(out: &mut String, report: &MatrixReport) {
    let (grid, boards) = (&report.headlines.grid, &report.headlines.boards);
    let sentence = escape(&report.headlines.sentence.replace('\u{a0}', " "));
    let _ = write!(out, "<section><h2>Results</h2><p class=\"lead\">{sentence}</p>");
    if let [board] = boards.as_slice() {
        one_point(out, board);
    } else if boards.len() <= LISTED {
        for (index, figure) in report.headlines.shown.iter().enumerate() {
            let open = if index == 0 { " open" } else { "" };
            let _ = write!(out, "<details{open}><summary>{}</summary>", escape(&label(figure.key())));
            let heads: Vec<&str> = grid.rows[0].iter().map(|(name, _)| short(name)).collect();
            begin(out, &heads.join(", "), &grid.columns);
            for (row, board) in boards.iter().enumerate() {
                let _ = write!(out, "<tr><th>{}</th>", escape(&grid.row(row)));
                entries(out, board.rows.iter().find(|row| row.figure == *figure), grid.columns.len());
            }
            out.push_str("</tbody></table></div></details>");
        }
    } else {
        by_level(out, report);
    }
    out.push_str("<p class=\"note\">Medians, in brackets their intervals of at least 95 % (from six seeds on). ★ best, or no further from the best than matters (3 % for most figures), and every other contender is worse with at least 95 % confidence, paired by seed. No ★: the runs do not decide.</p></section>");
}

/// A row for each figure.
fn one_point(out: &mut String, board: &Board) {
    begin(out, "", &board.columns);
    for row in &board.rows {
        let _ = write!(out, "<tr><th>{}</th>", escape(&label(row.figure.key())));
        entries(out, Some(row), board.columns.len());
    }
    out.push_str("</tbody></table></div>");
}

fn begin(out: &mut String, head: &str, columns: &[String]) {
    let _ = write!(out, "<div class=\"wide\"><table class=\"values\"><thead><tr><th>{}</th>", escape(head));
    for column in columns {
        let _ = write!(out, "<th class=\"n\">{}</th>", escape(column));
    }
    out.push_str("</tr></thead><tbody>");
}

fn entries(out: &mut String, row: Option<&Row>, columns: usize) {
    for column in 0..columns {
        let value = row.and_then(|row| Some((row.figure, row.medians[column]?, row.intervals[column])));
        entry(out, value, row.is_some_and(|row| is_best(row, column)));
    }
    out.push_str("</tr>");
}

fn entry(out: &mut String, value: Option<(Figure, f64, Option<Interval>)>, best: bool) {
    let Some((figure, median, interval)) = value else {
        out.push_str("<td class=\"n\">–</td>");
        return;
    };
    let key = figure.key();
    // On a narrow screen an interval may take two lines, so that all contenders fit; the mark stays beside its value.
    let (class, mark) = if best { (" best", "\u{a0}★") } else { ("", "") };
    let ends = interval.map_or_else(String::new, |ends| {
        format!("<br><small>[{}, {}]</small>", printed(key, ends.low), printed(key, ends.high))
    });
    let _ = write!(out, "<td class=\"n{class}\">{}{mark}{ends}</td>", printed(key, median));
}

/// Too many points for a list: a table for each factor.
fn by_level(out: &mut String, report: &MatrixReport) {
    for (index, figure) in super::levels::figures(report).into_iter().enumerate() {
        let open = if index == 0 { " open" } else { "" };
        let _ = write!(out, "<details{open}><summary>{}</summary>", escape(&label(figure.key())));
        for (factor, levels) in report.varied().filter(|(_, levels)| levels.len() > 1) {
            begin(out, short(factor), &report.contenders);
            for level in levels {
                let _ = write!(out, "<tr><th>{}</th>", escape(level));
                for contender in &report.contenders {
                    let found = report.level_values.iter().find(|value| {
                        value.figure == figure.key()
                            && value.contender == *contender
                            && value.levels[0] == (factor.clone(), level.clone())
                    });
                    let best = found.is_some_and(|value| value.best);
                    entry(out, found.map(|value| (figure, value.median, value.interval)), best);
                }
                out.push_str("</tr>");
            }
            let _ = write!(
                out,
                "</tbody></table></div><p class=\"note\">{} over all points of a level of {}.</p>",
                escape(plain_name(figure.key())),
                escape(factor)
            );
        }
        out.push_str("</details>");
    }
}
