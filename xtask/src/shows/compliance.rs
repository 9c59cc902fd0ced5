//! Citations: every MUST and MUST NOT of the documents is cited in code and in a test, or excepted with a reason.

use anyhow::Result;

use super::{
    Context,
    row::{Row, Target},
};
use crate::compliance::{Keyword, survey};

/// All rows.
pub(crate) fn measure(context: &Context) -> Result<Vec<Row>> {
    let survey = survey(&context.root)?;
    let mut rows = Vec::new();
    for document in &survey.documents {
        let [must, must_not] = [Keyword::Must, Keyword::MustNot].map(|force| survey.counts(document, force));
        let detail = format!(
            "{} of MUST and MUST NOT: {} in code, {} in tests, {} that no test can show, {} excepted",
            must.all + must_not.all,
            must.implemented + must_not.implemented,
            must.tested + must_not.tested,
            must.untestable + must_not.untestable,
            must.excepted + must_not.excepted,
        );
        let open = u32::try_from(must.open + must_not.open)?;
        rows.push(
            Row::new(format!("RFC {}: open", document.number), open.into(), "requirements", Target::Exactly(0.0))
                .detail(detail),
        );
    }
    let faults = u32::try_from(survey.faults.len())?;
    let row = Row::new("marks that point nowhere, stale reasons", faults.into(), "", Target::Exactly(0.0));
    rows.push(row.detail(survey.faults.join("\n")));
    Ok(rows)
}
