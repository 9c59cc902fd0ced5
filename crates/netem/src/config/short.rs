//! A setting that is a single value or a table.

use core::{fmt, marker::PhantomData};

use serde::{Deserialize, Deserializer, de};

/// Short forms: the meaning of text or a number alone, and the table that stands for everything else.
pub(crate) trait Short<'de>: Sized {
    type Table: Deserialize<'de> + Into<Self>;
    const EXPECTED: &'static str;
    fn from_text(text: &str) -> Result<Self, String>;
}

pub(crate) fn read<'de, T: Short<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    struct Visitor<T>(PhantomData<T>);
    impl<'de, T: Short<'de>> de::Visitor<'de> for Visitor<T> {
        type Value = T;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(T::EXPECTED)
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            T::from_text(text).map_err(E::custom)
        }
        fn visit_f64<E: de::Error>(self, value: f64) -> Result<T, E> {
            T::from_text(&value.to_string()).map_err(E::custom)
        }
        fn visit_i64<E: de::Error>(self, value: i64) -> Result<T, E> {
            T::from_text(&value.to_string()).map_err(E::custom)
        }
        fn visit_u64<E: de::Error>(self, value: u64) -> Result<T, E> {
            T::from_text(&value.to_string()).map_err(E::custom)
        }
        fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
            T::Table::deserialize(de::value::MapAccessDeserializer::new(map)).map(Into::into)
        }
    }
    deserializer.deserialize_any(Visitor(PhantomData))
}

/// Reads a type in both forms.
macro_rules! short_form {
    ($type:ty) => {
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                crate::config::short::read(deserializer)
            }
        }
    };
}
pub(crate) use short_form;
