//! Findings in sentences: contenders against the baseline, or levels of a factor against its first; and their reliability.

use core::fmt::Write;

use crate::{
    figure::Figure,
    report::{
        Effect, FactorEffect, MatrixReport,
        plain::{plain_name, state, told},
        plot::escape,
    },
    stats::{compare::Verdict, interval::RUNS_MIN},
    versus::{Presupposed, effect, word},
};

/// Prints the findings, in sentences.
pub(super) fn found(out: &mut String, report: &MatrixReport) {
    out.push_str("<section><h2>What was found</h2>");
    for contender in report.contenders.iter().skip(1) {
        let _ =
            write!(out, "<h3>{} against {}</h3><ul class=\"found\">", escape(contender), escape(&report.contenders[0]));
        for effect in report.overall.iter().filter(|effect| effect.contender == *contender) {
            let _ = write!(out, "<li>{}</li>", sentence(effect));
        }
        out.push_str("</ul>");
    }
    if report.contenders.len() < 2 && report.factor_effects.is_empty() {
        out.push_str("<p>One contender and no factor: there is nothing to compare.</p>");
    }
    levels(out, report);
    let _ = write!(
        out,
        "<p class=\"note\">x is the median{} of the value over the one it is compared with, on the same seeds; in brackets its interval of at least 95 %; a difference stands where a ratio has no meaning. <em>Equivalent</em>: no difference that matters, 3 % for most figures. <em>Undecided</em>: the runs do not decide.</p>",
        if report.size.points >= RUNS_MIN { " over the points" } else { "" },
    );
    out.push_str("<h3>Can it be believed?</h3><ul class=\"state\">");
    for (good, sentence) in state(report) {
        let _ = write!(out, "<li class=\"{}\">{}</li>", class(good, &sentence), escape(&sentence));
    }
    out.push_str("</ul>");
    if !report.self_test.is_empty() {
        out.push_str("<details><summary>The self-test</summary><div class=\"wide\"><table><thead><tr><th>check</th><th></th><th>expected and seen</th></tr></thead><tbody>");
        for check in &report.self_test {
            let mark = if check.passed { "pass" } else { "FAIL" };
            let _ = write!(
                out,
                "<tr><td>{}</td><td>{mark}</td><td>{}</td></tr>",
                escape(check.name),
                escape(&check.detail)
            );
        }
        out.push_str("</tbody></table></div></details>");
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

pub(super) fn sentence(effect: &Effect) -> String {
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
        presupposed(effect.presupposes)
    )
}

fn presupposed(on: Option<Presupposed>) -> String {
    on.map_or_else(String::new, |on| format!(", while {} is {}", escape(plain_name(on.figure)), word(on.verdict)))
}

/// Effect of each level of each factor on a contender: in sentences for one contender, else folded.
fn levels(out: &mut String, report: &MatrixReport) {
    let mut heads: Vec<(&str, &str, &str)> = Vec::new();
    for effect in &report.factor_effects {
        let head = (effect.contender.as_str(), effect.factor.as_str(), effect.against.as_str());
        if !heads.contains(&head) {
            heads.push(head);
        }
    }
    let alone = report.contenders.len() < 2;
    if !alone && !heads.is_empty() {
        out.push_str("<details><summary>What each factor does to each contender</summary>");
    }
    for (contender, factor, against) in heads {
        let _ = write!(
            out,
            "<h3>{}: {} against {}</h3><div class=\"wide\"><table><thead><tr><th>{}</th><th>figure</th><th></th><th>effect</th></tr></thead><tbody>",
            escape(contender),
            escape(factor),
            escape(against),
            escape(factor)
        );
        let of_head = report.factor_effects.iter().filter(|one| one.contender == contender && one.factor == factor);
        let mut last = "";
        for one in of_head {
            let level = if last == one.level { "" } else { &one.level };
            last = &one.level;
            level_row(out, level, one);
        }
        out.push_str("</tbody></table></div>");
    }
    if !alone && !report.factor_effects.is_empty() {
        out.push_str("</details>");
    }
}

fn level_row(out: &mut String, level: &str, one: &FactorEffect) {
    let class = word(one.result.verdict);
    let size = Figure::from_key(one.figure).map_or_else(String::new, |figure| effect(figure, &one.result));
    let _ = write!(
        out,
        "<tr><td>{}</td><td>{}</td><td><span class=\"tag {class}\">{class}</span></td><td>{}{}</td></tr>",
        escape(level),
        escape(plain_name(one.figure)),
        escape(&size),
        presupposed(one.presupposes)
    );
}
