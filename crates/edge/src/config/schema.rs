//! JSON Schema of the configuration, made from the declarations, for editors and other programs.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    Balance, Config, ForwardedField, LogFormat, Many, Part, SameSite, Size, Span,
    section::{Section, file_name},
};

/// A type with a JSON Schema of its values. TOML's types are those of JSON.
pub(crate) trait Described {
    /// The schema of a value.
    fn schema() -> Value;
}

macro_rules! described {
    ($($ty:ty => $schema:expr,)+) => {
        $(impl Described for $ty {
            fn schema() -> Value {
                $schema
            }
        })+
    };
}

described! {
    bool => json!({"type": "boolean"}),
    String => json!({"type": "string"}),
    f64 => json!({"type": "number"}),
    u8 => json!({"type": "integer", "minimum": 0, "maximum": u8::MAX}),
    u16 => json!({"type": "integer", "minimum": 0, "maximum": u16::MAX}),
    u32 => json!({"type": "integer", "minimum": 0, "maximum": u32::MAX}),
    usize => json!({"type": "integer", "minimum": 0}),
    Many => json!({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
    Span => json!({"type": "string", "pattern": r"^\s*[0-9.]+\s*(ms|s|min|h|d)\s*$"}),
    Size => json!({"type": "string", "pattern": r"^\s*[0-9.]+\s*([kKMGT]i?B?|B)\s*$"}),
    Part => json!({"type": "string", "pattern": r"^\s*[0-9.]+\s*%\s*$"}),
    LogFormat => json!({"enum": ["json", "combined"]}),
    ForwardedField => json!({"enum": ["x-forwarded-for", "forwarded"]}),
    Balance => json!({"enum": ["round-robin", "least-connections"]}),
    SameSite => json!({"enum": ["strict", "lax", "none"]}),
    BTreeMap<String, String> => json!({"type": "object", "additionalProperties": {"type": "string"}}),
}

impl<T: Described> Described for Option<T> {
    fn schema() -> Value {
        T::schema()
    }
}

impl<T: Described> Described for Vec<T> {
    fn schema() -> Value {
        json!({"type": "array", "items": T::schema()})
    }
}

impl<S: Section + Default + Serialize> Described for S {
    fn schema() -> Value {
        let defaults = serde_json::to_value(S::default()).unwrap_or_default();
        let properties: Map<String, Value> = S::FIELDS
            .iter()
            .map(|field| {
                let name = file_name(field.name);
                let mut schema = (field.schema)();
                schema["description"] = plain(field.doc).into();
                // A section that is not there says more than its defaults.
                if let Some(default) = defaults.get(&name).filter(|default| !default.is_null() && !default.is_object())
                {
                    schema["default"] = default.clone();
                }
                (name, schema)
            })
            .collect();
        json!({
            "type": "object",
            "description": plain(S::ABOUT),
            "properties": properties,
            "additionalProperties": false,
        })
    }
}

/// Lines of documentation as one text.
fn plain(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// The schema of the whole file.
pub fn schema() -> Value {
    let mut schema = Config::schema();
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = "Configuration of tiderace edge".into();
    schema
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::config::parse;

    fn of_toml(text: &str) -> Value {
        serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap()
    }

    fn validator() -> jsonschema::Validator {
        jsonschema::draft202012::new(&schema()).unwrap()
    }

    /// Blocks of TOML in the documents and the packages that are whole configurations.
    fn examples() -> Vec<(String, String)> {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        let mut all = vec![(
            "deploy/debian/edge.toml".to_owned(),
            fs::read_to_string(root.join("deploy/debian/edge.toml")).unwrap(),
        )];
        for folder in ["docs", "docs/guides"] {
            for file in fs::read_dir(root.join(folder)).unwrap() {
                let path = file.unwrap().path();
                if path.extension().is_none_or(|kind| kind != "md") {
                    continue;
                }
                let text = fs::read_to_string(&path).unwrap();
                let blocks = text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
                all.extend(blocks.map(|block| (path.display().to_string(), block.to_owned())));
            }
        }
        all
    }

    #[test]
    fn it_takes_what_the_gateway_takes() {
        let validator = validator();
        // TOML has no null: what is none is left out.
        let text = toml::to_string(&Config::default()).unwrap();
        assert!(validator.is_valid(&of_toml(&text)), "{text}");
        let mut whole = 0;
        for (file, text) in examples() {
            // Blocks about other programs, and parts of a configuration that need others.
            let Ok(table) = text.parse::<toml::Table>() else { continue };
            let is_part = !["route", "stream", "listen"].iter().any(|name| table.contains_key(*name));
            if is_part || toml::from_str::<Config>(&text).is_err() {
                continue;
            }
            whole += usize::from(parse(&text, &file).is_ok());
            let faults: Vec<String> = validator.iter_errors(&of_toml(&text)).map(|fault| fault.to_string()).collect();
            assert!(faults.is_empty(), "{file}: {faults:?}\n{text}");
        }
        assert!(whole >= 4, "{whole} examples are whole configurations");
    }

    #[test]
    fn it_refuses_what_the_gateway_refuses_for_its_form() {
        let validator = validator();
        for text in [
            "lissen = \"[::]:443\"",
            "listen = 443",
            "workers = 300",
            "workers = -1",
            "drain = 30",
            "drain = \"30 years\"",
            "[limits]\nfields = \"64\"",
            "[limits]\nconnections = \"many\"",
            "[log]\nformat = \"xml\"",
            "[[route]]\ntoo = \"http://a:1\"",
            "[[route]]\nretries = 256",
            "[[route]]\nhealth = { path = 5 }",
            "[[route]]\nbalance = \"random\"",
            "[[route]]\nresponse-headers = { set = { a = 1 } }",
            "[[policy]]\nshare = \"all\"",
            "route = { to = \"http://a:1\" }",
            "[rate-limit]\nrequests-per-second = \"10\"",
            "certificate-for = \"x\"",
        ] {
            assert!(toml::from_str::<Config>(text).is_err(), "{text}");
            assert!(!validator.is_valid(&of_toml(text)), "{text}");
        }
    }

    #[test]
    fn units_of_the_schema_are_those_of_the_gateway() {
        fn agree<T: std::str::FromStr + Described>(texts: &[(&str, bool)]) {
            let validator = jsonschema::draft202012::new(&T::schema()).unwrap();
            for (text, is_good) in texts {
                assert_eq!(text.parse::<T>().is_ok(), *is_good, "{text}");
                assert_eq!(validator.is_valid(&json!(text)), *is_good, "{text}");
            }
        }
        agree::<Span>(&[("250 ms", true), ("30s", true), ("365 d", true), ("5", false), ("5 m", false), ("", false)]);
        agree::<Size>(&[
            ("64k", true),
            ("1 MiB", true),
            ("1500 B", true),
            ("2 GB", true),
            ("5", false),
            ("5 parsecs", false),
        ]);
        agree::<Part>(&[("10 %", true), ("0.5%", true), ("10", false), ("all", false)]);
    }
}
