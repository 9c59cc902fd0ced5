//! `tiderace serve`: serves a directory over HTTP/3, HTTP/2 and HTTP/1.1, without a configuration.

use std::{
    fs,
    io::Write as _,
    net::SocketAddr,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;

use crate::{edge::serve_until_ended, failure::Failure, stdout::write_out};

/// Serve a directory over HTTPS: HTTP/3, HTTP/2 and HTTP/1.1 on one port.
///
/// Without --cert, the server creates a certificate for the names of this host, and deletes it at the end. The first lines say how a
/// client can trust it. A request for a directory is answered with its index.html, or with a list of its files. Names that begin with a
/// dot are not found. Symbolic links are followed within the directory only.
///
/// For back ends, policies, limits and reloads use `tiderace edge`.
#[derive(Debug, Parser)]
#[command(after_help = "Example:
  tiderace serve site --listen 127.0.0.1:8443
  tiderace get -k https://127.0.0.1:8443/")]
pub(crate) struct Args {
    /// Directory to serve
    #[arg(value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// Listen on this address, with UDP and TCP; port 0 takes any free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8443")]
    listen: SocketAddr,
    /// Certificate chain (PEM), the server's own first
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Create the certificate for this name too; may be repeated
    #[arg(long, value_name = "NAME", conflicts_with = "cert")]
    name: Vec<String>,
    /// Answer 404 for a directory without index.html
    #[arg(long)]
    no_listing: bool,
    /// Serve metrics for Prometheus here, over plain HTTP: those of the gateway (docs/edge.md)
    #[arg(long, value_name = "ADDRESS:PORT")]
    prometheus: Option<SocketAddr>,
}

/// A folder for the configuration and the key that its owner alone can open. It is gone when this is dropped.
struct Private(PathBuf);

impl Private {
    fn new() -> Result<Self, Failure> {
        let folder = std::env::temp_dir().join(format!("tiderace-serve-{}", std::process::id()));
        let made = fs::DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(|error| Failure::new(format_args!("cannot make {}: {error}", folder.display())))?;
        Ok(Self(folder))
    }

    fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let path = self.0.join(name);
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| Failure::new(format_args!("cannot write {}: {error}", path.display())))?;
        Ok(path)
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        // What stays behind is worth nothing without the server.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let directory = fs::canonicalize(&args.directory).map_err(|error| {
        Failure::new(format_args!("cannot serve {}: {error}", args.directory.display()))
            .hint("name a directory that exists")
    })?;
    if !directory.is_dir() {
        return Err(Failure::new(format_args!("{} is no directory", directory.display()))
            .hint("a directory is served, and the files in it"));
    }
    let private = Private::new()?;
    let (cert, key) = match (&args.cert, &args.key) {
        (Some(cert), Some(key)) => (absolute(cert)?, absolute(key)?),
        _ => make_certificate(&private, args)?,
    };
    let text = |path: &Path| {
        path.to_str()
            .map(toml_text)
            .ok_or_else(|| Failure::new(format_args!("{} is not UTF-8", path.display())).hint("name another path"))
    };
    let config = format!(
        "listen = {}\ncertificate = {}\nkey = {}\n[[route]]\nfiles = {}\nlisting = {}\n",
        toml_text(&args.listen.to_string()),
        text(&cert)?,
        text(&key)?,
        text(&directory)?,
        !args.no_listing
    );
    let metrics = args.prometheus.map(|address| format!("[metrics]\nlisten = {}\n", toml_text(&address.to_string())));
    let config = config + &metrics.unwrap_or_default();
    let config = private.write("edge.toml", &config)?;
    let own = args.cert.is_none().then_some(&cert);
    serve_until_ended(&config, |address| {
        write_out(&format!("serving {} at https://{address}/\n", directory.display()))?;
        own.map_or(Ok(()), |cert| {
            write_out(&format!("trust it with: tiderace get --ca {} https://{address}/\n", cert.display()))
        })
    })
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| Failure::new(format_args!("{}: {error}", path.display())))
}

/// A string of TOML; JSON's escapes are among those that it has.
fn toml_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A certificate for this host's own names and the address that is listened at.
fn make_certificate(private: &Private, args: &Args) -> Result<(PathBuf, PathBuf), Failure> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    names.extend((!args.listen.ip().is_unspecified()).then(|| args.listen.ip().to_string()));
    names.extend(args.name.iter().cloned());
    names.sort();
    names.dedup();
    let made = rcgen::generate_simple_self_signed(names).map_err(|error| {
        Failure::new(format_args!("cannot make a certificate: {error}")).hint("--name takes names of hosts")
    })?;
    let key = private.write("key.pem", &made.signing_key.serialize_pem())?;
    Ok((private.write("cert.pem", &made.cert.pem())?, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_what_they_are() {
        assert_eq!(toml_text("/a \"b\"\\c\n"), r#""/a \"b\"\\c\n""#);
    }
}
