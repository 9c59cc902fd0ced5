//! Commands about the program: completions, manual pages, version.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Command, Parser};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::{failure::Failure, stdout::write_out};

/// Print completions for a shell.
#[derive(Debug, Parser)]
#[command(after_help = "Example:
  tiderace completions bash > /etc/bash_completion.d/tiderace")]
pub(crate) struct CompletionsArgs {
    /// Shell
    #[arg(value_name = "SHELL", value_enum)]
    shell: Shell,
}

/// Print the manual page, or write those of all commands into a directory.
#[derive(Debug, Parser)]
#[command(after_help = "Example:
  tiderace man --out /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Write tiderace.1, tiderace-get.1 and so on into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Print the version.
#[derive(Debug, Parser)]
pub(crate) struct VersionArgs {
    /// Print the target, the features of the build, and supported protocols too
    #[arg(short, long)]
    verbose: bool,
}

/// Prints completions.
pub(crate) fn completions(args: &CompletionsArgs, mut program: Command) -> Result<ExitCode, Failure> {
    let mut out = Vec::new();
    clap_complete::generate(args.shell, &mut program, "tiderace", &mut out);
    write_out(&String::from_utf8_lossy(&out)).map(|()| ExitCode::SUCCESS)
}

/// Prints or writes manual pages.
pub(crate) fn man(args: &ManArgs, program: Command) -> Result<ExitCode, Failure> {
    let Some(directory) = &args.out else {
        let mut page = Vec::new();
        let rendered = Man::new(program).render(&mut page);
        rendered.map_err(|error| Failure::new(format_args!("cannot make the page: {error}")))?;
        return write_out(&String::from_utf8_lossy(&page)).map(|()| ExitCode::SUCCESS);
    };
    fs::create_dir_all(directory)
        .map_err(|error| Failure::new(format_args!("cannot make {}: {error}", directory.display())))?;
    let pages = write_pages(program, "tiderace", directory)?;
    write_out(&format!("{pages} pages in {}\n", directory.display())).map(|()| ExitCode::SUCCESS)
}

/// Writes the pages of a command and its subcommands.
fn write_pages(command: Command, name: &str, directory: &Path) -> Result<u32, Failure> {
    let path = directory.join(format!("{name}.1"));
    let mut page = Vec::new();
    let title: &'static str = String::leak(name.to_owned());
    let rendered = Man::new(command.clone().name(title)).render(&mut page).and_then(|()| fs::write(&path, page));
    rendered.map_err(|error| Failure::new(format_args!("cannot write {}: {error}", path.display())))?;
    let mut pages = 1;
    for below in command.get_subcommands().filter(|below| below.get_name() != "help" && !below.is_hide_set()) {
        pages += write_pages(below.clone(), &format!("{name}-{}", below.get_name()), directory)?;
    }
    Ok(pages)
}

/// Prints the version.
pub(crate) fn version(args: &VersionArgs) -> Result<ExitCode, Failure> {
    let mut text = format!("tiderace {}\n", env!("CARGO_PKG_VERSION"));
    if args.verbose {
        let all = [
            ("columns", cfg!(feature = "columns")),
            ("boringssl", cfg!(feature = "boringssl")),
            ("aws-lc-gcm", cfg!(feature = "aws-lc-gcm")),
        ];
        let features: Vec<&str> = all.into_iter().filter_map(|(name, on)| on.then_some(name)).collect();
        let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
        let build = if cfg!(debug_assertions) { "with debug assertions" } else { "optimised" };
        text += &format!(
            "machine:     {} {}, {build}\nfeatures:    {features}\nQUIC:        versions 1 and 2 (RFC 9000, RFC 9369)\n\
             HTTP:        3, 2, 1.1\nTLS:         1.3 by rustls with aws-lc-rs{}\nAES-GCM:     packets of QUIC by {}\n\
             controllers: {}\n",
            std::env::consts::ARCH,
            std::env::consts::OS,
            if cfg!(feature = "boringssl") { ", or BoringSSL" } else { "" },
            transport::crypto::PacketKey::aes_gcm(),
            lab::tiderace::controllers().join(", "),
        );
    }
    write_out(&text).map(|()| ExitCode::SUCCESS)
}
