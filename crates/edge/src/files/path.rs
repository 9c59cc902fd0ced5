//! File of a request's path, and its media type.

use std::path::{Path, PathBuf};

/// The path below the directory that a request's path means; `None` when it would lead out of it, or to a hidden file.
pub(super) fn relative(path: &str) -> Option<PathBuf> {
    let mut relative = PathBuf::new();
    for segment in path.split('/').filter(|segment| !segment.is_empty()) {
        let segment = decode(segment)?;
        // `.` and `..` and whatever is hidden; a backslash or a NUL is never what a site means, and no name has a slash.
        if segment.starts_with('.') || segment.contains(['\\', '\0', '/']) {
            return None;
        }
        relative.push(segment);
    }
    Some(relative)
}

/// Text without percent-encoding (RFC 3986 §2.1); `None` when the encoding is invalid, or its content is no UTF-8.
pub(super) fn decode(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
            let (high, low) = (digit(rest.next())?, digit(rest.next())?);
            bytes.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// Media type, by the end of the file's name.
pub(crate) fn kind(path: &Path) -> &'static str {
    match path.extension().and_then(|extension| extension.to_str()).unwrap_or_default() {
        "html" | "htm" => "text/html; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "json" | "map" => "application/json",
        "txt" | "md" => "text/plain; charset=utf-8",
        "xml" => "application/xml",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "avif" => "image/avif",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "woff" => "font/woff",
        "wasm" => "application/wasm",
        "pdf" => "application/pdf",
        "mp4" => "video/mp4",
        "webm" => "video/webm",
        "mp3" => "audio/mpeg",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_leads_out() {
        for (path, expected) in [
            ("/a/b.txt", Some("a/b.txt")),
            ("/a//b", Some("a/b")),
            ("/%61", Some("a")),
            ("/", Some("")),
            ("/../etc/passwd", None),
            ("/a/../../x", None),
            ("/%2e%2e/x", None),
            ("/a/%2E./x", None),
            ("/..%2fx", None),
            ("/a%2fb", None),
            ("/a%2f", None),
            ("/.git/config", None),
            ("/a\\..\\x", None),
            ("/a%00.txt", None),
            ("/%zz", None),
            ("/%f", None),
            ("/%ff", None),
        ] {
            assert_eq!(relative(path).as_deref(), expected.map(Path::new), "{path}");
        }
    }
}
