//! Everyday conveniences of the gateway beside Caddy: the same site in the words of each, the same requests, the same answers.
//!
//! [`answers`] and [`access`] list them in the form of [`case`], [`mod@ask`] asks with curl and `tiderace get`, [`back_end`] is behind both gateways,
//! `page` is the document with both configurations.

mod access;
mod answers;
mod ask;
mod back_end;
mod case;
#[cfg(test)]
mod page;

use std::{
    fmt::Write as _,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

use self::{
    ask::{Place, ask, ready},
    back_end::BackEnd,
    case::{Caddy, Convenience},
};
use super::{BUILD, Context, Row, Target, number};
use crate::shows::{
    command::{Running, cargo},
    edge_servers::{Gentle, build_caddy, port},
};

/// Hash of `correct horse` (bcrypt), for the user of the comparison.
const HASH: &str = "$2y$10$perbzCwD58z.RUjYLsBp6.V9LbUz/gkmf3pEyfBLkDQ4ppNsumTzW";
/// Fields of the configurations that each run replaces.
const MARKS: [&str; 7] = ["@PORT", "@PLAIN", "@BACK1", "@BACK2", "@DOWN", "@DIR", "@HASH"];

/// All conveniences.
fn all() -> Vec<Convenience> {
    [answers::all(), access::all()].into_iter().flatten().collect()
}

/// Programs and files that all comparisons share.
struct Ground<'a> {
    context: &'a Context,
    ours: PathBuf,
    caddy: PathBuf,
    scratch: PathBuf,
    back_ends: [BackEnd; 2],
}

/// A row for each convenience: answers that are not what is expected, ours and Caddy's.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let mut build = cargo(&context.root, ["build", "--locked", "--workspace", "--bin", "tiderace"]);
    context.commands.run("face-conveniences-build", &mut build, BUILD)?.ok()?;
    let scratch = std::path::absolute(context.commands.scratch("face-conveniences")?)?;
    lay_out(&scratch)?;
    let ground = Ground {
        context,
        ours: std::path::absolute(context.commands.target().join("debug/tiderace"))?,
        caddy: build_caddy(context)?,
        scratch,
        back_ends: [BackEnd::start("one")?, BackEnd::start("two")?],
    };
    let all = all();
    let rows = all.iter().map(|convenience| {
        compare(&ground, convenience).unwrap_or_else(|error| Row::unmeasured(convenience.name, &error))
    });
    Ok(rows.collect())
}

/// Asks both gateways.
fn compare(ground: &Ground<'_>, convenience: &Convenience) -> Result<Row> {
    let (port_ours, port_caddy) = (port()?, port()?);
    let ours = Place { name: "ours", port: port_ours, plain: port()? };
    let caddy = Place { name: "caddy", port: port_caddy, plain: port()? };
    let down = port()?;
    let _running = ground.start_ours(convenience, ours, down)?;
    let mut beside = None;
    if !matches!(convenience.caddy, Caddy::Missing(_)) {
        beside = Some(ground.start_caddy(convenience, caddy, down)?);
    }
    let (mut compared, mut wrong, mut notes) = (0, Vec::new(), Vec::new());
    for version in convenience.versions {
        for step in &convenience.steps {
            let asked = |place| {
                ask(ground.context, (&ground.scratch, &ground.ours), place, *version, &step.ask, &ground.back_ends)
            };
            let answers = asked(ours)?;
            let at_caddy = beside.is_some().then(|| asked(caddy)).transpose()?;
            for expected in &step.expected {
                let place = format!("{} {} over {version}: {}", step.ask.method, step.ask.target, expected.part);
                let mut judge = |name: &str, value: String, wanted: &str| {
                    compared += 1;
                    if value != wanted {
                        wrong.push(format!("{place}: {name} {value:?}, expected {wanted:?}"));
                    }
                };
                judge("ours", answers.part(expected.part, ours), &expected.value);
                if let Some(at_caddy) = &at_caddy {
                    let wanted = expected.at_caddy.map_or(expected.value.as_str(), |(value, _)| value);
                    judge("Caddy", at_caddy.part(expected.part, caddy), wanted);
                }
                if let Some((_, why)) = expected.at_caddy
                    && !notes.contains(&why)
                {
                    notes.push(why);
                }
            }
        }
    }
    if let Caddy::Missing(why) = convenience.caddy {
        notes.push(why);
    }
    let versions: Vec<String> = convenience.versions.iter().map(ToString::to_string).collect();
    let mut detail = format!("{compared} values over {}", versions.join(", "));
    for line in notes.iter().map(|note| (*note).to_owned()).chain(wrong.iter().cloned()) {
        let _ = write!(detail, "\n{line}");
    }
    ensure!(compared > 0, "nothing was compared");
    Ok(Row::new(convenience.name, number(wrong.len()), "other", Target::Exactly(0.0)).detail(detail))
}

impl Ground<'_> {
    fn fill(&self, text: &str, place: Place<'_>, down: u16) -> String {
        let values = [
            place.port.to_string(),
            place.plain.to_string(),
            self.back_ends[0].port.to_string(),
            self.back_ends[1].port.to_string(),
            down.to_string(),
            self.scratch.display().to_string(),
            HASH.to_owned(),
        ];
        MARKS.iter().zip(&values).fold(text.to_owned(), |text, (mark, value)| text.replace(mark, value))
    }

    fn start_ours(&self, convenience: &Convenience, place: Place<'_>, down: u16) -> Result<Gentle> {
        let text = format!(
            "listen = \"127.0.0.1:{}\"\ncertificate = \"cert.pem\"\nkey = \"key.pem\"\n{}",
            place.port, convenience.ours
        );
        let config = self.scratch.join("ours.toml");
        fs::write(&config, self.fill(&text, place, down))?;
        let mut command = Command::new(&self.ours);
        self.wait("ours", command.args(["edge", "run", "--config"]).arg(config), place)
    }

    fn start_caddy(&self, convenience: &Convenience, place: Place<'_>, down: u16) -> Result<Gentle> {
        let config = self.scratch.join("Caddyfile");
        fs::write(&config, self.fill(&caddyfile(convenience.caddy), place, down))?;
        let mut command = Command::new(&self.caddy);
        command.args(["run", "--adapter", "caddyfile", "--config"]).arg(config).env("HOME", &self.scratch);
        self.wait("caddy", &mut command, place)
    }

    fn wait(&self, name: &str, command: &mut Command, place: Place<'_>) -> Result<Gentle> {
        let mut running: Running =
            self.context.commands.start(&format!("face-conveniences-{name}"), command.current_dir(&self.scratch))?;
        ready(place).with_context(|| running.printed().trim().to_owned())?;
        ensure!(running.alive(), "{name} has ended: {}", running.printed().trim());
        Ok(Gentle(running))
    }
}

/// Caddyfile with one site at `@PORT`.
fn caddyfile(caddy: Caddy) -> String {
    let (global, tls, site, further) = match caddy {
        Caddy::Site(site) => ("", "", site, ""),
        Caddy::Global(global, site) => (global, "", site, ""),
        Caddy::Sites(site, further) => ("", "", site, further),
        Caddy::Tls(tls, site) => ("", tls, site, ""),
        Caddy::Missing(_) => ("", "", "", ""),
    };
    let tls = if tls.is_empty() { String::new() } else { format!(" {{\n{tls}}}") };
    format!(
        "{{\nadmin off\nauto_https off\nstorage file_system @DIR/caddy\n{global}}}\nhttps://localhost:@PORT {{\nbind 127.0.0.1\ntls @DIR/cert.pem \
         @DIR/key.pem{tls}\n{site}}}\n{further}"
    )
}

/// Writes the site, its certificate, a user and the certificate of a client.
fn lay_out(scratch: &Path) -> Result<()> {
    for folder in ["www/folder/listed", "www/errors"] {
        fs::create_dir_all(scratch.join(folder))?;
    }
    let files = [
        ("www/index.html", "index\n"),
        ("www/app.html", "app\n"),
        ("www/plain.txt", "0123456789\n"),
        ("www/.hidden", "secret\n"),
        ("www/style.css", "body { margin: 0 }\n"),
        ("www/folder/start.html", "start\n"),
        ("www/folder/listed/file.txt", "file\n"),
        ("www/errors/404.html", "nothing here\n"),
        ("www/errors/502.html", "down\n"),
    ];
    for (name, content) in files {
        fs::write(scratch.join(name), content)?;
    }
    fs::write(scratch.join("users"), format!("alice:{HASH}\n"))?;
    fs::set_permissions(scratch.join("users"), fs::Permissions::from_mode(0o600))?;
    let names = "subjectAltName=DNS:localhost,DNS:a.test,DNS:*.b.test";
    let ec = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30";
    let commands = [
        ("gzip", "--keep www/style.css".to_owned()),
        (
            "openssl",
            format!(
                "req -x509 {ec} -subj /CN=localhost -addext {names} -addext basicConstraints=critical,CA:FALSE -keyout key.pem -out cert.pem"
            ),
        ),
        ("openssl", format!("req -x509 {ec} -subj /CN=authority -keyout ca-key.pem -out ca.pem")),
        (
            "openssl",
            format!(
                "req -x509 {ec} -subj /CN=alice -CA ca.pem -CAkey ca-key.pem -addext basicConstraints=critical,CA:FALSE -keyout client-key.pem \
                 -out client.pem"
            ),
        ),
    ];
    for (program, arguments) in commands {
        let made = Command::new(program).args(arguments.split(' ')).current_dir(scratch).output();
        let made = made.with_context(|| format!("cannot start {program}"))?;
        ensure!(made.status.success(), "{program}: {}", String::from_utf8_lossy(&made.stderr));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_convenience_expects_something_and_has_a_name_of_its_own() {
        let all = all();
        let names: std::collections::BTreeSet<&str> = all.iter().map(|convenience| convenience.name).collect();
        assert_eq!(names.len(), all.len());
        for convenience in &all {
            let expected = convenience.steps.iter().all(|step| !step.expected.is_empty());
            assert!(
                expected && !convenience.steps.is_empty() && !convenience.versions.is_empty(),
                "{}",
                convenience.name
            );
        }
    }

    #[test]
    fn a_caddyfile_has_its_options_and_sites() {
        let text = caddyfile(Caddy::Tls("client_auth\n", "respond 200\n"));
        assert!(text.contains("tls @DIR/cert.pem @DIR/key.pem {\nclient_auth\n}\nrespond 200\n}\n"), "{text}");
        assert!(
            caddyfile(Caddy::Sites("respond 404\n", "http://b {\n}\n")).ends_with("respond 404\n}\nhttp://b {\n}\n")
        );
    }
}
