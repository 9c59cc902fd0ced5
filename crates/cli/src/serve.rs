//! `tiderace serve`: serves a directory over HTTP/3, HTTP/2 and HTTP/1.1, without a configuration.

use std::{
    fs,
    io::Write as _,
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;
use edge::ProcessError;
use live::PrivateDirectory;

use crate::{
    address::{cannot_listen, plain},
    edge::serve_until_ended,
    failure::Failure,
    stdout::write_out,
};

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

/// Beginning of the names of directories for the configuration and the key.
const PREFIX: &str = "tiderace-serve-";

/// Writes a new file that its owner alone can read.
fn write(directory: &PrivateDirectory, name: &str, text: &str) -> Result<PathBuf, Failure> {
    let path = directory.path().join(name);
    let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| Failure::new(format_args!("cannot write {}: {error}", path.display())))?;
    Ok(path)
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
    let private = PrivateDirectory::new(PREFIX).map_err(|error| {
        Failure::new(format_args!("cannot make a directory in {}: {error}", std::env::temp_dir().display()))
            .hint("TMPDIR names another directory for temporary files")
    })?;
    let (cert, key) = match (&args.cert, &args.key) {
        (Some(cert), Some(key)) => (readable("--cert", cert)?, readable("--key", key)?),
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
    let config = write(&private, "edge.toml", &config)?;
    let own = args.cert.is_none().then_some(&cert);
    let tell = |address| {
        write_out(&format!("serving {} at https://{address}/\n", directory.display()))?;
        own.map_or(Ok(()), |cert| {
            write_out(&format!("trust it with: tiderace get --ca {} https://{address}/\n", cert.display()))
        })
    };
    serve_until_ended(&config, tell, explain)
}

/// Names the option in place of the field of the configuration, which the user has not written.
fn explain(error: ProcessError) -> Failure {
    if let ProcessError::Refused { source, .. } = &error
        && let ProcessError::Listen { field, address, why } = &**source
        && let (Some(option), Ok(address)) = (option(field), address.parse())
    {
        return cannot_listen(address, why).of_option(option);
    }
    let fault = match &error {
        ProcessError::Refused { fault, .. } => Some(&**fault),
        ProcessError::Config(fault) => Some(fault),
        _ => None,
    };
    let Some((fault, option)) = fault.and_then(|fault| Some((fault, option(fault.field.as_deref()?)?))) else {
        return error.into();
    };
    let failure = Failure::new(&fault.message).of_option(option);
    match &fault.hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// Option or argument from which a field of the configuration comes.
fn option(field: &str) -> Option<&'static str> {
    Some(match field {
        "listen" => "--listen",
        "metrics.listen" => "--prometheus",
        "certificate" => "--cert",
        "key" => "--key",
        "route[1].files" => "DIR",
        _ => return None,
    })
}

/// Absolute path of an option's file, which can be read.
fn readable(option: &str, path: &Path) -> Result<PathBuf, Failure> {
    let absolute = fs::File::open(path).and_then(|_| std::path::absolute(path));
    absolute.map_err(|error| {
        Failure::new(format_args!("cannot read {}: {}", path.display(), plain(&error)))
            .of_option(option)
            .hint("name a PEM file that this user can read")
    })
}

/// A string of TOML; JSON's escapes are among those that it has.
fn toml_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// A certificate for this host's own names and the address that is listened at.
fn make_certificate(private: &PrivateDirectory, args: &Args) -> Result<(PathBuf, PathBuf), Failure> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    names.extend((!args.listen.ip().is_unspecified()).then(|| args.listen.ip().to_string()));
    names.extend(args.name.iter().cloned());
    names.sort();
    names.dedup();
    let made = rcgen::generate_simple_self_signed(names).map_err(|error| {
        Failure::new(format_args!("cannot make a certificate: {error}")).hint("--name takes names of hosts")
    })?;
    let key = write(private, "key.pem", &made.signing_key.serialize_pem())?;
    Ok((write(private, "cert.pem", &made.cert.pem())?, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_what_they_are() {
        assert_eq!(toml_text("/a \"b\"\\c\n"), r#""/a \"b\"\\c\n""#);
    }
}
