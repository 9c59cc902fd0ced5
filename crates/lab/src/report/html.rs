//! A matrix as one self-contained HTML file: no external script, font or picture. Results come first, methods after them.

use core::fmt::Write;

mod cells;
mod found;
mod levels;
mod pictures;
mod results;
mod table;

use super::{
    MatrixReport, PAGE_STYLE,
    plain::{OF_RIVALS, label, rivals},
    plot::escape,
    series::TimeSeries,
};
use crate::{figure::Figure, scenario::Scenario};

/// Single connections over time, for a page.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// Runs that they are from, in words.
    pub about: String,
    /// Contenders, with time series of a connection of each.
    pub series: Vec<(String, TimeSeries)>,
}

/// The report as a page. `scenario` describes the simulation, `metadata` its environment (names and values).
pub fn html(report: &MatrixReport, scenario: &Scenario, metadata: &[(String, String)], samples: &Samples) -> String {
    let mut out = String::new();
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\"><link rel=\"icon\" href=\"data:,\"><title>{0}: {1}</title><style>{PAGE_STYLE}</style></head><body><main><h1>{1}</h1><p class=\"sub\">{0} · {2} × {3} × {4} = {5} · {6} · {7}{8}</p>",
        escape(&report.name),
        escape(&report.title),
        counted(report.size.points, "point"),
        counted(report.contenders.len(), "contender"),
        counted(report.size.seeds, "seed"),
        counted(report.size.runs, "run"),
        report.manifest.seconds(report.simulated.0),
        if report.manifest.is_real_time() { String::new() } else { format!("{} packets · ", report.simulated.1) },
        escape(&report.lab)
    );
    if report.varied().next().is_some() {
        let told = |(name, levels): &(String, Vec<String>)| format!("{name}: {}", levels.join(", "));
        let factors: Vec<String> = report.varied().map(told).collect();
        let _ = write!(out, "<p class=\"note\">Varied: {}</p>", escape(&factors.join("; ")));
    }
    results::results(&mut out, report);
    found::found(&mut out, report);
    pictures::clouds(&mut out, report);
    pictures::spreads(&mut out, report);
    levels::over_levels(&mut out, report);
    levels::against_baseline(&mut out, report);
    cells::cells(&mut out, report);
    rivalry(&mut out, report);
    over_time(&mut out, samples);
    table::table(&mut out, report);
    about(&mut out, report, scenario, metadata);
    out.push_str("</main></body></html>\n");
    out
}

/// A number of things.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Prints the effect of rivals on one another.
fn rivalry(out: &mut String, report: &MatrixReport) {
    let rows = rivals(report);
    if rows.is_empty() {
        return;
    }
    out.push_str("<section><h2>Rivals on one path</h2><p class=\"note\">Harm is what each loses against the same run in which the other is silent.</p><div class=\"wide\"><table><thead><tr><th>first + second</th>");
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
    out.push_str("</tbody></table></div></section>");
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

/// Names in their colours.
fn legend<'a>(out: &mut String, names: impl Iterator<Item = (usize, &'a str)>) {
    out.push_str("<p class=\"legend\">");
    for (index, name) in names {
        let _ = write!(out, "<span class=\"s{}\"><span class=\"swatch\"></span>{}</span> ", index % 8, escape(name));
    }
    out.push_str("</p>");
}

fn about(out: &mut String, report: &MatrixReport, scenario: &Scenario, metadata: &[(String, String)]) {
    let is_real = report.manifest.is_real_time();
    let heading = if is_real { "What was run" } else { "What was simulated" };
    let _ = write!(out, "<section><h2>{heading}</h2><p>{}</p>", escape(report.about.trim()));
    let toml = toml::to_string(scenario).unwrap_or_default();
    // Traces can be long; the rest of a scenario is not.
    let toml: String =
        if toml.len() > 20_000 { toml.chars().take(20_000).chain("…".chars()).collect() } else { toml };
    let _ = write!(out, "<details><summary>The scenario</summary><pre>{}</pre></details>", escape(&toml));
    out.push_str("<details><summary>The contenders</summary><div class=\"wide\"><table><thead><tr><th>contender</th><th>version</th><th>parameters</th></tr></thead><tbody>");
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
    out.push_str("</tbody></table></div></details><details><summary>What each figure means</summary><div class=\"wide\"><table><tbody>");
    for figure in Figure::all() {
        let _ = write!(out, "<tr><td>{}</td><td>{}</td></tr>", escape(&label(figure.key())), escape(figure.meaning()));
    }
    out.push_str("</tbody></table></div></details>");
    if is_real {
        out.push_str("<p class=\"note\">Real protocol code in real time, over an emulated network of one machine, whose time is part of every figure.</p>");
    } else {
        let _ = write!(
            out,
            "<p class=\"note\">Real protocol code in virtual time over a model of the path. Not modelled: the time that computers take. Trace hash of all runs: <code>{}</code></p>",
            escape(&report.trace_hash)
        );
    }
    if !metadata.is_empty() {
        out.push_str("<details><summary>Where it was run</summary><div class=\"wide\"><table><tbody>");
        for (name, value) in metadata {
            let _ = write!(out, "<tr><td>{}</td><td>{}</td></tr>", escape(name), escape(value));
        }
        out.push_str("</tbody></table></div></details>");
    }
    out.push_str("</section>");
}
