//! JSON Schema of scenario files, for editors and other programs.

/// The schema (draft 2020-12). It names every field; what fields mean together is checked when a scenario is read.
pub const fn schema() -> &'static str {
    include_str!("../../schema/scenario.schema.json")
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;
    use crate::scenario::{PRESETS, Path, Plan, Scenario, Threshold, Traffic};

    fn names(schema: &Value, place: &str) -> Vec<String> {
        let properties = schema.pointer(place).unwrap_or_else(|| panic!("{place}"));
        let mut names: Vec<String> = properties.as_object().unwrap().keys().cloned().collect();
        names.sort();
        names
    }

    /// The names of all fields, read from the error message about an unknown one.
    fn fields<T: DeserializeOwned>() -> Vec<String> {
        let Err(error) = serde_json::from_value::<T>(json!({ "no-such-field": 1 })) else { panic!("it was taken") };
        let message = error.to_string();
        let mut names: Vec<String> = message.split('`').skip(3).step_by(2).map(str::to_owned).collect();
        names.sort();
        assert!(!names.is_empty(), "{message}");
        names
    }

    #[test]
    fn it_has_every_field_and_no_other() {
        let schema: Value = serde_json::from_str(schema()).unwrap();
        assert_eq!(names(&schema, "/properties"), fields::<Scenario>());
        assert_eq!(names(&schema, "/$defs/path/properties"), fields::<Path>());
        assert_eq!(names(&schema, "/$defs/link/properties"), fields::<netem::LinkConfig>());
        assert_eq!(names(&schema, "/$defs/traffic/properties"), fields::<Traffic>());
        assert_eq!(names(&schema, "/$defs/video/properties"), fields::<crate::scenario::VideoTraffic>());
        assert_eq!(names(&schema, "/$defs/page/properties"), fields::<crate::scenario::PageTraffic>());
        assert_eq!(names(&schema, "/$defs/feed/properties"), fields::<crate::scenario::FeedTraffic>());
        let broadcast = fields::<crate::scenario::BroadcastTraffic>();
        assert_eq!(names(&schema, "/$defs/webtransport/properties"), broadcast);
        assert_eq!(names(&schema, "/$defs/run/properties"), fields::<Plan>());
        assert_eq!(names(&schema, "/$defs/nat/properties"), fields::<netem::NatConfig>());
        assert_eq!(names(&schema, "/$defs/change/properties"), fields::<netem::Change>());
        assert_eq!(names(&schema, "/$defs/outage/properties"), fields::<netem::Outage>());
        assert_eq!(names(&schema, "/$defs/policer/properties"), fields::<netem::Policer>());
        assert_eq!(names(&schema, "/$defs/threshold/properties"), fields::<Threshold>());
        assert_eq!(names(&schema, "/$defs/contenders/properties"), fields::<crate::scenario::Selection>());
        assert_eq!(names(&schema, "/$defs/programs/properties"), fields::<crate::scenario::Programs>());
    }

    /// A small reading of the schema: the names of tables below one another.
    #[test]
    fn presets_have_no_table_that_it_does_not_name() {
        let schema: Value = serde_json::from_str(schema()).unwrap();
        for preset in PRESETS {
            let file: Value = toml::from_str(preset.text).unwrap();
            for (name, value) in file.as_object().unwrap() {
                let property = &schema["properties"][name];
                assert!(property.is_object(), "{}: {name}", preset.name);
                assert!(value.is_object() != (property["type"] == "string"), "{}: {name}", preset.name);
            }
        }
    }
}
