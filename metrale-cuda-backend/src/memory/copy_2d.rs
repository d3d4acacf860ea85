// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pitched 2-D copies: a rectangle of rows that lie apart.

use metrale_driver_sys::{CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST, CUDA_MEMCPY2D};
use metrale_telemetry::LaunchKind;

use crate::error::BadArgument;
use crate::memory::end::End;
use crate::memory::transfer::Transfer;
use crate::raw_handles::DevicePtr;

/// One side of a pitched copy: where its first row begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Device memory.
    Device(DevicePtr),
    /// Host memory; only read where it is the source.
    Host(*mut u8),
}

/// A rectangle of `rows` rows of `width_bytes` each, copied from rows that lie `src_pitch_bytes` apart to rows that lie
/// `dst_pitch_bytes` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy2d {
    /// The first row's source.
    pub src: Side,
    /// Bytes from one source row to the next.
    pub src_pitch_bytes: usize,
    /// The first row's destination.
    pub dst: Side,
    /// Bytes from one destination row to the next.
    pub dst_pitch_bytes: usize,
    /// Bytes of each row that are copied.
    pub width_bytes: usize,
    /// Rows that are copied.
    pub rows: usize,
}

impl Copy2d {
    /// A copy inside the device.
    #[must_use]
    pub const fn device(
        src: DevicePtr,
        src_pitch_bytes: usize,
        dst: DevicePtr,
        dst_pitch_bytes: usize,
        width_bytes: usize,
        rows: usize,
    ) -> Self {
        Self {
            src: Side::Device(src),
            src_pitch_bytes,
            dst: Side::Device(dst),
            dst_pitch_bytes,
            width_bytes,
            rows,
        }
    }

    /// Bytes from the first row's first byte to the last row's last, on the side of the given pitch.
    fn span_bytes(&self, end: End) -> Result<u64, BadArgument> {
        let pitch = match end {
            End::Source => self.src_pitch_bytes,
            End::Destination => self.dst_pitch_bytes,
        };
        // One row has no next.
        if self.rows > 1 && pitch < self.width_bytes {
            return Err(BadArgument::new(format!(
                "a 2-D copy whose {end} rows lie {pitch} bytes apart, which is less than the {} bytes of a row",
                self.width_bytes
            )));
        }
        let span = (pitch as u64)
            .checked_mul(self.rows as u64 - 1)
            .and_then(|before| before.checked_add(self.width_bytes as u64));
        span.ok_or_else(|| {
            BadArgument::new(format!(
                "a 2-D copy of {} rows whose {end} rows lie {pitch} bytes apart spans more bytes than there are addresses",
                self.rows
            ))
        })
    }

    /// The copy by its sides on the device. Of two on the host the driver is the judge.
    pub(crate) fn transfer(&self) -> Transfer {
        let device = |side| match side {
            Side::Device(ptr) => Some(ptr),
            Side::Host(_) => None,
        };
        Transfer {
            kind: match (self.src, self.dst) {
                (Side::Host(_), _) => LaunchKind::CopyH2d,
                (Side::Device(_), Side::Host(_)) => LaunchKind::CopyD2h,
                (Side::Device(_), Side::Device(_)) => LaunchKind::CopyD2d,
            },
            what: "queueing a 2-D copy",
            src: device(self.src),
            dst: device(self.dst),
            bytes: self.width_bytes.saturating_mul(self.rows),
        }
    }

    /// Bytes that each side spans.
    pub(crate) fn spans(&self) -> Result<[u64; 2], BadArgument> {
        Ok([self.span_bytes(End::Source)?, self.span_bytes(End::Destination)?])
    }

    /// The side in host memory.
    pub(crate) fn host(&self) -> Option<u64> {
        [self.src, self.dst].into_iter().find_map(|side| match side {
            Side::Host(ptr) => Some(ptr.addr() as u64),
            Side::Device(_) => None,
        })
    }

    /// The driver's form of the self.
    pub(crate) fn raw(&self) -> CUDA_MEMCPY2D {
        let mut raw = CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: CU_MEMORYTYPE_DEVICE,
            srcHost: core::ptr::null(),
            srcDevice: 0,
            srcArray: 0,
            // The driver wants a pitch no shorter than the row even where there is one row only.
            srcPitch: self.src_pitch_bytes.max(self.width_bytes),
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: CU_MEMORYTYPE_DEVICE,
            dstHost: core::ptr::null_mut(),
            dstDevice: 0,
            dstArray: 0,
            dstPitch: self.dst_pitch_bytes.max(self.width_bytes),
            WidthInBytes: self.width_bytes,
            Height: self.rows,
        };
        match self.src {
            Side::Device(ptr) => raw.srcDevice = ptr.0,
            Side::Host(ptr) => {
                (raw.srcMemoryType, raw.srcHost) = (CU_MEMORYTYPE_HOST, ptr.cast_const().cast())
            }
        }
        match self.dst {
            Side::Device(ptr) => raw.dstDevice = ptr.0,
            Side::Host(ptr) => (raw.dstMemoryType, raw.dstHost) = (CU_MEMORYTYPE_HOST, ptr.cast()),
        }
        raw
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(src_pitch: usize, dst_pitch: usize, width: usize, rows: usize) -> Copy2d {
        Copy2d::device(DevicePtr(0x1000), src_pitch, DevicePtr(0x9000), dst_pitch, width, rows)
    }

    #[test]
    fn a_span_ends_with_the_last_rows_last_byte() {
        assert_eq!(copy(100, 16, 10, 3).span_bytes(End::Source), Ok(210));
        assert_eq!(copy(100, 16, 10, 3).span_bytes(End::Destination), Ok(42));
        assert_eq!(copy(0, 0, 10, 1).span_bytes(End::Source), Ok(10));
    }

    #[test]
    fn short_pitches_and_sizes_that_wrap_are_refused() {
        let short = copy(9, 10, 10, 2);
        assert!(short.span_bytes(End::Source).unwrap_err().what.contains("9 bytes apart"));
        assert_eq!(short.span_bytes(End::Destination), Ok(20));
        for huge in [copy(usize::MAX, 10, 10, 3), copy(usize::MAX, 10, 10, 2)] {
            assert!(
                huge.span_bytes(End::Source)
                    .unwrap_err()
                    .what
                    .contains("more bytes than there are addresses")
            );
        }
    }
}
