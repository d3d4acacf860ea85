// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cuTensorMapEncodeTiled` as a function of its arguments, and what a map made here holds.
//!
//! The answers are those of an H200 with driver 580, which takes more than a kernel can use: a null address, rows that
//! overlap, 32-byte interleave with another swizzle. Where it was not asked, the documented rule stands.

use metrale_driver_sys::tensor_map as c;
use metrale_driver_sys::{
    CUDA_ERROR_INVALID_VALUE, CUresult, CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill,
    CUtensorMapInterleave, CUtensorMapL2promotion, CUtensorMapSwizzle,
};

/// Dimensions a map may have.
pub(crate) const MAX_RANK: usize = 5;
/// Elements a dimension may have.
const MAX_DIM: u64 = 1 << 32;
/// Bytes from one row to the next, and so on outwards, stay below this.
const STRIDES_BELOW: u64 = 1 << 40;
/// Elements a side of the box may have.
const MAX_BOX_DIM: u32 = 256;
/// Elements from one that is loaded to the next.
const MAX_ELEMENT_STRIDE: u32 = 8;
/// The last of the three further 128-byte swizzles that the headers number behind the plain one.
const LAST_SWIZZLE: CUtensorMapSwizzle = 6;

/// Marks a map made here, in its last word.
const MARK: u64 = u64::from_le_bytes(*b"metrale1");

/// A tiled tensor map, decoded: what a kernel registered with the software driver may read of a map it was passed.
///
/// A map of the software driver is of this crate's own layout, not the hardware's. Its sixteen words are: rank, element
/// type, interleave, swizzle, L2 promotion and fill, a byte each from the lowest; the address; five dimensions; four
/// strides; four box sides of 16 bits; the fifth and, from bit 16 on, five element strides of 8 bits; two zeros; a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TiledMap {
    /// Dimensions, 1 to 5. The arrays below count so many.
    pub rank: usize,
    /// The element type, as [`metrale_driver_sys::tensor_map`] numbers it.
    pub data_type: CUtensorMapDataType,
    /// Where the tensor begins in device memory.
    pub address: u64,
    /// Elements of each dimension, innermost first.
    pub dims: [u64; MAX_RANK],
    /// Bytes from one index to the next, of each dimension but the innermost.
    pub strides_bytes: [u64; MAX_RANK - 1],
    /// Elements of each side of the box that one copy moves.
    pub box_dims: [u32; MAX_RANK],
    /// Elements from one that is loaded to the next, in each dimension.
    pub element_strides: [u32; MAX_RANK],
    /// The interleave.
    pub interleave: CUtensorMapInterleave,
    /// The swizzle.
    pub swizzle: CUtensorMapSwizzle,
    /// The L2 promotion.
    pub l2_promotion: CUtensorMapL2promotion,
    /// What is read outside the tensor.
    pub oob_fill: CUtensorMapFloatOOBfill,
}

/// The arguments, their arrays read. Each array has as many elements as the rank, the strides one less.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arguments<'a> {
    pub(crate) data_type: CUtensorMapDataType,
    pub(crate) address: u64,
    pub(crate) dims: &'a [u64],
    pub(crate) strides_bytes: &'a [u64],
    pub(crate) box_dims: &'a [u32],
    pub(crate) element_strides: &'a [u32],
    pub(crate) interleave: CUtensorMapInterleave,
    pub(crate) swizzle: CUtensorMapSwizzle,
    pub(crate) l2_promotion: CUtensorMapL2promotion,
    pub(crate) oob_fill: CUtensorMapFloatOOBfill,
}

/// The map, or status 1. A rank beyond [`MAX_RANK`] must not reach this far: its arrays need not be read. A box may take
/// `max_box_bytes`, which is the shared memory of a multiprocessor: measured to the row on an H200.
///
/// A device `before_10`, of a compute capability below 10.0, takes no type below a byte and no swizzle of more than 16 bytes
/// at a time: measured on an H200.
pub(crate) fn encode(
    arguments: &Arguments<'_>,
    max_box_bytes: u64,
    before_10: bool,
) -> Result<CUtensorMap, CUresult> {
    let is_later = arguments.swizzle > c::SWIZZLE_128B
        || element_bits(arguments.data_type).is_some_and(|bits| bits < 8)
        || is_packed_16(arguments.data_type);
    let map =
        TiledMap::new(arguments).filter(|map| is_accepted(map, max_box_bytes) && !(before_10 && is_later));
    map.map(|map| map.encoded()).ok_or(CUDA_ERROR_INVALID_VALUE)
}

/// Whether sixteen elements of the type are spread over 16 bytes.
const fn is_packed_16(data_type: CUtensorMapDataType) -> bool {
    matches!(data_type, c::U4X16_ALIGN16B | c::U6X16_ALIGN16B)
}

fn is_accepted(map: &TiledMap, max_box_bytes: u64) -> bool {
    let rank = map.rank;
    let Some(element_bits) = element_bits(map.data_type) else { return false };
    let has_numbers = map.interleave <= c::INTERLEAVE_32B
        && map.swizzle <= LAST_SWIZZLE
        && map.l2_promotion <= c::L2_PROMOTION_256B
        && map.oob_fill <= c::OOB_FILL_NAN_REQUEST_ZERO_FMA;
    let has_rank = rank >= 1 && (map.interleave == c::INTERLEAVE_NONE || rank >= 3);
    let alignment = if is_packed_16(map.data_type) || map.interleave == c::INTERLEAVE_32B { 32 } else { 16 };
    let is_aligned = map.address.is_multiple_of(alignment)
        && map.strides_bytes[..rank.saturating_sub(1)]
            .iter()
            .all(|stride| stride.is_multiple_of(alignment) && *stride < STRIDES_BELOW);
    let has_dims = map.dims[..rank].iter().all(|dim| (1..=MAX_DIM).contains(dim));
    let has_box = map.box_dims[..rank].iter().all(|side| (1..=MAX_BOX_DIM).contains(side));
    let has_steps = map.element_strides[..rank].iter().all(|step| (1..=MAX_ELEMENT_STRIDE).contains(step));
    let has_fill = map.oob_fill == c::OOB_FILL_NONE || is_float(map.data_type);
    has_numbers
        && has_rank
        && is_aligned
        && has_dims
        && has_box
        && has_steps
        && has_fill
        && has_packed_shape(map)
        && has_box_bytes(map, element_bits, max_box_bytes)
}

/// The box's inner side against the swizzle, and the whole of it. At most five sides of at most 256 elements here.
fn has_box_bytes(map: &TiledMap, element_bits: u64, max_bytes: u64) -> bool {
    let inner_bits = u64::from(map.box_dims[0]) * element_bits;
    let fits_swizzle = map.interleave != c::INTERLEAVE_NONE
        || inner_bits.is_multiple_of(16 * 8)
            && swizzle_span_bytes(map.swizzle).is_none_or(|span| inner_bits <= span * 8);
    let bits = map.box_dims[..map.rank].iter().fold(element_bits, |bits, &side| bits * u64::from(side));
    fits_swizzle && bits.div_ceil(8) <= max_bytes
}

/// What the packed types ask for beyond the others.
fn has_packed_shape(map: &TiledMap) -> bool {
    match map.data_type {
        c::U4X16_ALIGN8B => map.dims[0].is_multiple_of(2),
        c::U4X16_ALIGN16B | c::U6X16_ALIGN16B => {
            map.dims[0].is_multiple_of(128)
                && map.box_dims[0] == 128
                && map.interleave == c::INTERLEAVE_NONE
                && matches!(map.swizzle, c::SWIZZLE_NONE | c::SWIZZLE_128B..=LAST_SWIZZLE)
        }
        _ => true,
    }
}

/// Bytes that a swizzle permutes, which the box's inner side must not exceed.
fn swizzle_span_bytes(swizzle: CUtensorMapSwizzle) -> Option<u64> {
    match swizzle {
        c::SWIZZLE_NONE => None,
        c::SWIZZLE_32B => Some(32),
        c::SWIZZLE_64B => Some(64),
        _ => Some(128),
    }
}

/// Bits an element takes in memory that a box counts.
fn element_bits(data_type: CUtensorMapDataType) -> Option<u64> {
    Some(match data_type {
        c::UINT8 => 8,
        c::UINT16 | c::FLOAT16 | c::BFLOAT16 => 16,
        c::UINT32 | c::INT32 | c::FLOAT32 | c::FLOAT32_FTZ | c::TFLOAT32 | c::TFLOAT32_FTZ => 32,
        c::UINT64 | c::INT64 | c::FLOAT64 => 64,
        c::U4X16_ALIGN8B => 4,
        // Sixteen of them take sixteen bytes of shared memory, whatever they take elsewhere.
        c::U4X16_ALIGN16B | c::U6X16_ALIGN16B => 8,
        _ => return None,
    })
}

fn is_float(data_type: CUtensorMapDataType) -> bool {
    matches!(
        data_type,
        c::FLOAT16 | c::FLOAT32 | c::FLOAT64 | c::BFLOAT16 | c::FLOAT32_FTZ | c::TFLOAT32 | c::TFLOAT32_FTZ
    )
}

impl TiledMap {
    /// The arguments in arrays of one length; `None` where their lengths do not fit together.
    fn new(arguments: &Arguments<'_>) -> Option<Self> {
        let rank = arguments.dims.len();
        let fits = (1..=MAX_RANK).contains(&rank)
            && arguments.strides_bytes.len() == rank - 1
            && arguments.box_dims.len() == rank
            && arguments.element_strides.len() == rank;
        if !fits {
            return None;
        }
        let mut map = Self {
            rank,
            data_type: arguments.data_type,
            address: arguments.address,
            dims: [0; MAX_RANK],
            strides_bytes: [0; MAX_RANK - 1],
            box_dims: [0; MAX_RANK],
            element_strides: [0; MAX_RANK],
            interleave: arguments.interleave,
            swizzle: arguments.swizzle,
            l2_promotion: arguments.l2_promotion,
            oob_fill: arguments.oob_fill,
        };
        map.dims[..rank].copy_from_slice(arguments.dims);
        map.strides_bytes[..rank - 1].copy_from_slice(arguments.strides_bytes);
        map.box_dims[..rank].copy_from_slice(arguments.box_dims);
        map.element_strides[..rank].copy_from_slice(arguments.element_strides);
        Some(map)
    }

    /// The words of a map whose numbers were found small enough for their places.
    fn encoded(&self) -> CUtensorMap {
        let mut opaque = [0; 16];
        let numbers = [self.data_type, self.interleave, self.swizzle, self.l2_promotion, self.oob_fill];
        opaque[0] = numbers
            .iter()
            .zip(1..)
            .fold(self.rank as u64, |word, (&number, place)| word | u64::from(number) << (8 * place));
        opaque[1] = self.address;
        opaque[2..7].copy_from_slice(&self.dims);
        opaque[7..11].copy_from_slice(&self.strides_bytes);
        for (side, place) in self.box_dims[..4].iter().zip(0..) {
            opaque[11] |= u64::from(*side) << (16 * place);
        }
        opaque[12] = u64::from(self.box_dims[4]);
        for (step, place) in self.element_strides.iter().zip(2..) {
            opaque[12] |= u64::from(*step) << (8 * place);
        }
        opaque[15] = MARK;
        CUtensorMap { opaque }
    }

    /// Reads a map that the software driver made; `None` for any other 128 bytes, a zeroed map among them.
    #[must_use]
    pub fn decode(map: &CUtensorMap) -> Option<Self> {
        let opaque = &map.opaque;
        let byte = |word: u64, place: u32| u32::from((word >> (8 * place)) as u8);
        let rank = byte(opaque[0], 0) as usize;
        if opaque[15] != MARK || !(1..=MAX_RANK).contains(&rank) {
            return None;
        }
        let mut box_dims = [0; MAX_RANK];
        for (side, place) in box_dims[..4].iter_mut().zip(0..) {
            *side = u32::from((opaque[11] >> (16 * place)) as u16);
        }
        box_dims[4] = u32::from(opaque[12] as u16);
        let mut element_strides = [0; MAX_RANK];
        for (step, place) in element_strides.iter_mut().zip(2..) {
            *step = byte(opaque[12], place);
        }
        Some(Self {
            rank,
            data_type: byte(opaque[0], 1),
            address: opaque[1],
            dims: [opaque[2], opaque[3], opaque[4], opaque[5], opaque[6]],
            strides_bytes: [opaque[7], opaque[8], opaque[9], opaque[10]],
            box_dims,
            element_strides,
            interleave: byte(opaque[0], 2),
            swizzle: byte(opaque[0], 3),
            l2_promotion: byte(opaque[0], 4),
            oob_fill: byte(opaque[0], 5),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_BOX_BYTES: u64 = 228 << 10;

    const PLAIN: Arguments<'static> = Arguments {
        data_type: c::BFLOAT16,
        address: 0x7f00_0000_0000,
        dims: &[4096, 1024, 7, 3, 2],
        strides_bytes: &[8192, 8_388_608, 1 << 30, 1 << 32],
        box_dims: &[64, 128, 1, 2, 3],
        element_strides: &[1, 2, 8, 1, 3],
        interleave: c::INTERLEAVE_NONE,
        swizzle: c::SWIZZLE_128B,
        l2_promotion: c::L2_PROMOTION_256B,
        oob_fill: c::OOB_FILL_NAN_REQUEST_ZERO_FMA,
    };

    #[test]
    fn a_map_keeps_what_it_was_made_of() {
        let arguments = Arguments { box_dims: &[64, 128, 1, 2, 3], ..PLAIN };
        let map = TiledMap::decode(&encode(&arguments, MAX_BOX_BYTES, false).unwrap()).unwrap();
        assert_eq!(map, TiledMap::new(&arguments).unwrap());
        assert_eq!(map.element_strides, [1, 2, 8, 1, 3]);
        assert_eq!(TiledMap::decode(&CUtensorMap::default()), None);
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let refused = [
            Arguments { data_type: 16, ..PLAIN },
            Arguments { data_type: u32::MAX, ..PLAIN },
            Arguments { interleave: 3, ..PLAIN },
            Arguments { swizzle: 7, ..PLAIN },
            Arguments { l2_promotion: 4, ..PLAIN },
            Arguments { oob_fill: 2, ..PLAIN },
            Arguments { dims: &[0, 1024, 7, 3, 2], ..PLAIN },
            Arguments { dims: &[], strides_bytes: &[], box_dims: &[], element_strides: &[], ..PLAIN },
            Arguments { box_dims: &[64, 0, 1, 2, 3], ..PLAIN },
            Arguments { box_dims: &[u32::MAX; 5], ..PLAIN },
            Arguments { strides_bytes: &[u64::MAX; 4], ..PLAIN },
        ];
        for arguments in refused {
            assert_eq!(
                encode(&arguments, MAX_BOX_BYTES, false),
                Err(CUDA_ERROR_INVALID_VALUE),
                "{arguments:?}"
            );
        }
    }

    #[test]
    fn the_largest_box_is_the_devices() {
        // 64 x 128 x 1 x 2 x 3 elements of two bytes.
        assert!(encode(&PLAIN, 98_304, true).is_ok());
        assert_eq!(encode(&PLAIN, 98_303, false), Err(CUDA_ERROR_INVALID_VALUE));
    }
}
