// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tile width that a kernel publishes: a 4-byte global `<entry>_n_tile` in its module, which the host's grid must
//! agree with.

use core::ffi::c_void;

use metrale_driver_sys::DriverFn;

use crate::backend::MetraleCudaBackend;
use crate::call::{Doing, ask};
use crate::error::{Result, causes};
use crate::raw_handles::DevicePtr;

/// What follows an entry's name.
const SUFFIX: &str = "_n_tile";

/// Bytes of the global: one unsigned 32-bit number.
const BYTES: usize = 4;

/// A kernel's `_n_tile` global that is no 32-bit number. Fix the kernel's source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the global {symbol} of module {module:?} has {bytes} bytes, and a tile width is a 32-bit number: declare it as `unsigned`"
)]
#[non_exhaustive]
pub struct NTileError {
    /// The module.
    pub module: String,
    /// The global.
    pub symbol: String,
    /// Its size in bytes.
    pub bytes: usize,
}

causes! { NTileError: Module }

impl MetraleCudaBackend {
    /// Reads the width that a kernel publishes, if it does. Works on a thread that is not bound.
    pub(crate) fn read_n_tile(&self, module: &str, function: &str) -> Result<Option<u32>> {
        // A driver that cannot look globals up has none to publish.
        if !self.driver().provides(DriverFn::cuModuleGetGlobal_v2) {
            return Ok(None);
        }
        let symbol = format!("{function}{SUFFIX}");
        let (at, bytes) = match self.registry().device_symbol(module, &symbol) {
            Ok((addr, bytes)) => (DevicePtr(addr), bytes),
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if bytes != BYTES {
            return Err(NTileError { module: module.to_owned(), symbol, bytes }.into());
        }
        let reading = || format!("reading {symbol} of module {module:?}");
        let _current = self.enter().doing(reading)?;
        let mut value = [0_u8; BYTES];
        // SAFETY: the destination is a local of as many bytes as the driver says the global has.
        unsafe { ask!(self.driver(), cuMemcpyDtoH_v2(value.as_mut_ptr().cast::<c_void>(), at.0, BYTES)) }
            .doing(reading)?;
        Ok(Some(u32::from_ne_bytes(value)))
    }
}
