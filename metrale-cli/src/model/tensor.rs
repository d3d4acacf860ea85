// SPDX-License-Identifier: MIT OR Apache-2.0
//! One tensor of a model: what it is called, how large it is, where its bytes are.

use std::ops::Range;

pub use safetensors::Dtype;

/// Where a tensor's bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TensorSource {
    /// In a mapped file.
    Mapped {
        /// Index of the file among the input's files.
        file: usize,
        /// Bytes of the file, counted from its first.
        range: Range<u64>,
    },
    /// Nowhere: the catalogue knows names and shapes only.
    Catalogue,
}

/// One tensor, as an input lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// The name, exactly as in the file; print it with [`super::Shown`].
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its dimensions, the outermost first; none for a scalar.
    pub shape: Vec<u64>,
    /// Its size, in bytes. A tensor of no bytes needs no memory.
    pub bytes: u64,
    /// Where its bytes are.
    pub source: TensorSource,
}

/// Why a shape and a type have no size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizeError {
    /// More elements or bits than 64 bits can count.
    Overflow,
    /// This many bits, which do not fill whole bytes.
    PartialByte(u64),
}

/// Bytes of a tensor. The dimensions that are not zero are multiplied first, so that a shape with a zero and a
/// huge dimension has one answer, whichever comes first.
///
/// # Errors
/// [`SizeError`], see there.
pub fn byte_size(dtype: Dtype, shape: &[u64]) -> Result<u64, SizeError> {
    let elements = shape
        .iter()
        .filter(|&&dim| dim != 0)
        .try_fold(1u64, |product, &dim| product.checked_mul(dim))
        .ok_or(SizeError::Overflow)?;
    if shape.contains(&0) {
        return Ok(0);
    }
    let bits = elements.checked_mul(dtype.bitsize() as u64).ok_or(SizeError::Overflow)?;
    if !bits.is_multiple_of(8) {
        return Err(SizeError::PartialByte(bits));
    }
    Ok(bits / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(byte_size(Dtype::BF16, &[32000, 4096]), Ok(262_144_000));
        assert_eq!(byte_size(Dtype::I64, &[]), Ok(8));
        assert_eq!(byte_size(Dtype::F4, &[2, 3]), Ok(3));
        assert_eq!(byte_size(Dtype::F4, &[3]), Err(SizeError::PartialByte(12)));
        assert_eq!(byte_size(Dtype::F6_E2M3, &[4]), Ok(3));
        assert_eq!(byte_size(Dtype::F64, &[1 << 61]), Err(SizeError::Overflow));
        assert_eq!(byte_size(Dtype::F32, &[1 << 33, 1 << 33]), Err(SizeError::Overflow));
    }

    #[test]
    fn the_order_of_dimensions_does_not_change_the_answer() {
        for shape in [[0, u64::MAX], [u64::MAX, 0]] {
            assert_eq!(byte_size(Dtype::F32, &shape), Ok(0));
        }
        for shape in [[0, 1 << 33, 1 << 33], [1 << 33, 0, 1 << 33], [1 << 33, 1 << 33, 0]] {
            assert_eq!(byte_size(Dtype::F32, &shape), Err(SizeError::Overflow));
        }
    }
}
