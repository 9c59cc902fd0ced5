//! One declaration for what a section of the configuration holds: the type, its defaults, and its page in the reference.

/// A section as the reference shows it.
pub(super) trait Section {
    /// Purpose, line by line.
    const ABOUT: &'static [&'static str];
    /// Fields: name in Rust, documentation.
    const FIELDS: &'static [(&'static str, &'static [&'static str])];
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
            const FIELDS: &'static [(&'static str, &'static [&'static str])] =
                &[$((stringify!($field), &[$($doc),+])),+];
        }
    };
}

pub(crate) use section;
