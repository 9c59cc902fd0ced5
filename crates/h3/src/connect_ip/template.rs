//! URI templates of IP proxies (RFC 9484 §3): expanded by clients, matched by the proxy.

use std::{fmt, str::FromStr};

use super::Scope;
use crate::uri_template::{TemplateError, TemplateFault, UriTemplate};

/// The default path of proxies (RFC 9484 §3).
const DEFAULT_PATH: &str = "/.well-known/masque/ip/{target}/{ipproto}/";

const TARGET: &str = "target";
const PROTOCOL: &str = "ipproto";

/// Template of the requests to an IP proxy. Both variables are optional.
///
/// ```
/// use tiderace_h3::connect_ip::{Scope, ScopeTarget, Template};
///
/// let template: Template = "https://proxy.example/masque/ip{?target,ipproto}".parse().unwrap();
/// let scope = Scope { target: ScopeTarget::parse("192.0.2.0/24").unwrap(), protocol: Some(17) };
/// assert_eq!(template.expand(&scope), "https://proxy.example/masque/ip?target=192.0.2.0%2F24&ipproto=17");
/// assert_eq!(template.find("/masque/ip", Some("ipproto=17&target=192.0.2.0%2F24")), Some(scope));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(UriTemplate);

impl Template {
    /// The default template of the proxy at `authority`, a host with or without a port.
    ///
    /// # Errors
    /// When `authority` is none.
    pub fn at(authority: &str) -> Result<Self, TemplateError> {
        format!("https://{authority}{DEFAULT_PATH}").parse()
    }

    /// Parses path and query of a template, which begin with `/`, for a server.
    ///
    /// # Errors
    /// When they are none of a template, or no request can be matched with them.
    pub fn for_server(path: &str) -> Result<Self, TemplateError> {
        let template = UriTemplate::for_server(path, &[TARGET, PROTOCOL]).and_then(checked);
        template.map_err(|fault| TemplateError { template: path.to_owned(), fault })
    }

    /// The URI of a request.
    // RFC 9484 §4 SHALL-1, RFC 9484 §4.4 SHALL-3, SHALL NOT-1, SHALL-4
    pub fn expand(&self, scope: &Scope) -> String {
        self.0.expand(|name| match (name, scope.protocol) {
            (TARGET, _) => scope.target.to_string(),
            (_, Some(protocol)) => protocol.to_string(),
            (_, None) => "*".to_owned(),
        })
    }

    /// Returns whether requests by the template can say what they are limited to.
    pub fn carries(&self, scope: &Scope) -> bool {
        let without = Scope::default();
        (scope.target == without.target || self.0.count(TARGET) > 0)
            && (scope.protocol.is_none() || self.0.count(PROTOCOL) > 0)
    }

    /// Finds the scope in path and query of a request; `None` when they do not fit the template, or break the rules for the variables. A
    /// slash at the end of the path, and further pairs of the query, make no difference.
    pub fn find(&self, path: &str, query: Option<&str>) -> Option<Scope> {
        let found = self.0.find(path, query)?;
        let value = |name| found.iter().find(|(own, _)| *own == name).map(|(_, value)| *value);
        Scope::decode(value(TARGET), value(PROTOCOL))
    }
}

fn checked(template: UriTemplate) -> Result<Template, TemplateFault> {
    if [TARGET, PROTOCOL].iter().any(|name| template.count(name) > 1) {
        return Err(TemplateFault::RepeatedVariable);
    }
    Ok(Template(template))
}

// RFC 9484 §3 SHOULD-1, MUST-7: there is no template that breaks a rule
impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        let template = UriTemplate::for_client(text, &[TARGET, PROTOCOL]).and_then(checked);
        template.map_err(|fault| TemplateError { template: text.to_owned(), fault })
    }
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::ScopeTarget, *};

    fn scope(target: &str, protocol: Option<u8>) -> Scope {
        Scope { target: ScopeTarget::parse(target).unwrap(), protocol }
    }

    /// The examples of RFC 9484 §3: RFC 9484 §4 SHALL-1, RFC 9484 §4.4 SHALL-3, SHALL NOT-1, SHALL-4, RFC 9484 §4.6 MUST-2
    #[test]
    fn templates_expand() {
        for (template, expected) in [
            (
                "https://p.example/.well-known/masque/ip/{target}/{ipproto}/",
                "/.well-known/masque/ip/2001%3Adb8%3A%3A%2F32/17/",
            ),
            ("https://p.example:4443/masque/ip?t={target}&i={ipproto}", ":4443/masque/ip?t=2001%3Adb8%3A%3A%2F32&i=17"),
            ("https://p.example/masque/ip{?target,ipproto}", "/masque/ip?target=2001%3Adb8%3A%3A%2F32&ipproto=17"),
            ("https://p.example/?user=bob", "/?user=bob"),
        ] {
            let parsed: Template = template.parse().unwrap();
            assert_eq!(parsed.expand(&scope("2001:db8::/32", Some(17))), format!("https://p.example{expected}"));
            assert_eq!(parsed.carries(&scope("a.example", None)), template.contains("target"), "{template}");
        }
        assert_eq!(
            Template::at("p.example").unwrap().expand(&Scope::default()),
            "https://p.example/.well-known/masque/ip/%2A/%2A/"
        );
    }

    /// RFC 9484 §3 MUST-1, MUST-2, MUST-3, MUST-4, MUST-5, MUST-6, MUST-7, MUST NOT-2, MUST NOT-3, SHOULD-1, RFC 9484 §4 MUST-1
    #[test]
    fn what_is_no_template_is_refused() {
        for (template, fault) in [
            ("http://p.example/{target}", TemplateFault::Scheme),
            ("https:///{target}", TemplateFault::Authority),
            ("https://p.example{?target}", TemplateFault::Path),
            ("https://p.example/{target}/{target}", TemplateFault::RepeatedVariable),
            ("https://p.example/{+target}", TemplateFault::Operator),
            ("https://p.example/x{#target}", TemplateFault::Operator),
            ("https://p.example/x{.target}", TemplateFault::Operator),
            ("https://p.example/x{/target}", TemplateFault::Operator),
            ("https://p.example/x{;target}", TemplateFault::Operator),
            ("https://p.example/\u{e4}", TemplateFault::Characters),
        ] {
            assert_eq!(template.parse::<Template>().unwrap_err().fault, fault, "{template}");
        }
        assert_eq!(Template::for_server("/{target,ipproto}").unwrap_err().fault, TemplateFault::Unmatchable);
    }

    /// RFC 9484 §3 MUST NOT-1, RFC 9484 §4.6 MUST-1, MUST-3, MUST-4, MUST-5, SHALL-1
    #[test]
    fn a_server_finds_the_scope() {
        let template = Template::for_server("/ip/{target}/{ipproto}/").unwrap();
        for (path, expected) in [
            ("/ip/*/*/", Some(scope("*", None))),
            ("/ip/%2A/%2a", Some(scope("*", None))),
            ("/ip/192.0.2.6/17/", Some(scope("192.0.2.6", Some(17)))),
            ("/ip/192.0.2.0%2F24/*/", Some(scope("192.0.2.0/24", None))),
            ("/ip/2001%3Adb8%3A%3A%2f32/58/", Some(scope("2001:db8::/32", Some(58)))),
            ("/ip/a.example/255/", Some(scope("a.example", Some(255)))),
            ("/ip/192.0.2.1%2F24/*/", None),
            ("/ip/192.0.2.0%2F33/*/", None),
            ("/ip/192.0.2.0/24/*/", None),
            ("/ip/fe80%3A%3A1%25eth0/*/", None),
            ("/ip//*/", None),
            ("/ip/*//", None),
            ("/ip/*/256/", None),
            ("/ip/*/+1/", None),
            ("/ip/*/0017/", None),
            ("/ip/*/44/", None),
            ("/ip/*/", None),
            ("/udp/*/*/", None),
        ] {
            assert_eq!(template.find(path, None), expected, "{path}");
        }
        let fixed = Template::for_server("/vpn").unwrap();
        assert_eq!((fixed.find("/vpn", None), fixed.find("/other", None)), (Some(Scope::default()), None));
        let target = Template::for_server("/vpn{?target}").unwrap();
        assert_eq!(target.find("/vpn", Some("target=a")), Some(scope("a", None)));
        assert_eq!(target.find("/vpn", None), None);
    }
}
