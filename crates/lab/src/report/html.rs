//! A matrix as one HTML file that needs nothing else: no script, no font and no picture from elsewhere. What was found stands
//! first, how it was found behind it.

use core::fmt::Write;

use super::{
    Effect, MatrixReport,
    plain::{OF_RIVALS, label, plain_name, printed, rivals, state, told},
    plot::{Axis, Bar, Series, distribution, ellipses, escape, forest},
    series::TimeSeries,
};
use crate::{
    figure::Figure,
    scenario::Scenario,
    stats::{compare::Verdict, interval::RUNS_MIN},
    versus::{effect, word, words},
};

const STYLE: &str = include_str!("style.css");

/// Single connections over time, for a page.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// Runs that they are from, in words.
    pub about: String,
    /// The contenders and what a connection of each did.
    pub series: Vec<(String, TimeSeries)>,
}

/// The report as a page. `scenario` says what was simulated, `metadata` where (names and values).
pub fn html(report: &MatrixReport, scenario: &Scenario, metadata: &[(String, String)], samples: &Samples) -> String {
    let mut out = String::new();
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\"><link rel=\"icon\" href=\"data:,\"><title>{0}: {1}</title><style>{STYLE}</style></head><body><main><h1>{1}</h1><p class=\"sub\">{0} · {2} points × {3} contenders × {4} seeds = {5} runs · {6:.0} virtual seconds · {7} packets · {8}</p>",
        escape(&report.name),
        escape(&report.title),
        report.size.points,
        report.contenders.len(),
        report.size.seeds,
        report.size.runs,
        report.simulated.0,
        report.simulated.1,
        escape(&report.lab)
    );
    verdict(&mut out, report);
    legend(&mut out, report);
    pictures(&mut out, report);
    by_level(&mut out, report);
    rivalry(&mut out, report);
    over_time(&mut out, samples);
    table(&mut out, report);
    about(&mut out, report, scenario, metadata);
    out.push_str("</main></body></html>\n");
    out
}

/// Prints the effect of rivals on one another.
fn rivalry(out: &mut String, report: &MatrixReport) {
    let rows = rivals(report);
    if rows.is_empty() {
        return;
    }
    out.push_str("<section><h2>Rivals on one path</h2><p class=\"note\">Harm is what each loses against the same run in which the other is silent.</p><table><thead><tr><th>first + second</th>");
    for figure in OF_RIVALS {
        let _ = write!(out, "<th class=\"n\">{}</th>", escape(&label(figure.key())));
    }
    out.push_str("</tr></thead><tbody>");
    for (name, figures) in rows {
        let _ = write!(out, "<tr><td>{}</td>", escape(&name));
        for text in figures {
            let _ = write!(out, "<td class=\"n\">{text}</td>");
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></section>");
}

/// One connection of each contender over time.
fn over_time(out: &mut String, samples: &Samples) {
    if samples.series.is_empty() {
        return;
    }
    let _ = write!(out, "<section><h2>One connection over time</h2><p class=\"note\">{}</p>", escape(&samples.about));
    for (index, (name, series)) in samples.series.iter().enumerate() {
        let open = if index == 0 { " open" } else { "" };
        let _ = write!(out, "<details{open}><summary>{}</summary>", escape(name));
        series.body(out);
        out.push_str("</details>");
    }
    out.push_str("</section>");
}

/// Prints the findings, in sentences.
fn verdict(out: &mut String, report: &MatrixReport) {
    out.push_str("<section><h2>What was found</h2>");
    for contender in report.contenders.iter().skip(1) {
        let _ =
            write!(out, "<h3>{} against {}</h3><ul class=\"found\">", escape(contender), escape(&report.contenders[0]));
        for effect in report.overall.iter().filter(|effect| effect.contender == *contender) {
            let _ = write!(out, "<li>{}</li>", sentence(effect));
        }
        out.push_str("</ul>");
    }
    if report.contenders.len() < 2 {
        out.push_str("<p>One contender only: there is nothing to compare it with.</p>");
    }
    let _ = write!(
        out,
        "<p class=\"note\">x is the median{} of contender / baseline on the same seeds, in brackets its interval of at least 95 %; a difference stands where a ratio has no meaning. <em>Equivalent</em>: no difference that matters, 3 % for most figures. <em>Undecided</em>: the runs do not decide.</p>",
        if report.size.points >= RUNS_MIN { " over the points" } else { "" },
    );
    out.push_str("<h3>Can it be believed?</h3><ul class=\"state\">");
    for (good, sentence) in state(report) {
        let _ = write!(out, "<li class=\"{}\">{}</li>", class(good, &sentence), escape(&sentence));
    }
    out.push_str("</ul>");
    if !report.self_test.is_empty() {
        out.push_str("<details><summary>The self-test</summary><table><thead><tr><th>check</th><th></th><th>expected and seen</th></tr></thead><tbody>");
        for check in &report.self_test {
            let mark = if check.passed { "pass" } else { "FAIL" };
            let _ = write!(
                out,
                "<tr><td>{}</td><td>{mark}</td><td>{}</td></tr>",
                escape(check.name),
                escape(&check.detail)
            );
        }
        out.push_str("</tbody></table></details>");
    }
    out.push_str("</section>");
}

/// Class of a sentence: a comparison that could not be made is neither good nor bad.
fn class(good: bool, sentence: &str) -> &'static str {
    match (good, sentence.contains("not made")) {
        (_, true) => "note",
        (true, _) => "good",
        (false, _) => "bad",
    }
}

fn sentence(effect: &Effect) -> String {
    let class = word(effect.result.verdict);
    let tally: usize = effect.tally.iter().sum();
    // With too few seeds every point is undecided, which says nothing about the points.
    let points = if tally > 1 && effect.tally[Verdict::Undecided as usize] < tally {
        let [better, worse, equivalent, undecided, _] = effect.tally;
        format!(
            " <span class=\"note\">by point: {better} better, {worse} worse, {equivalent} equivalent, {undecided} undecided</span>"
        )
    } else {
        String::new()
    };
    format!(
        "<span class=\"tag {class}\">{class}</span> {} {}{}{points}",
        escape(plain_name(effect.figure)),
        escape(&told(effect)),
        effect.presupposes.map_or_else(String::new, |on| format!(
            ", while {} is {}",
            escape(plain_name(on.figure)),
            word(on.verdict)
        ))
    )
}

fn legend(out: &mut String, report: &MatrixReport) {
    out.push_str("<p class=\"legend\">");
    for (index, name) in report.contenders.iter().enumerate() {
        let _ = write!(out, "<span class=\"s{}\"><span class=\"swatch\"></span>{}</span> ", index % 8, escape(name));
    }
    out.push_str("</p>");
}

/// A figure of a contender in every point, in printed units.
fn across(report: &MatrixReport, contender: usize, figure: Figure) -> Vec<Option<f64>> {
    let scale = figure.unit().printed().1;
    let of = |point: &super::PointRow| {
        point.figures[contender].iter().find(|quoted| quoted.figure == figure.key()).map(|quoted| quoted.median * scale)
    };
    report.points.iter().map(of).collect()
}

fn pictures(out: &mut String, report: &MatrixReport) {
    // A delay that somebody feels: in the queue where there is one, else that of the workload.
    let delays = [Figure::QueueDelayP99, Figure::DelayP95, Figure::RequestP95, Figure::RttP95];
    let present =
        |figure: &Figure| across(report, 0, *figure).iter().flatten().any(|value| *value > 0.0 && value.is_finite());
    let Some(delay) = delays.into_iter().find(present) else { return };
    let series: Vec<Series> = report
        .contenders
        .iter()
        .enumerate()
        .map(|(index, name)| {
            let pairs = across(report, index, delay).into_iter().zip(across(report, index, Figure::Goodput));
            let points = pairs.filter_map(|(delay, goodput)| Some((delay?, goodput?))).collect();
            Series { name: name.clone(), points }
        })
        .collect();
    let many = report.size.points > 1;
    let (delay_label, goodput_label) = (label(delay.key()), label(Figure::Goodput.key()));
    out.push_str("<section><h2>Goodput against delay</h2><p class=\"note\">A dot is a point of the matrix (median over its seeds). Up and to the right is better. An ellipse holds about two thirds of a contender's dots.</p>");
    out.push_str(&ellipses(
        &series,
        Axis { label: &delay_label, log: many, reversed: true },
        Axis { label: &goodput_label, log: many, reversed: false },
    ));
    out.push_str("</section>");
    if many && report.contenders.len() > 1 {
        let base = across(report, 0, Figure::Goodput);
        let ratios: Vec<(String, Vec<f64>)> = report
            .contenders
            .iter()
            .enumerate()
            .skip(1)
            .map(|(index, name)| {
                let own = across(report, index, Figure::Goodput);
                let ratio = own.iter().zip(&base).filter_map(|(own, base)| Some((*own)? / (*base)?));
                (name.clone(), ratio.filter(|ratio| ratio.is_finite() && *ratio > 0.0).collect())
            })
            .collect();
        let name = format!("goodput / goodput of {}", report.contenders[0]);
        // The first colour is the baseline's.
        let shifted: Vec<(String, Vec<f64>)> = core::iter::once((String::new(), Vec::new())).chain(ratios).collect();
        out.push_str("<section><h2>How often, by how much</h2><p class=\"note\">The share of points in which the ratio is at most the value below. Right of the line is better than the baseline.</p>");
        out.push_str(&distribution(&shifted, Axis { label: &name, log: true, reversed: false }, Some(1.0)));
        out.push_str("</section>");
    }
}

fn by_level(out: &mut String, report: &MatrixReport) {
    if report.by_level.is_empty() {
        return;
    }
    out.push_str("<section><h2>What the factors change</h2>");
    let figures: Vec<&str> = {
        let mut figures: Vec<&str> = Vec::new();
        for effect in &report.by_level {
            if !figures.contains(&effect.figure) {
                figures.push(effect.figure);
            }
        }
        figures
    };
    for (index, figure) in figures.iter().enumerate() {
        let (mut bars, mut differences) = (Vec::new(), String::new());
        let mut last = None;
        for effect in report.by_level.iter().filter(|effect| effect.figure == *figure) {
            let Some(level) = &effect.level else { continue };
            let Some(ratio) = effect.result.ratio.filter(|ratio| ratio.value > 0.0) else {
                let _ = write!(
                    differences,
                    "<li>{} {}, {}: {}</li>",
                    escape(level.0.rsplit('.').next().unwrap_or(&level.0)),
                    escape(&level.1),
                    escape(&effect.contender),
                    sentence(effect)
                );
                continue;
            };
            let series = report.contenders.iter().position(|name| *name == effect.contender).unwrap_or(0);
            bars.push(Bar {
                label: format!("{} {}", level.0.rsplit('.').next().unwrap_or(&level.0), level.1),
                series,
                value: ratio.value,
                low: ratio.low,
                high: ratio.high,
                first: last != Some(&level.0),
            });
            last = Some(&level.0);
        }
        let title = format!("{} against {}", plain_name(figure), report.contenders[0]);
        let open = if index == 0 { " open" } else { "" };
        let picture = if bars.is_empty() { String::new() } else { forest(&bars, &title) };
        let list = if differences.is_empty() { differences } else { format!("<ul class=\"found\">{differences}</ul>") };
        let _ = write!(out, "<details{open}><summary>{}</summary>{picture}{list}</details>", escape(&title));
    }
    out.push_str("</section>");
}

/// Rows of the table of points at most: a page of a few megabytes is still read by a browser at once.
const ROWS_MAX: usize = 6_000;

fn table(out: &mut String, report: &MatrixReport) {
    let mut figures: Vec<&str> = Vec::new();
    for quoted in report.points.iter().flat_map(|point| &point.figures).flatten() {
        if !figures.contains(&quoted.figure) {
            figures.push(quoted.figure);
        }
    }
    let open = if report.size.points <= 12 { " open" } else { "" };
    let _ = write!(
        out,
        "<section><h2>Every point</h2><details{open}><summary>{} points</summary><div class=\"wide\"><table><thead><tr>",
        report.size.points
    );
    for (name, _) in &report.factors {
        let _ = write!(out, "<th>{}</th>", escape(name));
    }
    out.push_str("<th>contender</th>");
    for figure in &figures {
        let _ = write!(out, "<th class=\"n\">{}</th>", escape(&label(figure)));
    }
    let _ = write!(out, "<th>{} against the baseline</th></tr></thead><tbody>", escape(plain_name(report.deciding)));
    let mut rows = 0;
    for point in &report.points {
        if rows > ROWS_MAX {
            break;
        }
        for (index, own) in point.figures.iter().enumerate() {
            rows += 1;
            out.push_str("<tr>");
            for level in &point.levels {
                let _ = write!(out, "<td>{}</td>", escape(level));
            }
            let _ = write!(out, "<td>{}</td>", escape(&report.contenders[index]));
            for figure in &figures {
                let quoted = own.iter().find(|quoted| quoted.figure == *figure);
                let text = quoted.map_or_else(
                    || "–".to_owned(),
                    |quoted| match quoted.interval {
                        Some((low, high)) => format!(
                            "{} <small>[{}, {}]</small>",
                            printed(figure, quoted.median),
                            printed(figure, low),
                            printed(figure, high)
                        ),
                        None => printed(figure, quoted.median),
                    },
                );
                let _ = write!(out, "<td class=\"n\">{text}</td>");
            }
            let against = index.checked_sub(1).and_then(|index| point.verdicts[index].as_ref());
            let text = against.zip(Figure::from_key(report.deciding)).map_or_else(String::new, |(result, figure)| {
                format!("{} {}", effect(figure, result), words(result, None))
            });
            let _ = write!(out, "<td>{}</td></tr>", escape(&text));
        }
    }
    out.push_str("</tbody></table></div></details>");
    if rows > ROWS_MAX {
        let _ = write!(out, "<p class=\"note\">The first {rows} rows; `--csv` has all.</p>");
    }
    out.push_str("</section>");
}

fn about(out: &mut String, report: &MatrixReport, scenario: &Scenario, metadata: &[(String, String)]) {
    let _ = write!(out, "<section><h2>What was simulated</h2><p>{}</p>", escape(report.about.trim()));
    let toml = toml::to_string(scenario).unwrap_or_default();
    // Traces can be long; the rest of a scenario is not.
    let toml: String =
        if toml.len() > 20_000 { toml.chars().take(20_000).chain("…".chars()).collect() } else { toml };
    let _ = write!(out, "<details><summary>The scenario</summary><pre>{}</pre></details>", escape(&toml));
    out.push_str("<details><summary>The contenders</summary><table><thead><tr><th>contender</th><th>version</th><th>parameters</th></tr></thead><tbody>");
    for identity in &report.identities {
        let parameters: Vec<String> =
            identity.parameters.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let _ = write!(
            out,
            "<tr><td>{}</td><td>{}</td><td><small>{}</small></td></tr>",
            escape(&identity.name),
            escape(&identity.version),
            escape(&parameters.join("; "))
        );
    }
    out.push_str("</tbody></table></details><details><summary>What each figure means</summary><table><tbody>");
    for figure in Figure::all() {
        let _ = write!(out, "<tr><td>{}</td><td>{}</td></tr>", escape(&label(figure.key())), escape(figure.meaning()));
    }
    let _ = write!(
        out,
        "</tbody></table></details><p class=\"note\">Real protocol code in virtual time over a model of the path. Not modelled: the time that computers take. Trace hash of all runs: <code>{}</code></p>",
        escape(&report.trace_hash)
    );
    if !metadata.is_empty() {
        out.push_str("<details><summary>Where it was run</summary><table><tbody>");
        for (name, value) in metadata {
            let _ = write!(out, "<tr><td>{}</td><td>{}</td></tr>", escape(name), escape(value));
        }
        out.push_str("</tbody></table></details>");
    }
    out.push_str("</section>");
}
