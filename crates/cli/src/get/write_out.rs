//! `--write-out`: one line about an exchange, in the user's format.

use std::{fmt::Write as _, str::FromStr};

/// Figures of an exchange that has ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub(super) status: u16,
    /// `h3`, `h2` or `http/1.1`.
    pub(super) protocol: &'static str,
    pub(super) url: String,
    pub(super) method: String,
    pub(super) content_type: String,
    /// Bytes of content as received from the network.
    pub(super) bytes: u64,
    pub(super) redirects: u32,
    pub(super) reused: bool,
    pub(super) early_data: &'static str,
    pub(super) verdict: String,
    /// Seconds: of the handshake, to the header of the answer, of everything.
    pub(super) handshake: Option<f64>,
    pub(super) first_byte: f64,
    pub(super) total: f64,
}

/// A variable of the form.
#[derive(Clone, Copy, Debug)]
struct Variable(&'static str, fn(&Figures) -> String);

/// Variables: curl's names where curl has the same value, and further ones of this program.
const VARIABLES: [Variable; 16] = [
    Variable("content_type", |f| f.content_type.clone()),
    Variable("early_data", |f| f.early_data.to_owned()),
    Variable("http_code", |f| format!("{:03}", f.status)),
    Variable("http_version", |f| version(f.protocol).to_owned()),
    Variable("method", |f| f.method.clone()),
    Variable("num_connects", |f| u8::from(!f.reused).to_string()),
    Variable("num_redirects", |f| f.redirects.to_string()),
    Variable("protocol", |f| f.protocol.to_owned()),
    Variable("response_code", |f| format!("{:03}", f.status)),
    Variable("size_download", |f| f.bytes.to_string()),
    Variable("speed_download", |f| format!("{:.0}", f.bytes as f64 / f.total.max(1e-9))),
    Variable("time_appconnect", |f| format!("{:.6}", f.handshake.unwrap_or(0.0))),
    Variable("time_starttransfer", |f| format!("{:.6}", f.first_byte)),
    Variable("time_total", |f| format!("{:.6}", f.total)),
    Variable("url_effective", |f| f.url.clone()),
    Variable("verdict", |f| f.verdict.clone()),
];

/// The number of a version of HTTP.
pub(super) fn version(protocol: &str) -> &'static str {
    match protocol {
        "h3" => "3",
        "h2" => "2",
        _ => "1.1",
    }
}

#[derive(Clone, Debug)]
enum Part {
    Text(String),
    Variable(Variable),
}

/// A form: text, `%{variable}`, `%%`, and `\n`, `\t`, `\r`, `\\`.
#[derive(Clone, Debug)]
pub(super) struct Form(Vec<Part>);

impl FromStr for Form {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(letter) = rest.chars().next() {
            rest = &rest[letter.len_utf8()..];
            match letter {
                '%' if rest.starts_with('{') => {
                    let (name, after) = rest[1..].split_once('}').ok_or("a `%{` without its `}`")?;
                    let variable = VARIABLES.iter().find(|variable| variable.0 == name).ok_or_else(|| {
                        let known: Vec<&str> = VARIABLES.iter().map(|variable| variable.0).collect();
                        format!("there is no variable `{name}`; there are {}", known.join(", "))
                    })?;
                    parts.push(Part::Text(std::mem::take(&mut plain)));
                    parts.push(Part::Variable(*variable));
                    rest = after;
                }
                '%' => {
                    rest = rest.strip_prefix('%').ok_or("write `%%` for a percent sign")?;
                    plain.push('%');
                }
                '\\' => {
                    let escaped = rest.chars().next().ok_or("a `\\` at the end")?;
                    rest = &rest[escaped.len_utf8()..];
                    match escaped {
                        'n' => plain.push('\n'),
                        't' => plain.push('\t'),
                        'r' => plain.push('\r'),
                        '\\' => plain.push('\\'),
                        other => {
                            plain.push('\\');
                            plain.push(other);
                        }
                    }
                }
                other => plain.push(other),
            }
        }
        parts.push(Part::Text(plain));
        Ok(Self(parts))
    }
}

impl Form {
    /// The text for one exchange. Text from servers is escaped.
    pub(super) fn fill(&self, figures: &Figures) -> String {
        self.0.iter().fold(String::new(), |mut out, part| {
            let _ = match part {
                Part::Text(text) => out.write_str(text),
                Part::Variable(variable) => out.write_str(&crate::printable::printable(&(variable.1)(figures))),
            };
            out
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> Figures {
        Figures {
            status: 204,
            protocol: "h3",
            url: "https://a.test/".to_owned(),
            content_type: "text/\u{1b}[2J".to_owned(),
            bytes: 1_000,
            total: 0.5,
            ..Figures::default()
        }
    }

    #[test]
    fn forms_are_filled() {
        let fill = |text: &str| text.parse::<Form>().unwrap().fill(&figures());
        assert_eq!(fill("%{http_code} HTTP/%{http_version}\\n"), "204 HTTP/3\n");
        assert_eq!(fill("100 %% \\t%{size_download}\\x"), "100 % \t1000\\x");
        assert_eq!(fill("%{speed_download} %{time_total}"), "2000 0.500000");
        assert_eq!(fill("%{content_type}"), "text/\\u{1b}[2J");
        assert_eq!(fill(""), "");
    }

    #[test]
    fn what_is_no_form_is_refused() {
        for (text, why) in
            [("%{nothing}", "there is no variable"), ("%{a", "without its"), ("5 %", "%%"), ("x\\", "at the end")]
        {
            assert!(text.parse::<Form>().unwrap_err().contains(why), "{text}");
        }
    }
}
