// SPDX-License-Identifier: MIT OR Apache-2.0
//! The formats a driver loads, read without a driver: PTX text, cubins and fatbins, distinguished by content.
//!
//! Facts only. What a particular driver and device answer to an image is not decided here: the software driver emulates
//! that answer, a preflight predicts it. Nothing here trusts its input: each size is compared with the bytes at hand
//! before it is used, and no input makes a reader panic.
//!
//! ```
//! use metrale_driver_sys::image::{ImageKind, ptx::Ptx};
//!
//! let text = b".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry scale(.param .u64 x) { ret; }\n";
//! assert_eq!(ImageKind::of(text), ImageKind::Ptx);
//!
//! let ptx = Ptx::read(text);
//! assert_eq!(ptx.header.target().unwrap().to_string(), "sm_90a");
//! assert_eq!(ptx.entries().next().unwrap().name, "scale");
//! ```

mod allowance;
pub mod arch;
mod bytes;
mod calls;
mod code;
pub mod cubin;
pub mod fatbin;
mod kind;
pub mod ptx;
#[cfg(feature = "unpack")]
mod unpack;

pub use code::Code;
pub use kind::ImageKind;
#[cfg(feature = "unpack")]
pub use unpack::{UnpackError, Unpacker};
