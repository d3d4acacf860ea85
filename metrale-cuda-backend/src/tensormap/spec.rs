// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`TensorMapSpec`]: the arguments of a tiled tensor map, and their check.

use metrale_driver_sys::{
    CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave, CUtensorMapL2promotion,
    CUtensorMapSwizzle,
};

use super::rule::{TensorMapError, TensorMapRule, TensorMapWarning};
use super::{ElementType, Interleave, L2Promotion, OobFill, Swizzle};
use crate::arch::ComputeCapability;
use crate::raw_handles::DevicePtr;

/// The most dimensions of a tensor map.
pub const MAX_RANK: usize = 5;

const MAX_DIM: u64 = 1 << 32;
const STRIDES_BELOW_BYTES: u64 = 1 << 40;
const MAX_BOX_SIDE: u32 = 256;
const MAX_ELEMENT_STRIDE: u32 = 8;
/// The most bytes of a box on an H200: the shared memory of a multiprocessor.
pub const MAX_BOX_BYTES: u64 = 228 << 10;
/// The first devices that read types below a byte and swizzle more than 16 bytes at a time. An H200 (9.0) does neither:
/// measured.
const SUB_BYTE_TYPES_AND_WIDE_ATOMS: ComputeCapability = ComputeCapability::new(10, 0);
/// Below this, padded rows are suspect on some devices.
const SMALL_ALLOCATION_BYTES: u64 = 128 << 10;

/// A tiled tensor map to be encoded. Dimensions count from the innermost.
///
/// ```
/// # use metrale_cuda_backend::DevicePtr;
/// use metrale_cuda_backend::tensormap::{ElementType, Swizzle, TensorMapSpec};
///
/// # let weights = DevicePtr::NULL.offset(0x7f00_0000_0000);
/// let spec = TensorMapSpec::packed(ElementType::Bf16, weights, &[4096, 1024], &[64, 128])
///     .swizzle(Swizzle::Bytes128);
/// assert_eq!(spec.strides_bytes, [8192]);
/// spec.check()?;
///
/// let error = spec.box_dims(&[128, 128]).check().unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "this tensor map cannot be encoded: boxDim[0]: the inner side of the box is 256 bytes, and the swizzle permutes \
///      within 128 bytes"
/// );
/// # Ok::<(), metrale_cuda_backend::tensormap::TensorMapError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TensorMapSpec {
    /// The type of an element.
    pub element: ElementType,
    /// Where the tensor begins in device memory.
    pub address: DevicePtr,
    /// Elements of each dimension.
    pub dims: Vec<u64>,
    /// Bytes from one index to the next, of each dimension but the innermost.
    pub strides_bytes: Vec<u64>,
    /// Elements of each side of the box that one copy brings.
    pub box_dims: Vec<u32>,
    /// Elements from one that is taken to the next, in each dimension; 1 takes all.
    pub element_strides: Vec<u32>,
    /// How channels are interleaved.
    pub interleave: Interleave,
    /// How the box is permuted in shared memory.
    pub swizzle: Swizzle,
    /// How much a read brings into the L2 cache.
    pub l2_promotion: L2Promotion,
    /// What the box holds beyond the tensor's edge.
    pub oob_fill: OobFill,
}

/// The arguments of `cuTensorMapEncodeTiled`, checked; only the first `rank` of each array count, and one stride fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EncodeArguments {
    /// `tensorDataType`.
    pub data_type: CUtensorMapDataType,
    /// `tensorRank`.
    pub rank: u32,
    /// `globalAddress`.
    pub address: u64,
    /// `globalDim`.
    pub dims: [u64; MAX_RANK],
    /// `globalStrides`.
    pub strides_bytes: [u64; MAX_RANK - 1],
    /// `boxDim`.
    pub box_dims: [u32; MAX_RANK],
    /// `elementStrides`.
    pub element_strides: [u32; MAX_RANK],
    /// `interleave`.
    pub interleave: CUtensorMapInterleave,
    /// `swizzle`.
    pub swizzle: CUtensorMapSwizzle,
    /// `l2Promotion`.
    pub l2_promotion: CUtensorMapL2promotion,
    /// `oobFill`.
    pub oob_fill: CUtensorMapFloatOOBfill,
}

impl TensorMapSpec {
    /// A map of a tensor with these dimensions, strides in bytes (one fewer) and box. Every element is taken; nothing is
    /// interleaved, swizzled or promoted, and the edge reads as zeros.
    #[must_use]
    pub fn new(
        element: ElementType,
        address: DevicePtr,
        dims: &[u64],
        strides_bytes: &[u64],
        box_dims: &[u32],
    ) -> Self {
        Self {
            element,
            address,
            dims: dims.to_vec(),
            strides_bytes: strides_bytes.to_vec(),
            box_dims: box_dims.to_vec(),
            element_strides: vec![1; dims.len()],
            interleave: Interleave::default(),
            swizzle: Swizzle::default(),
            l2_promotion: L2Promotion::default(),
            oob_fill: OobFill::default(),
        }
    }

    /// A map of a tensor that lies in memory without gaps. A stride beyond 64 bits ends at the largest number, which the
    /// check refuses.
    #[must_use]
    pub fn packed(element: ElementType, address: DevicePtr, dims: &[u64], box_dims: &[u32]) -> Self {
        let mut spec = Self::new(element, address, dims, &[], box_dims);
        let mut stride = spec.row_bytes();
        for &dim in dims.iter().skip(1) {
            spec.strides_bytes.push(stride);
            stride = stride.saturating_mul(dim);
        }
        spec
    }

    /// A map of a row-major matrix of bf16: `rows` rows of `cols` elements, `row_stride_elems` elements apart, of which a
    /// copy brings `box_rows` by `box_cols`. Not swizzled: set what the kernel expects with [`swizzle`](Self::swizzle).
    ///
    /// ```
    /// # use metrale_cuda_backend::DevicePtr;
    /// use metrale_cuda_backend::tensormap::TensorMapSpec;
    ///
    /// # let weights = DevicePtr::NULL.offset(0x7f00_0000_0000);
    /// let spec = TensorMapSpec::tiled_2d_bf16(weights, 1024, 4096, 4096, 128, 64);
    /// assert_eq!((spec.dims.as_slice(), spec.strides_bytes.as_slice()), (&[4096, 1024][..], &[8192][..]));
    /// spec.check()?;
    /// # Ok::<(), metrale_cuda_backend::tensormap::TensorMapError>(())
    /// ```
    #[must_use]
    pub fn tiled_2d_bf16(
        global: DevicePtr,
        rows: u64,
        cols: u64,
        row_stride_elems: u64,
        box_rows: u32,
        box_cols: u32,
    ) -> Self {
        let stride = row_stride_elems.saturating_mul(2);
        Self::new(ElementType::Bf16, global, &[cols, rows], &[stride], &[box_cols, box_rows])
    }

    /// Sets the box.
    #[must_use]
    pub fn box_dims(mut self, box_dims: &[u32]) -> Self {
        self.box_dims = box_dims.to_vec();
        self
    }

    /// Sets the element strides.
    #[must_use]
    pub fn element_strides(mut self, element_strides: &[u32]) -> Self {
        self.element_strides = element_strides.to_vec();
        self
    }

    /// Sets the interleave.
    #[must_use]
    pub const fn interleave(mut self, interleave: Interleave) -> Self {
        self.interleave = interleave;
        self
    }

    /// Sets the swizzle.
    #[must_use]
    pub const fn swizzle(mut self, swizzle: Swizzle) -> Self {
        self.swizzle = swizzle;
        self
    }

    /// Sets the L2 promotion.
    #[must_use]
    pub const fn l2_promotion(mut self, l2_promotion: L2Promotion) -> Self {
        self.l2_promotion = l2_promotion;
        self
    }

    /// Sets what the edge reads as.
    #[must_use]
    pub const fn oob_fill(mut self, oob_fill: OobFill) -> Self {
        self.oob_fill = oob_fill;
        self
    }

    /// Holds the map against every rule, the driver's and those that make it usable, for a device that takes boxes as
    /// large as an H200.
    ///
    /// # Errors
    /// [`TensorMapError`] with all rules that are broken.
    pub fn check(&self) -> Result<EncodeArguments, TensorMapError> {
        self.check_within(MAX_BOX_BYTES)
    }

    /// [`check`](Self::check) for a device whose boxes may have `max_box_bytes` bytes: the shared memory of one of its
    /// multiprocessors.
    ///
    /// # Errors
    /// [`TensorMapError`] with all rules that are broken.
    pub fn check_within(&self, max_box_bytes: u64) -> Result<EncodeArguments, TensorMapError> {
        self.without(self.broken_rules(max_box_bytes))
    }

    /// [`check_within`](Self::check_within) for a device of this compute capability.
    ///
    /// # Errors
    /// [`TensorMapError`] with all rules that are broken.
    pub fn check_on(
        &self,
        device: ComputeCapability,
        max_box_bytes: u64,
    ) -> Result<EncodeArguments, TensorMapError> {
        let mut broken = self.broken_rules(max_box_bytes);
        let needed = SUB_BYTE_TYPES_AND_WIDE_ATOMS;
        if device < needed {
            let (element, swizzle) = (self.element, self.swizzle);
            if element.is_sub_byte() {
                broken.push(TensorMapRule::ElementGeneration { element, needed, device });
            }
            if swizzle.has_wide_atoms() {
                broken.push(TensorMapRule::SwizzleGeneration { swizzle, needed, device });
            }
        }
        self.without(broken)
    }

    /// The arguments, where no rule is broken.
    fn without(&self, broken: Vec<TensorMapRule>) -> Result<EncodeArguments, TensorMapError> {
        if !broken.is_empty() {
            return Err(TensorMapError { broken });
        }
        Ok(EncodeArguments {
            data_type: self.element.raw(),
            rank: self.dims.len() as u32,
            address: self.address.0,
            dims: padded(&self.dims),
            strides_bytes: padded(&self.strides_bytes),
            box_dims: padded(&self.box_dims),
            element_strides: padded(&self.element_strides),
            interleave: self.interleave.raw(),
            swizzle: self.swizzle.raw(),
            l2_promotion: self.l2_promotion.raw(),
            oob_fill: self.oob_fill.raw(),
        })
    }

    /// Bytes of a row of data, the gap after it not counted.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        let elements = u128::from(self.dims.first().copied().unwrap_or(0));
        let bytes = (elements * u128::from(self.element.global_bits())).div_ceil(8);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Bytes from the address to the tensor's last one: what the allocation must have from there on, or a copy reads and
    /// writes beyond it. `None` for an interleaved layout, where the strides do not tell.
    #[must_use]
    pub fn extent_bytes(&self) -> Option<u64> {
        if self.interleave != Interleave::None {
            return None;
        }
        let outer = self.dims.iter().skip(1).zip(&self.strides_bytes);
        Some(outer.fold(self.row_bytes(), |extent, (&dim, &stride)| {
            extent.saturating_add(dim.saturating_sub(1).saturating_mul(stride))
        }))
    }

    /// What is worth saying although every rule is kept. `allocation_bytes` is the size of the allocation that the tensor
    /// lies in; where it is not known, the tensor's own extent counts.
    #[must_use]
    pub fn warnings(
        &self,
        device: Option<ComputeCapability>,
        allocation_bytes: Option<u64>,
    ) -> Vec<TensorMapWarning> {
        let mut warnings = Vec::new();
        if let Some(&step) = self.element_strides.first()
            && step != 1
            && self.interleave == Interleave::None
        {
            warnings.push(TensorMapWarning::ElementStrideIgnored { step });
        }
        let row_bytes = self.row_bytes();
        if let Some(&pitch_bytes) = self.strides_bytes.first()
            && let Some(allocation_bytes) = allocation_bytes.or_else(|| self.extent_bytes())
            && device.is_some_and(|device| matches!(device.major, 10 | 12))
            && pitch_bytes > row_bytes
            && allocation_bytes < SMALL_ALLOCATION_BYTES
        {
            warnings.push(TensorMapWarning::PaddedRowsInSmallAllocation {
                row_bytes,
                pitch_bytes,
                allocation_bytes,
            });
        }
        warnings
    }

    fn broken_rules(&self, max_box_bytes: u64) -> Vec<TensorMapRule> {
        let rank = self.dims.len();
        if !(1..=MAX_RANK).contains(&rank) {
            return vec![TensorMapRule::Rank { rank }];
        }
        let mut broken = Vec::new();
        for (argument, expected, found) in [
            ("globalStrides", rank - 1, self.strides_bytes.len()),
            ("boxDim", rank, self.box_dims.len()),
            ("elementStrides", rank, self.element_strides.len()),
        ] {
            if found != expected {
                broken.push(TensorMapRule::Length { argument, rank, expected, found });
            }
        }
        if self.interleave != Interleave::None && rank < 3 {
            broken.push(TensorMapRule::InterleaveRank { interleave: self.interleave, rank });
        }
        self.break_memory_rules(&mut broken);
        self.break_box_rules(max_box_bytes, &mut broken);
        self.break_choice_rules(&mut broken);
        broken
    }

    /// Address, dimensions and strides.
    fn break_memory_rules(&self, broken: &mut Vec<TensorMapRule>) {
        let multiple =
            if self.element.is_padded() || self.interleave == Interleave::Bytes32 { 32 } else { 16 };
        let address = self.address.0;
        if address == 0 {
            broken.push(TensorMapRule::NullAddress);
        } else if !address.is_multiple_of(multiple) {
            broken.push(TensorMapRule::AddressAlignment { address, multiple });
        }
        for (index, &dim) in self.dims.iter().enumerate() {
            if !(1..=MAX_DIM).contains(&dim) {
                broken.push(TensorMapRule::Dim { index, dim });
            }
        }
        let packed_in = match self.element {
            ElementType::U4Align8 => 2,
            ElementType::U4Align16 | ElementType::U6Align16 => 128,
            _ => 1,
        };
        if let Some(&dim) = self.dims.first()
            && !dim.is_multiple_of(packed_in)
        {
            broken.push(TensorMapRule::PackedDim { element: self.element, dim, multiple: packed_in });
        }
        let row_bytes = self.row_bytes();
        for (index, &stride) in self.strides_bytes.iter().enumerate() {
            if stride >= STRIDES_BELOW_BYTES {
                broken.push(TensorMapRule::StrideRange { index, stride });
            }
            if !stride.is_multiple_of(multiple) {
                broken.push(TensorMapRule::StrideAlignment { index, stride, multiple });
            }
            // The stride of a dimension of one element is never taken, and in an interleaved layout rows are not rows.
            // Outer strides may be shorter than inner ones: dimensions may come in any order.
            let is_taken = self.dims.get(index + 1).is_some_and(|&dim| dim > 1);
            if is_taken && stride < row_bytes && self.interleave == Interleave::None {
                broken.push(TensorMapRule::StrideBelowRow { index, stride, row_bytes });
            }
        }
    }

    /// The box and the element strides.
    fn break_box_rules(&self, max_bytes: u64, broken: &mut Vec<TensorMapRule>) {
        for (index, &side) in self.box_dims.iter().enumerate() {
            if !(1..=MAX_BOX_SIDE).contains(&side) {
                broken.push(TensorMapRule::BoxSide { index, side });
            }
        }
        for (index, &step) in self.element_strides.iter().enumerate() {
            if !(1..=MAX_ELEMENT_STRIDE).contains(&step) {
                broken.push(TensorMapRule::ElementStride { index, step });
            }
        }
        let Some(&side) = self.box_dims.first().filter(|side| (1..=MAX_BOX_SIDE).contains(*side)) else {
            return;
        };
        if self.element.is_padded() && side != 128 {
            broken.push(TensorMapRule::PaddedBoxSide { element: self.element, side });
            return;
        }
        let bits = u64::from(side) * self.element.shared_bits();
        if self.interleave == Interleave::None {
            if !bits.is_multiple_of(16 * 8) {
                broken.push(TensorMapRule::BoxRowAlignment { bits });
            }
            // A padded type's short swizzles are refused by name.
            let span = self.swizzle.span_bytes().filter(|_| !self.element.is_padded());
            if let Some(span_bytes) = span.filter(|span| bits > span * 8) {
                broken.push(TensorMapRule::BoxRowOverSwizzle { bits, span_bytes });
            }
        }
        let sides = self.box_dims.iter().skip(1);
        let bytes = sides.fold(bits, |bits, &side| bits.saturating_mul(u64::from(side))) / 8;
        // Too long a side says so by itself.
        if bytes > max_bytes && self.box_dims.iter().all(|side| (1..=MAX_BOX_SIDE).contains(side)) {
            broken.push(TensorMapRule::BoxBytes { bytes, max_bytes });
        }
    }

    /// Choices that do not go together.
    fn break_choice_rules(&self, broken: &mut Vec<TensorMapRule>) {
        let (element, swizzle) = (self.element, self.swizzle);
        if element.is_padded() {
            if self.interleave != Interleave::None {
                broken.push(TensorMapRule::PaddedInterleave { element });
            }
            if matches!(swizzle, Swizzle::Bytes32 | Swizzle::Bytes64) {
                broken.push(TensorMapRule::PaddedSwizzle { element, swizzle });
            }
        } else if self.interleave == Interleave::Bytes32 && swizzle != Swizzle::Bytes32 {
            broken.push(TensorMapRule::InterleaveSwizzle { swizzle });
        }
        if self.oob_fill == OobFill::NanRequestZeroFma && !element.is_float() {
            broken.push(TensorMapRule::NanFill { element });
        }
    }
}

/// The values, and zeros after them. Never longer: the lengths are checked.
fn padded<T: Copy + Default, const N: usize>(values: &[T]) -> [T; N] {
    let mut array = [T::default(); N];
    for (place, &value) in array.iter_mut().zip(values) {
        *place = value;
    }
    array
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
