// SPDX-License-Identifier: MIT OR Apache-2.0
//! The catalogue: tensor names and shapes of well-known models, without data, embedded in the program.

use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::GzDecoder;
use thiserror::Error;

use super::shown::Shown;
use super::tensor::{Dtype, TensorSource, TensorSpec, byte_size};

/// The type that all catalogue models are taken in.
pub const CATALOGUE_DTYPE: Dtype = Dtype::BF16;

const EMBEDDED: &[u8] = include_bytes!("../../data/models.json.gz");

/// Why there is no model of a name.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CatalogueError {
    /// No model has it.
    #[error(
        "no model {} in the catalogue{}; it has {}", Shown(.name),
        .nearest.as_ref().map(|name| format!(": did you mean {name}?")).unwrap_or_default(), .known.join(", ")
    )]
    Unknown {
        /// The name given.
        name: String,
        /// The known name most like it.
        nearest: Option<String>,
        /// All known names.
        known: Vec<String>,
    },
    /// A catalogue file that is no catalogue.
    #[error("the model catalogue cannot be read: {0}")]
    Unreadable(String),
}

/// Models by name.
#[derive(Debug)]
pub struct Catalogue {
    models: BTreeMap<String, Vec<(String, Vec<u64>)>>,
}

impl Catalogue {
    /// The one in this program.
    ///
    /// # Errors
    /// [`CatalogueError::Unreadable`], only if the program itself is damaged.
    pub fn embedded() -> Result<Self, CatalogueError> {
        Self::from_gz(EMBEDDED)
    }

    fn from_gz(gz: &[u8]) -> Result<Self, CatalogueError> {
        let mut text = String::new();
        GzDecoder::new(gz)
            .read_to_string(&mut text)
            .map_err(|error| CatalogueError::Unreadable(error.to_string()))?;
        let models =
            serde_json::from_str(&text).map_err(|error| CatalogueError::Unreadable(error.to_string()))?;
        Ok(Self { models })
    }

    /// The names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.models.keys().map(String::as_str)
    }

    /// The model's tensors in the order listed, as bf16.
    ///
    /// # Errors
    /// [`CatalogueError::Unknown`] with the nearest and all known names.
    pub fn tensors(&self, name: &str) -> Result<Vec<TensorSpec>, CatalogueError> {
        let Some(tensors) = self.models.get(name) else {
            return Err(CatalogueError::Unknown {
                name: name.to_owned(),
                nearest: self.nearest(name).map(str::to_owned),
                known: self.names().map(str::to_owned).collect(),
            });
        };
        tensors
            .iter()
            .map(|(tensor, shape)| {
                let bytes = byte_size(CATALOGUE_DTYPE, shape)
                    .map_err(|_| CatalogueError::Unreadable(format!("{name}: {tensor} has no size")))?;
                Ok(TensorSpec {
                    name: tensor.clone(),
                    dtype: CATALOGUE_DTYPE,
                    shape: shape.clone(),
                    bytes,
                    source: TensorSource::Catalogue,
                })
            })
            .collect()
    }

    /// The known name most like `name`, where one is like it at all.
    fn nearest(&self, name: &str) -> Option<&str> {
        // The similarity is quadratic in the length, and a page of text is no misspelt name.
        let name: String = name.chars().take(64).flat_map(char::to_lowercase).collect();
        let likeness = |known: &str| strsim::jaro_winkler(&name, known);
        self.names()
            .map(|known| (likeness(known), known))
            .filter(|(likeness, _)| *likeness >= 0.75)
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, known)| known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(name: &str) -> (usize, u64) {
        let tensors = Catalogue::embedded().unwrap().tensors(name).unwrap();
        (tensors.len(), tensors.iter().map(|tensor| tensor.bytes).sum())
    }

    #[test]
    fn the_embedded_models() {
        let catalogue = Catalogue::embedded().unwrap();
        let names: Vec<_> = catalogue.names().collect();
        assert_eq!(
            names,
            [
                "bert-base",
                "deepseek-v3",
                "gpt2",
                "llama-7b",
                "mixtral-8x7b",
                "nemotron-h",
                "qwen3-moe",
                "qwen3-next",
                "whisper-base"
            ]
        );
        assert_eq!(sums("bert-base"), (204, 219_030_644));
        assert_eq!(sums("llama-7b"), (293, 13_476_831_488));
        let (_, qwen) = sums("qwen3-next");
        assert!(qwen > 159_000_000_000, "{qwen}");
    }

    #[test]
    fn tensors_come_as_listed() {
        let tensors = Catalogue::embedded().unwrap().tensors("llama-7b").unwrap();
        assert_eq!(tensors[0].name, "model.embed_tokens.weight");
        assert_eq!((&*tensors[0].shape, tensors[0].bytes), (&[32000, 4096][..], 262_144_000));
        assert_eq!(tensors[1].name, "model.layers.0.self_attn.q_proj.weight");
        assert_eq!(tensors[0].source, TensorSource::Catalogue);
    }

    #[test]
    fn an_unknown_name_gets_the_nearest_and_all() {
        let text = |name: &str| Catalogue::embedded().unwrap().tensors(name).unwrap_err().to_string();
        assert!(text("llama7b").contains("did you mean llama-7b?"), "{}", text("llama7b"));
        assert!(text("BERT").contains("did you mean bert-base?"), "{}", text("BERT"));
        let none = text("zzz\n");
        assert!(none.starts_with("no model \"zzz\\n\" in the catalogue; it has bert-base, "), "{none}");
        assert!(!text(&"x".repeat(100_000)).contains("did you mean"));
    }

    #[test]
    fn a_damaged_catalogue_is_an_error() {
        for bytes in [&b""[..], b"junk", &EMBEDDED[..EMBEDDED.len() / 2]] {
            assert!(matches!(Catalogue::from_gz(bytes), Err(CatalogueError::Unreadable(_))));
        }
    }
}
