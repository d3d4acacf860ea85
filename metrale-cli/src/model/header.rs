// SPDX-License-Identifier: MIT OR Apache-2.0
//! A safetensors header as it is written: every entry in order, duplicate names and unknown fields included.

use std::collections::HashMap;
use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::shown::Shown;
use super::tensor::Dtype;

/// One tensor's entry, unchecked.
#[derive(Debug)]
pub(crate) struct HeaderEntry {
    pub(crate) name: String,
    pub(crate) dtype: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) begin: u64,
    pub(crate) end: u64,
    pub(crate) unknown_fields: Vec<String>,
}

/// Reads the header. Errors name the tensor and say where in the header it is.
pub(crate) fn read(text: &str) -> Result<Vec<HeaderEntry>, serde_json::Error> {
    let Header(entries) = serde_json::from_str(text)?;
    Ok(entries)
}

/// The type of that name, by the safetensors crate's own list.
pub(crate) fn dtype(name: &str) -> Option<Dtype> {
    Dtype::deserialize(StrDeserializer::<serde::de::value::Error>::new(name)).ok()
}

struct Header(Vec<HeaderEntry>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut entries = Vec::new();
        let mut seen_metadata = false;
        while let Some(name) = map.next_key::<String>()? {
            if name != "__metadata__" {
                entries.push(map.next_value_seed(EntrySeed(name))?);
            } else if std::mem::replace(&mut seen_metadata, true) {
                return Err(A::Error::custom("duplicate field `__metadata__`"));
            } else {
                map.next_value::<Option<HashMap<String, String>>>().map_err(|error| {
                    A::Error::custom(format_args!("__metadata__ must map text to text: {error}"))
                })?;
            }
        }
        Ok(Header(entries))
    }
}

struct EntrySeed(String);

impl<'de> DeserializeSeed<'de> for EntrySeed {
    type Value = HeaderEntry;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<HeaderEntry, D::Error> {
        let Self(name) = self;
        match deserializer.deserialize_map(EntryVisitor) {
            Ok(fields) => Ok(HeaderEntry {
                name,
                dtype: fields.dtype,
                shape: fields.shape,
                begin: fields.begin,
                end: fields.end,
                unknown_fields: fields.unknown,
            }),
            Err(error) => Err(D::Error::custom(format_args!("tensor {}: {error}", Shown(&name)))),
        }
    }
}

struct Fields {
    dtype: String,
    shape: Vec<u64>,
    begin: u64,
    end: u64,
    unknown: Vec<String>,
}

struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let (mut dtype, mut shape, mut offsets) = (None, None, None);
        let mut unknown = Vec::new();
        while let Some(field) = map.next_key::<String>()? {
            match &*field {
                "dtype" => once::<A, _>(&mut dtype, "dtype", &mut map)?,
                "shape" => once::<A, _>(&mut shape, "shape", &mut map)?,
                "data_offsets" => once::<A, [u64; 2]>(&mut offsets, "data_offsets", &mut map)?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    unknown.push(field);
                }
            }
        }
        let [begin, end] = offsets.ok_or_else(|| A::Error::missing_field("data_offsets"))?;
        Ok(Fields {
            dtype: dtype.ok_or_else(|| A::Error::missing_field("dtype"))?,
            shape: shape.ok_or_else(|| A::Error::missing_field("shape"))?,
            begin,
            end,
            unknown,
        })
    }
}

fn once<'de, A: MapAccess<'de>, T: Deserialize<'de>>(
    slot: &mut Option<T>,
    field: &'static str,
    map: &mut A,
) -> Result<(), A::Error> {
    if slot.is_some() {
        return Err(A::Error::duplicate_field(field));
    }
    let value = map.next_value().map_err(|error| A::Error::custom(format_args!("{field}: {error}")))?;
    *slot = Some(value);
    Ok(())
}
