//! Planted faults: each is caught by what is said to catch it, three quarters of sixty by the self-test on its own.

use anyhow::Result;

use super::super::{
    Context,
    row::{Row, Target},
};
use crate::mutants::{Tried, try_all};

/// The seven that nothing found before they were on the list.
const ONCE_UNSEEN: [&str; 7] = [
    "rtt-with-acknowledgement-delay",
    "bbr-never-forgets-a-minimum",
    "harm-inverted",
    "datagram-delay-clipped-at-100-ms",
    "duplicates-count-as-delivered",
    "reverse-bytes-halved",
    "queue-p99-with-warm-up",
];

/// Builds all faults into a copy and tries each; half an hour of an idle machine, most of it the build.
pub(crate) fn measure(_context: &Context) -> Result<Vec<Row>> {
    let tried = try_all(&[], None)?;
    let count = |which: &dyn Fn(&Tried) -> bool| -> f64 {
        f64::from(u32::try_from(tried.iter().filter(|one| which(one)).count()).unwrap_or(u32::MAX))
    };
    let all = count(&|_| true);
    let missed: Vec<&str> = tried.iter().filter(|one| !one.as_stated).map(|one| one.fault.as_str()).collect();
    let table: Vec<String> = tried
        .iter()
        .map(|one| format!("{} -> {}", one.fault, one.caught_by.as_deref().unwrap_or("NOT CAUGHT")))
        .collect();
    let unseen = count(&|one| ONCE_UNSEEN.contains(&one.fault.as_str()) && one.by_selftest);
    Ok(vec![
        Row::new("planted faults", all, "", Target::AtLeast(60.0)),
        Row::new("caught by what is said to catch them", count(&|one| one.as_stated), "", Target::Exactly(all))
            .detail(if missed.is_empty() { table.join("\n") } else { format!("missed: {}", missed.join(", ")) }),
        Row::new("caught by `lab selftest` on its own", count(&|one| one.by_selftest), "", Target::AtLeast(45.0)),
        Row::new("of the seven that passed everything before", unseen, "", Target::Exactly(7.0)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seven_are_on_the_list() {
        let names = crate::mutants::names().unwrap();
        for name in ONCE_UNSEEN {
            assert!(names.iter().any(|known| known == name), "{name}");
        }
    }
}
