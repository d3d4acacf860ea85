// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tensor maps: what a tiled one is made of, and every rule it must keep, checked before the driver is asked.
//!
//! The driver answers a broken rule with one status for all of them, and takes some maps that no kernel can use. Here each
//! rule is named with its value, all that are broken at once.

mod element;
mod encode;
mod map;
mod rule;
mod spec;

pub use element::{ElementType, Interleave, L2Promotion, OobFill, Swizzle};
pub use encode::TensorMapOutOfBounds;
pub use map::TensorMap;
pub use rule::{TensorMapError, TensorMapRule, TensorMapWarning};
pub use spec::{EncodeArguments, MAX_BOX_BYTES, MAX_RANK, TensorMapSpec};
