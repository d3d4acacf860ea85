// SPDX-License-Identifier: MIT OR Apache-2.0
//! A sharded model's `model.safetensors.index.json`: which tensor is in which file.
//!
//! The index decides which tensors belong to the model, the shards' headers what they are. Tensors come in the
//! order of the shards' names, inside a shard by data offset. What only hints (the total size, files beside the
//! shards, tensors the index leaves out) is a warning.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Component, Path};

use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use thiserror::Error;

use super::mapped;
use super::safetensors::SafetensorsFile;
use super::safetensors_error::SafetensorsError;
use super::shown::{Shown, ShownPath, some_names};
use super::tensor::TensorSpec;

/// What is wrong with an index or with what it names.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum IndexError {
    /// It is not UTF-8.
    #[error("the index is not UTF-8 text (byte {0})")]
    NotUtf8(usize),
    /// It is not JSON.
    #[error("the index is not JSON: {0}")]
    NotJson(serde_json::Error),
    /// It is JSON of another form, such as a model's config.json.
    #[error(
        "this is JSON, but not an index of shards: {0}: an index has a \"weight_map\" from tensor names to file names"
    )]
    Form(serde_json::Error),
    /// A name is mapped twice.
    #[error("tensor {} is mapped twice, to {} and to {}", Shown(.name), Shown(.first), Shown(.second))]
    MappedTwice {
        /// The tensor.
        name: String,
        /// Its first shard.
        first: String,
        /// Its second shard.
        second: String,
    },
    /// It names no tensor.
    #[error("the index maps no tensor")]
    NoTensors,
    /// A shard outside the index's folder.
    #[error("shard name {} leaves the folder of the index, or may: name a file below it, without a leading \"/\" and without \"..\"", Shown(.0))]
    LeavesFolder(String),
    /// A shard name that is a name on no system, or not the same on all.
    #[error("shard name {} is not usable: a shard name has no backslash, no control character and is not empty", Shown(.0))]
    BadShardName(String),
    /// Shards that are not there.
    #[error("missing {}: {}: fetch them into the folder of the index", plural(.0.len(), "shard"), some_names(.0.iter().map(String::as_str)))]
    MissingShards(Vec<String>),
    /// A shard that is not right.
    #[error("shard {}: {problem}", Shown(.shard))]
    Shard {
        /// Its name.
        shard: String,
        /// What is wrong with it.
        problem: SafetensorsError,
    },
    /// Tensors that are not in the shard they are mapped to.
    #[error(
        "{} not in shard {}, to which the index maps {}: {}: index and shards are of different releases",
        plural(.names.len(), "tensor"), Shown(.shard), if .names.len() == 1 { "it" } else { "them" },
        some_names(.names.iter().map(String::as_str))
    )]
    NotInShard {
        /// The shard.
        shard: String,
        /// The tensors.
        names: Vec<String>,
    },
}

fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// A model in shards, every shard opened once.
#[derive(Debug)]
pub(crate) struct Sharded {
    pub(crate) files: Vec<SafetensorsFile>,
    pub(crate) tensors: Vec<TensorSpec>,
    pub(crate) warnings: Vec<String>,
}

impl Sharded {
    /// Reads the index with this text and opens its shards.
    pub(crate) fn open(path: &Path, text: &[u8]) -> Result<Self, IndexError> {
        let index = Index::parse(text)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let shards = index.shards()?;

        let missing: Vec<String> =
            shards.keys().filter(|shard| !folder.join(shard).exists()).map(|s| (*s).to_owned()).collect();
        if !missing.is_empty() {
            return Err(IndexError::MissingShards(missing));
        }

        let mut sharded = Self { files: Vec::new(), tensors: Vec::new(), warnings: index.warnings.clone() };
        let mut data_bytes = 0u64;
        for (&shard, wanted) in &shards {
            let file = SafetensorsFile::open(&folder.join(shard), sharded.files.len())
                .map_err(|problem| IndexError::Shard { shard: shard.to_owned(), problem })?;
            data_bytes = data_bytes.saturating_add(file.tensors().iter().map(|tensor| tensor.bytes).sum());
            sharded.add(shard, wanted, &file)?;
            sharded.files.push(file);
        }
        if let Some(total) = &index.total_size
            && !says(total, data_bytes)
        {
            sharded.warnings.push(format!(
                "total_size in the index is {total}, the shards hold {data_bytes} bytes: taken from the shards"
            ));
        }
        sharded.warnings.extend(strays(path, folder, &shards));
        Ok(sharded)
    }

    /// Adds the tensors that are mapped to this shard.
    fn add(
        &mut self,
        shard: &str,
        wanted: &BTreeSet<&str>,
        file: &SafetensorsFile,
    ) -> Result<(), IndexError> {
        let here: BTreeSet<&str> = file.tensors().iter().map(|tensor| &*tensor.name).collect();
        let names: Vec<String> = wanted.difference(&here).map(|name| (*name).to_owned()).collect();
        if !names.is_empty() {
            return Err(IndexError::NotInShard { shard: shard.to_owned(), names });
        }
        let (listed, left): (Vec<_>, Vec<_>) =
            file.tensors().iter().partition(|tensor| wanted.contains(&*tensor.name));
        if !left.is_empty() {
            self.warnings.push(format!(
                "{} in shard {} that the index does not map to it, left out: {}",
                plural(left.len(), "tensor"),
                Shown(shard),
                some_names(left.iter().map(|tensor| &*tensor.name))
            ));
        }
        self.tensors.extend(listed.into_iter().cloned());
        Ok(())
    }
}

/// Whether the advisory size says `bytes`; some writers put a float there.
fn says(total: &Value, bytes: u64) -> bool {
    total.as_u64().map_or_else(|| total.as_f64() == Some(bytes as f64), |total| total == bytes)
}

/// Warns of safetensors files beside the shards: an older release's shards often stay behind.
fn strays(path: &Path, folder: &Path, shards: &BTreeMap<&str, BTreeSet<&str>>) -> Option<String> {
    let names = match mapped::file_names(folder) {
        Ok(names) => names,
        Err(error) => return Some(format!("the folder of {} cannot be listed: {error}", ShownPath(path))),
    };
    let stray: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| name.ends_with(".safetensors") && !shards.contains_key(name))
        .collect();
    (!stray.is_empty()).then(|| {
        format!(
            "{} beside the shards that the index does not name, left out: {}",
            plural(stray.len(), "file"),
            some_names(stray.iter().copied())
        )
    })
}

/// The index as it is written.
#[derive(Debug)]
struct Index {
    total_size: Option<Value>,
    weight_map: Vec<(String, String)>,
    warnings: Vec<String>,
}

impl Index {
    fn parse(text: &[u8]) -> Result<Self, IndexError> {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let text = std::str::from_utf8(text).map_err(|error| IndexError::NotUtf8(error.valid_up_to()))?;
        serde_json::from_str::<IgnoredAny>(text).map_err(IndexError::NotJson)?;
        let index: Self = serde_json::from_str(text).map_err(IndexError::Form)?;
        if index.weight_map.is_empty() {
            return Err(IndexError::NoTensors);
        }
        let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, shard) in &index.weight_map {
            if let Some(first) = seen.insert(name, shard) {
                let (name, first, second) = (name.clone(), first.to_owned(), shard.clone());
                return Err(IndexError::MappedTwice { name, first, second });
            }
        }
        Ok(index)
    }

    /// Shards by name, each with the tensors it should hold.
    fn shards(&self) -> Result<BTreeMap<&str, BTreeSet<&str>>, IndexError> {
        let mut shards: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (name, shard) in &self.weight_map {
            // On Linux a backslash is a letter, elsewhere a border of folders: the same index must not name two files.
            if shard.is_empty() || shard.contains(|c: char| c == '\\' || c.is_control()) {
                return Err(IndexError::BadShardName(shard.clone()));
            }
            let mut parts = Path::new(shard).components();
            // A leading "./" is the folder itself.
            if !parts.all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
                return Err(IndexError::LeavesFolder(shard.clone()));
            }
            shards.entry(shard).or_default().insert(name);
        }
        Ok(shards)
    }
}

impl<'de> Deserialize<'de> for Index {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(IndexVisitor)
    }
}

struct IndexVisitor;

impl<'de> Visitor<'de> for IndexVisitor {
    type Value = Index;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a weight_map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Index, A::Error> {
        let (mut metadata, mut weight_map) = (None::<Value>, None::<WeightMap>);
        while let Some(field) = map.next_key::<String>()? {
            match &*field {
                "weight_map" if weight_map.is_some() => return Err(A::Error::duplicate_field("weight_map")),
                "weight_map" => weight_map = Some(map.next_value()?),
                "metadata" => metadata = Some(map.next_value()?),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let WeightMap(weight_map) = weight_map.ok_or_else(|| A::Error::missing_field("weight_map"))?;
        let total = metadata.as_ref().and_then(|metadata| metadata.get("total_size")).cloned();
        let mut warnings = Vec::new();
        let total_size = total.filter(|total| {
            let number = total.is_number();
            if !number {
                warnings.push("total_size in the index is not a number: not compared".to_owned());
            }
            number
        });
        Ok(Index { total_size, weight_map, warnings })
    }
}

/// Name and shard, in order, duplicate names included.
struct WeightMap(Vec<(String, String)>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(WeightMapVisitor)
    }
}

struct WeightMapVisitor;

impl<'de> Visitor<'de> for WeightMapVisitor {
    type Value = WeightMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map from tensor names to file names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(WeightMap(pairs))
    }
}
