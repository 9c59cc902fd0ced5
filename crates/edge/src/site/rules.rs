//! Rules for header fields.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::config::HeaderRules;

/// Rules, in the order in which they are applied.
pub(super) struct Rules {
    remove: Vec<HeaderName>,
    set: Vec<(HeaderName, HeaderValue)>,
    add: Vec<(HeaderName, HeaderValue)>,
}

impl Rules {
    /// Reads what the configuration has checked.
    pub(super) fn new(config: &HeaderRules) -> Self {
        let name = |name: &String| HeaderName::from_bytes(name.as_bytes()).ok();
        let field = |(key, value): (&String, &String)| Some((name(key)?, HeaderValue::from_str(value).ok()?));
        Self {
            remove: config.remove.0.iter().filter_map(name).collect(),
            set: config.set.iter().filter_map(field).collect(),
            add: config.add.iter().filter_map(field).collect(),
        }
    }

    pub(super) fn apply(&self, fields: &mut HeaderMap) {
        for name in &self.remove {
            fields.remove(name);
        }
        for (name, value) in &self.set {
            fields.insert(name, value.clone());
        }
        for (name, value) in &self.add {
            fields.append(name, value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_removed_then_set_then_added() {
        let config: HeaderRules = toml::from_str(
            "remove = [\"server\", \"x-old\"]\nset = { x-a = \"1\" }\nadd = { x-a = \"2\", x-old = \"3\" }",
        )
        .unwrap();
        let mut fields = HeaderMap::new();
        for (name, value) in [("server", "x"), ("x-old", "1"), ("x-old", "2"), ("x-a", "0"), ("x-b", "0")] {
            fields.append(name, HeaderValue::from_static(value));
        }
        Rules::new(&config).apply(&mut fields);
        let all = |name: &str| fields.get_all(name).iter().map(|value| value.to_str().unwrap()).collect::<Vec<_>>();
        assert_eq!(
            (all("server"), all("x-old"), all("x-a"), all("x-b")),
            (vec![], vec!["3"], vec!["1", "2"], vec!["0"])
        );
    }
}
