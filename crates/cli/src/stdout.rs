//! Standard output, for results only.

use std::io::Write;

use crate::failure::Failure;

/// Writes to the standard output, at once. A reader that has gone away (`| head`) is no failure.
pub(crate) fn write_out(output: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(output.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(format_args!("cannot write the result: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes one JSON value on its own line.
pub(crate) fn write_json_line(value: &serde_json::Value) -> Result<(), Failure> {
    write_out(&format!("{value}\n"))
}
