//! Declaration of a section of the configuration: type, defaults and reference in one place.

/// A section as the reference shows it.
pub(crate) trait Section {
    /// Purpose, line by line.
    const ABOUT: &'static [&'static str];
    /// Fields in their order.
    const FIELDS: &'static [Field];
}

/// A field of a section.
pub(crate) struct Field {
    /// Name in Rust.
    pub(crate) name: &'static str,
    /// Documentation, line by line.
    pub(crate) doc: &'static [&'static str],
    /// JSON Schema of its type.
    pub(crate) schema: fn() -> serde_json::Value,
}

/// Name in the file of a field with this name in Rust. Lists of tables are written in the singular.
pub(crate) fn file_name(field: &str) -> String {
    match field {
        "certificates" => "certificate-for".to_owned(),
        "policies" => "policy".to_owned(),
        "routes" => "route".to_owned(),
        "identities" => "identity".to_owned(),
        "machines" => "machine".to_owned(),
        "streams" => "stream".to_owned(),
        other => other.replace('_', "-"),
    }
}

/// Declares a section. Names are written with dashes in the file; every field has a default.
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        pub struct $name:ident {
            $($(#[doc = $doc:literal])+ $(#[serde($($attribute:tt)*)])? $field:ident: $ty:ty = $default:expr,)+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
        pub struct $name {
            $($(#[doc = $doc])+ $(#[serde($($attribute)*)])? pub $field: $ty,)+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        impl $crate::config::section::Section for $name {
            const ABOUT: &'static [&'static str] = &[$($about),+];
            const FIELDS: &'static [$crate::config::section::Field] = &[$($crate::config::section::Field {
                name: stringify!($field),
                doc: &[$($doc),+],
                schema: <$ty as $crate::config::schema::Described>::schema,
            }),+];
        }
    };
}

pub(crate) use section;
