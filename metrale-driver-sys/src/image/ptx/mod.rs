// SPDX-License-Identifier: MIT OR Apache-2.0
//! PTX text: header, kernels, functions and variables, with the line each stands on. Instructions are not read.
//!
//! [`Ptx::read`] never fails: it collects what it understands and lists what is wrong as [`Flaw`]s, so that a person
//! gets the whole picture at once. Whether a flaw keeps a given driver from loading the text is not decided here.

mod cursor;
mod declaration;
mod flaw;
mod header;
mod initial;
mod lexer;
mod module;
mod shared;
mod sparse;
mod text;

pub use declaration::{Function, FunctionKind, Linkage, Parameter, StateSpace, Variable};
pub use flaw::{Flaw, FlawKind, MAX_CALL_STEPS, MAX_DECLARATIONS, MAX_FLAWS};
pub use header::{Header, TargetName};
pub use initial::Initial;
pub use lexer::{Lexer, Token, TokenKind};
pub use module::Ptx;
pub use sparse::SparseBytes;
pub use text::Text;
pub(super) use text::{BYTE_ORDER_MARK, is_text_byte};
