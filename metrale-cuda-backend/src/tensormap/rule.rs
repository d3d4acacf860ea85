// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rules of a tiled tensor map, each with the value that breaks it.

use core::fmt;

use metrale_ledger::ByteSize;

use super::{ElementType, Interleave, Swizzle};
use crate::arch::ComputeCapability;
use crate::error::causes;

/// A broken rule. Indices count dimensions from the innermost, 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorMapRule {
    /// A rank outside 1 to 5.
    #[error("a tensor map has 1 to 5 dimensions, not {rank}")]
    Rank {
        /// Dimensions given.
        rank: usize,
    },
    /// Interleaved layouts have at least three dimensions.
    #[error("an interleave of {interleave} needs at least 3 dimensions, not {rank}")]
    InterleaveRank {
        /// The interleave.
        interleave: Interleave,
        /// Dimensions given.
        rank: usize,
    },
    /// An argument of another length than the rank asks for.
    #[error("{argument} has {found} entries where the {rank} dimensions need {expected}")]
    Length {
        /// The driver's name for the argument.
        argument: &'static str,
        /// Dimensions given.
        rank: usize,
        /// Entries needed.
        expected: usize,
        /// Entries given.
        found: usize,
    },
    /// The null address: the driver takes it, and the kernel faults.
    #[error("the address is null")]
    NullAddress,
    /// An address that is not aligned.
    #[error("the address {address:#x} is not a multiple of {multiple} bytes")]
    AddressAlignment {
        /// The address.
        address: u64,
        /// What it must be a multiple of.
        multiple: u64,
    },
    /// A dimension outside 1 to 2³².
    #[error("dimension {index} has {dim} elements, and 1 to 4294967296 are allowed")]
    Dim {
        /// The dimension.
        index: usize,
        /// Its elements.
        dim: u64,
    },
    /// The inner dimension of a packed type that is no multiple of what it is packed in.
    #[error("the inner dimension has {dim} elements of {element}, which must be a multiple of {multiple}")]
    PackedDim {
        /// The type.
        element: ElementType,
        /// Elements of dimension 0.
        dim: u64,
        /// What they must be a multiple of.
        multiple: u64,
    },
    /// A stride that is not aligned.
    #[error("the stride of dimension {dimension} is {stride} bytes, not a multiple of {multiple}", dimension = index + 1)]
    StrideAlignment {
        /// Its place among the strides; it is that of dimension `index + 1`.
        index: usize,
        /// The stride in bytes.
        stride: u64,
        /// What it must be a multiple of.
        multiple: u64,
    },
    /// A stride of 2⁴⁰ bytes or more.
    #[error("the stride of dimension {dimension} is {stride} bytes, and must stay below 1099511627776", dimension = index + 1)]
    StrideRange {
        /// Its place among the strides.
        index: usize,
        /// The stride in bytes.
        stride: u64,
    },
    /// A stride shorter than a row: rows would overlap. The driver takes it.
    #[error(
        "the stride of dimension {dimension} is {stride} bytes, shorter than a row of {row_bytes}: rows would overlap \
         (strides count bytes, not elements)",
        dimension = index + 1
    )]
    StrideBelowRow {
        /// Its place among the strides.
        index: usize,
        /// The stride in bytes.
        stride: u64,
        /// Bytes of a row.
        row_bytes: u64,
    },
    /// A side of the box outside 1 to 256.
    #[error("side {index} of the box has {side} elements, and 1 to 256 are allowed")]
    BoxSide {
        /// The dimension.
        index: usize,
        /// Its elements.
        side: u32,
    },
    /// The inner side of a box of a padded type, which is always 128.
    #[error("the inner side of a box of {element} must be 128 elements, not {side}")]
    PaddedBoxSide {
        /// The type.
        element: ElementType,
        /// Elements given.
        side: u32,
    },
    /// An inner side that is not a multiple of 16 bytes.
    #[error("the inner side of the box is {}, which must be a multiple of 16 bytes", Bits(*bits))]
    BoxRowAlignment {
        /// Its size in bits.
        bits: u64,
    },
    /// An inner side longer than the swizzle permutes within.
    #[error("the inner side of the box is {}, and the swizzle permutes within {span_bytes} bytes", Bits(*bits))]
    BoxRowOverSwizzle {
        /// Its size in bits.
        bits: u64,
        /// The swizzle's span.
        span_bytes: u64,
    },
    /// A box larger than the shared memory of a multiprocessor, which the driver refuses.
    #[error("the box is {}, and a multiprocessor has {} of shared memory", ByteSize(*bytes), ByteSize(*max_bytes))]
    BoxBytes {
        /// Its bytes in shared memory.
        bytes: u64,
        /// The shared memory of a multiprocessor in bytes.
        max_bytes: u64,
    },
    /// An element stride outside 1 to 8.
    #[error("the element stride of dimension {index} is {step}, and 1 to 8 are allowed")]
    ElementStride {
        /// The dimension.
        index: usize,
        /// The stride in elements.
        step: u32,
    },
    /// 32-byte interleave goes with 32-byte swizzle only. The driver accepts others.
    #[error("an interleave of 32 bytes needs a swizzle of 32 bytes, not {swizzle}")]
    InterleaveSwizzle {
        /// The swizzle.
        swizzle: Swizzle,
    },
    /// The device is of a generation before the type. Not seen by a check that does not know the device.
    #[error("{element} needs a device of compute capability {needed}, and this one has {device}")]
    ElementGeneration {
        /// The type.
        element: ElementType,
        /// The first compute capability that has it.
        needed: ComputeCapability,
        /// The device's.
        device: ComputeCapability,
    },
    /// The device is of a generation before the swizzle. Not seen by a check that does not know the device.
    #[error(
        "a swizzle of {swizzle} needs a device of compute capability {needed}, and this one has {device}"
    )]
    SwizzleGeneration {
        /// The swizzle.
        swizzle: Swizzle,
        /// The first compute capability that has it.
        needed: ComputeCapability,
        /// The device's.
        device: ComputeCapability,
    },
    /// A padded type cannot be interleaved.
    #[error("{element} cannot be interleaved")]
    PaddedInterleave {
        /// The type.
        element: ElementType,
    },
    /// A padded type is swizzled within 128 bytes or not at all.
    #[error("{element} is swizzled within 128 bytes or not at all, not within {swizzle}")]
    PaddedSwizzle {
        /// The type.
        element: ElementType,
        /// The swizzle.
        swizzle: Swizzle,
    },
    /// NaN is a filling for floating-point types only.
    #[error("{element} has no NaN to fill with")]
    NanFill {
        /// The type.
        element: ElementType,
    },
}

impl TensorMapRule {
    /// The argument at fault, by the driver's name for it.
    #[must_use]
    pub fn argument(&self) -> String {
        match self {
            Self::Rank { .. } | Self::InterleaveRank { .. } => "tensorRank".to_owned(),
            Self::ElementGeneration { .. } => "tensorDataType".to_owned(),
            Self::Length { argument, .. } => (*argument).to_owned(),
            Self::NullAddress | Self::AddressAlignment { .. } => "globalAddress".to_owned(),
            Self::Dim { index, .. } => format!("globalDim[{index}]"),
            Self::PackedDim { .. } => "globalDim[0]".to_owned(),
            Self::StrideAlignment { index, .. }
            | Self::StrideRange { index, .. }
            | Self::StrideBelowRow { index, .. } => format!("globalStrides[{index}]"),
            Self::BoxSide { index, .. } => format!("boxDim[{index}]"),
            Self::PaddedBoxSide { .. } | Self::BoxRowAlignment { .. } | Self::BoxRowOverSwizzle { .. } => {
                "boxDim[0]".to_owned()
            }
            Self::BoxBytes { .. } => "boxDim".to_owned(),
            Self::ElementStride { index, .. } => format!("elementStrides[{index}]"),
            Self::InterleaveSwizzle { .. } | Self::PaddedSwizzle { .. } | Self::SwizzleGeneration { .. } => {
                "swizzle".to_owned()
            }
            Self::PaddedInterleave { .. } => "interleave".to_owned(),
            Self::NanFill { .. } => "oobFill".to_owned(),
        }
    }

    /// Whether the driver would refuse it too; what it takes and a kernel cannot use is refused here alone.
    #[must_use]
    pub const fn is_the_drivers(&self) -> bool {
        !matches!(self, Self::NullAddress | Self::StrideBelowRow { .. } | Self::InterleaveSwizzle { .. })
    }
}

/// A size in bits, shown in bytes where it is whole ones.
struct Bits(u64);

impl fmt::Display for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(8) {
            write!(f, "{} bytes", self.0 / 8)
        } else {
            write!(f, "{} bits", self.0)
        }
    }
}

/// Every rule that a tensor map breaks; the driver was not asked. Fix the arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorMapError {
    /// The rules; never empty.
    pub broken: Vec<TensorMapRule>,
}

impl fmt::Display for TensorMapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this tensor map cannot be encoded")?;
        for (index, rule) in self.broken.iter().enumerate() {
            write!(f, "{}{}: {rule}", if index == 0 { ": " } else { "; " }, rule.argument())?;
        }
        Ok(())
    }
}

impl std::error::Error for TensorMapError {}

causes! { TensorMapError: BadArgument }

/// What is worth saying of a map that keeps every rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorMapWarning {
    /// Without an interleave the first element stride does nothing.
    #[error("the element stride {step} of dimension 0 does nothing without an interleave")]
    ElementStrideIgnored {
        /// The stride.
        step: u32,
    },
    /// Padded rows in a small allocation on devices of compute capability 10 and 12, where drivers have been seen to bring
    /// wrong data.
    #[error(
        "rows of {row_bytes} bytes at a pitch of {pitch_bytes} in an allocation of {}: on this device drivers have \
         been seen to bring wrong data from padded rows in allocations below 128 KiB; allocate more, or pack the rows",
        ByteSize(*allocation_bytes)
    )]
    PaddedRowsInSmallAllocation {
        /// Bytes of data in a row.
        row_bytes: u64,
        /// Bytes from one row to the next.
        pitch_bytes: u64,
        /// Bytes of the allocation.
        allocation_bytes: u64,
    },
}
