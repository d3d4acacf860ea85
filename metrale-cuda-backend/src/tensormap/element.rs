// SPDX-License-Identifier: MIT OR Apache-2.0
//! The choices of a tensor map: element type, interleave, swizzle, L2 promotion, fill. Each knows the driver's number.

use core::fmt;

use metrale_driver_sys::tensor_map as raw;
use metrale_driver_sys::{
    CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion,
    CUtensorMapSwizzle,
};

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ElementType {
    /// Unsigned 8-bit.
    U8,
    /// Unsigned 16-bit.
    U16,
    /// Unsigned 32-bit.
    U32,
    /// Signed 32-bit.
    I32,
    /// Unsigned 64-bit.
    U64,
    /// Signed 64-bit.
    I64,
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
    /// IEEE double.
    F64,
    /// bfloat16.
    Bf16,
    /// IEEE single, subnormals flushed to zero.
    F32Ftz,
    /// tf32.
    Tf32,
    /// tf32, subnormals flushed to zero.
    Tf32Ftz,
    /// 4-bit, sixteen in 8 bytes of global and of shared memory.
    U4Align8,
    /// 4-bit, sixteen in 8 bytes of global memory and 16 of shared memory.
    U4Align16,
    /// 6-bit, sixteen in 12 bytes of global memory and 16 of shared memory.
    U6Align16,
}

impl ElementType {
    /// All of them, in the driver's order.
    pub const ALL: [Self; 16] = [
        Self::U8,
        Self::U16,
        Self::U32,
        Self::I32,
        Self::U64,
        Self::I64,
        Self::F16,
        Self::F32,
        Self::F64,
        Self::Bf16,
        Self::F32Ftz,
        Self::Tf32,
        Self::Tf32Ftz,
        Self::U4Align8,
        Self::U4Align16,
        Self::U6Align16,
    ];

    /// The driver's number.
    #[must_use]
    pub const fn raw(self) -> CUtensorMapDataType {
        match self {
            Self::U8 => raw::UINT8,
            Self::U16 => raw::UINT16,
            Self::U32 => raw::UINT32,
            Self::I32 => raw::INT32,
            Self::U64 => raw::UINT64,
            Self::I64 => raw::INT64,
            Self::F16 => raw::FLOAT16,
            Self::F32 => raw::FLOAT32,
            Self::F64 => raw::FLOAT64,
            Self::Bf16 => raw::BFLOAT16,
            Self::F32Ftz => raw::FLOAT32_FTZ,
            Self::Tf32 => raw::TFLOAT32,
            Self::Tf32Ftz => raw::TFLOAT32_FTZ,
            Self::U4Align8 => raw::U4X16_ALIGN8B,
            Self::U4Align16 => raw::U4X16_ALIGN16B,
            Self::U6Align16 => raw::U6X16_ALIGN16B,
        }
    }

    /// Bits of an element in global memory.
    #[must_use]
    pub const fn global_bits(self) -> u64 {
        match self {
            Self::U4Align8 | Self::U4Align16 => 4,
            Self::U6Align16 => 6,
            Self::U8 => 8,
            Self::U16 | Self::F16 | Self::Bf16 => 16,
            Self::U32 | Self::I32 | Self::F32 | Self::F32Ftz | Self::Tf32 | Self::Tf32Ftz => 32,
            Self::U64 | Self::I64 | Self::F64 => 64,
        }
    }

    /// Bits of an element in a box in shared memory.
    #[must_use]
    pub const fn shared_bits(self) -> u64 {
        match self {
            Self::U4Align16 | Self::U6Align16 => 8,
            _ => self.global_bits(),
        }
    }

    /// Whether it can be filled with NaN.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            Self::F16 | Self::F32 | Self::F64 | Self::Bf16 | Self::F32Ftz | Self::Tf32 | Self::Tf32Ftz
        )
    }

    /// Whether elements are packed below a byte, which devices of compute capability 10.0 and above read: an H200's driver
    /// refuses such maps.
    #[must_use]
    pub const fn is_sub_byte(self) -> bool {
        self.global_bits() < 8
    }

    /// Whether sixteen elements are spread over 16 bytes, which has rules of its own.
    #[must_use]
    pub const fn is_padded(self) -> bool {
        matches!(self, Self::U4Align16 | Self::U6Align16)
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Bf16 => "bf16",
            Self::F32Ftz => "f32 (flushed)",
            Self::Tf32 => "tf32",
            Self::Tf32Ftz => "tf32 (flushed)",
            Self::U4Align8 => "u4 (16 in 8 bytes)",
            Self::U4Align16 => "u4 (16 in 16 bytes)",
            Self::U6Align16 => "u6 (16 in 16 bytes)",
        })
    }
}

/// How channels are interleaved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Interleave {
    /// Not.
    #[default]
    None,
    /// In slices of 16 bytes (NC/8HWC8).
    Bytes16,
    /// In slices of 32 bytes (NC/16HWC16).
    Bytes32,
}

impl Interleave {
    /// The driver's number.
    #[must_use]
    pub const fn raw(self) -> CUtensorMapInterleave {
        match self {
            Self::None => raw::INTERLEAVE_NONE,
            Self::Bytes16 => raw::INTERLEAVE_16B,
            Self::Bytes32 => raw::INTERLEAVE_32B,
        }
    }
}

impl fmt::Display for Interleave {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Bytes16 => "16 bytes",
            Self::Bytes32 => "32 bytes",
        })
    }
}

/// How a box is permuted in shared memory, so that its columns do not fall on one bank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Swizzle {
    /// Not: rows lie one after the other.
    #[default]
    None,
    /// Within 32 bytes.
    Bytes32,
    /// Within 64 bytes.
    Bytes64,
    /// Within 128 bytes, 16 at a time.
    Bytes128,
    /// Within 128 bytes, 32 at a time. Needs a driver of CUDA 12.8 and a device of compute
    /// capability 10.0.
    Bytes128Atom32,
    /// Within 128 bytes, 32 at a time, with the halves of 16 exchanged in 8. Needs a driver of CUDA 12.8 and a device of compute
    /// capability 10.0.
    Bytes128Atom32Flip8,
    /// Within 128 bytes, 64 at a time. Needs a driver of CUDA 12.8 and a device of compute
    /// capability 10.0.
    Bytes128Atom64,
}

impl Swizzle {
    /// Whether it permutes more than 16 bytes at a time, which devices of compute capability 10.0 and above do: an H200's
    /// driver refuses such maps.
    #[must_use]
    pub const fn has_wide_atoms(self) -> bool {
        matches!(self, Self::Bytes128Atom32 | Self::Bytes128Atom32Flip8 | Self::Bytes128Atom64)
    }

    /// The driver's number.
    #[must_use]
    pub const fn raw(self) -> CUtensorMapSwizzle {
        match self {
            Self::None => raw::SWIZZLE_NONE,
            Self::Bytes32 => raw::SWIZZLE_32B,
            Self::Bytes64 => raw::SWIZZLE_64B,
            Self::Bytes128 => raw::SWIZZLE_128B,
            // The headers number these on behind the plain one.
            Self::Bytes128Atom32 => raw::SWIZZLE_128B + 1,
            Self::Bytes128Atom32Flip8 => raw::SWIZZLE_128B + 2,
            Self::Bytes128Atom64 => raw::SWIZZLE_128B + 3,
        }
    }

    /// The bytes it permutes within: the box's inner side must not be longer. `None` for no swizzle.
    #[must_use]
    pub const fn span_bytes(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Bytes32 => Some(32),
            Self::Bytes64 => Some(64),
            Self::Bytes128 | Self::Bytes128Atom32 | Self::Bytes128Atom32Flip8 | Self::Bytes128Atom64 => {
                Some(128)
            }
        }
    }
}

impl fmt::Display for Swizzle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Bytes32 => "32 bytes",
            Self::Bytes64 => "64 bytes",
            Self::Bytes128 => "128 bytes",
            Self::Bytes128Atom32 => "128 bytes in atoms of 32",
            Self::Bytes128Atom32Flip8 => "128 bytes in flipped atoms of 32",
            Self::Bytes128Atom64 => "128 bytes in atoms of 64",
        })
    }
}

/// How much of a line a read brings into the L2 cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum L2Promotion {
    /// What was asked for.
    #[default]
    None,
    /// 64 bytes.
    Bytes64,
    /// 128 bytes.
    Bytes128,
    /// 256 bytes.
    Bytes256,
}

impl L2Promotion {
    /// The driver's number.
    #[must_use]
    pub const fn raw(self) -> CUtensorMapL2promotion {
        match self {
            Self::None => raw::L2_PROMOTION_NONE,
            Self::Bytes64 => raw::L2_PROMOTION_64B,
            Self::Bytes128 => raw::L2_PROMOTION_128B,
            Self::Bytes256 => raw::L2_PROMOTION_256B,
        }
    }
}

/// What a box holds where it reaches over the tensor's edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OobFill {
    /// Zeros.
    #[default]
    Zero,
    /// A NaN that a fused multiply-add takes for zero.
    NanRequestZeroFma,
}

impl OobFill {
    /// The driver's number.
    #[must_use]
    pub const fn raw(self) -> CUtensorMapFloatOOBfill {
        match self {
            Self::Zero => raw::OOB_FILL_NONE,
            Self::NanRequestZeroFma => raw::OOB_FILL_NAN_REQUEST_ZERO_FMA,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the C header.
    #[test]
    fn numbers_are_those_of_the_header() {
        for (number, element) in (0..).zip(ElementType::ALL) {
            assert_eq!(element.raw(), number, "{element}");
        }
        let swizzles = [
            Swizzle::None,
            Swizzle::Bytes32,
            Swizzle::Bytes64,
            Swizzle::Bytes128,
            Swizzle::Bytes128Atom32,
            Swizzle::Bytes128Atom32Flip8,
            Swizzle::Bytes128Atom64,
        ];
        assert_eq!(swizzles.map(Swizzle::raw), [0, 1, 2, 3, 4, 5, 6]);
        let interleaves = [Interleave::None, Interleave::Bytes16, Interleave::Bytes32];
        assert_eq!(interleaves.map(Interleave::raw), [0, 1, 2]);
        let promotions =
            [L2Promotion::None, L2Promotion::Bytes64, L2Promotion::Bytes128, L2Promotion::Bytes256];
        assert_eq!(promotions.map(L2Promotion::raw), [0, 1, 2, 3]);
        assert_eq!([OobFill::Zero, OobFill::NanRequestZeroFma].map(OobFill::raw), [0, 1]);
    }
}
