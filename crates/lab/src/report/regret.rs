//! Tables of regret: the mean over the cells for each contender, and the worst cells of the judged ones.

use core::fmt::Write;

use super::{style::wrap, text::column_name};
use crate::{
    record::Manifest,
    regret::{Entry, Loss, Regret},
};

/// Worst cells that are listed for each figure.
const LISTED: usize = 10;

/// Value in the display unit.
fn value(loss: Loss, value: f64) -> String {
    match loss {
        _ if value.is_infinite() => "never".to_owned(),
        Loss::Goodput => format!("{:.3} Mbit/s", value / 1e6),
        Loss::Queueing | Loss::Time => format!("{:.1} ms", value * 1e3),
    }
}

fn names(regret: &Regret, manifest: &Manifest) -> Vec<String> {
    regret.contenders.iter().map(|name| column_name(name, manifest)).collect()
}

fn worst(regret: &Regret, contender: usize, loss: Loss) -> impl Iterator<Item = &Entry> {
    regret.worst(contender, loss).into_iter().take(LISTED)
}

/// The tables as Markdown.
pub(super) fn markdown(out: &mut String, regret: &Regret, manifest: &Manifest) {
    let names = names(regret, manifest);
    let fixed: Vec<&str> =
        (0..names.len()).filter(|one| !regret.judged.contains(one)).map(|one| &*names[one]).collect();
    let _ = writeln!(
        out,
        "\n## Regret\n\nEach contender against the best of {} in the same cell (queueing delay: of those with 95 % of the best \
         goodput). Beyond: cells that lose more than 15 % of the goodput, or take more than 1.1 times as long.\n\n\
         | figure | contender | cells | geometric mean | worst | beyond | worst cell |\n|---|---|---|---|---|---|---|",
        fixed.join(", ")
    );
    for loss in Loss::ALL {
        for (contender, name) in names.iter().enumerate() {
            let (Some(total), Some(worst)) = (regret.total(contender, loss), worst(regret, contender, loss).next())
            else {
                continue;
            };
            let (mean, most) = (total.mean, worst.ratio);
            let (label, cells, beyond) = (loss.label(), total.cells, total.beyond);
            let _ = writeln!(out, "| {label} | {name} | {cells} | {mean:.3} | {most:.3} | {beyond} | {} |", worst.cell);
        }
    }
    for &contender in &regret.judged {
        let _ = writeln!(
            out,
            "\n## Worst cells of {}\n\n| figure | cell | own | best | of | ratio |\n|---|---|---|---|---|---|",
            names[contender]
        );
        for loss in Loss::ALL {
            for entry in worst(regret, contender, loss) {
                let (own, best) = (value(loss, entry.own), value(loss, entry.best.0));
                let (label, of, ratio) = (loss.label(), &names[entry.best.1], entry.ratio);
                let _ = writeln!(out, "| {label} | {} | {own} | {best} | {of} | {ratio:.3} |", entry.cell);
            }
        }
    }
    for cell in &regret.incomplete {
        let _ = writeln!(out, "\nWithout a value of every contender: {cell}.");
    }
}

/// The means for a terminal.
pub(super) fn brief(out: &mut String, regret: &Regret, manifest: &Manifest) {
    let names = names(regret, manifest);
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    for loss in Loss::ALL {
        for (contender, name) in names.iter().enumerate() {
            let Some(total) = regret.total(contender, loss) else { continue };
            if contender == 0 {
                *out +=
                    &wrap(&format!("{} over that of the best fixed setting, {} cells", loss.label(), total.cells), 0);
            }
            let worst = worst(regret, contender, loss).next().map_or(1.0, |entry| entry.ratio);
            let _ = writeln!(
                out,
                "  {name:width$}  geometric mean {:.3}  worst {worst:.3}  beyond {}",
                total.mean, total.beyond
            );
        }
    }
    out.push('\n');
}
