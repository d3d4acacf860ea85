// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`DeviceSlice`] and [`DeviceSliceMut`]: views of elements in device memory.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use bytemuck::{Pod, cast_slice, cast_slice_mut};

use crate::error::{BadArgument, Result};
use crate::gpu::GpuBackend;
use crate::owners::shared::same_driver;
use crate::raw_handles::DevicePtr;

/// The place of a view: address and number of elements.
type Place = (DevicePtr, usize);

/// Elements of a [`DeviceBuffer`](crate::DeviceBuffer), borrowed to read.
pub struct DeviceSlice<'a, T: Pod> {
    gpu: &'a Arc<dyn GpuBackend>,
    ptr: DevicePtr,
    len: usize,
    elements: PhantomData<&'a [T]>,
}

/// Elements of a [`DeviceBuffer`](crate::DeviceBuffer), borrowed to write.
pub struct DeviceSliceMut<'a, T: Pod> {
    gpu: &'a Arc<dyn GpuBackend>,
    ptr: DevicePtr,
    len: usize,
    elements: PhantomData<&'a mut [T]>,
}

impl<T: Pod> Clone for DeviceSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Pod> Copy for DeviceSlice<'_, T> {}

/// The place of a range of a view.
fn part<T>((ptr, len): Place, range: &impl RangeBounds<usize>) -> Result<Place, BadArgument> {
    let start = match range.start_bound() {
        Bound::Included(&start) => Some(start),
        Bound::Excluded(&before) => before.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.checked_add(1),
        Bound::Excluded(&end) => Some(end),
        Bound::Unbounded => Some(len),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= len => {
            Ok((ptr.offset((start * size_of::<T>()) as u64), end - start))
        }
        _ => Err(BadArgument::new(format!(
            "a slice of elements {} to {} of a view that has {len}",
            text(start),
            text(end)
        ))),
    }
}

/// A bound as the error shows it.
fn text(bound: Option<usize>) -> String {
    bound.map_or_else(|| "2^64".to_owned(), |bound| bound.to_string())
}

/// The place of the same bytes as elements of another type.
fn cast<T, U>((ptr, len): Place) -> Result<Place, BadArgument> {
    let (bytes, size, align) = (len * size_of::<T>(), size_of::<U>(), align_of::<U>());
    if !ptr.0.is_multiple_of(align as u64) {
        return Err(BadArgument::new(format!(
            "{bytes} bytes at {ptr} as elements that are aligned to {align} bytes: the address is no multiple of that"
        )));
    }
    match bytes.checked_rem(size) {
        Some(0) => Ok((ptr, bytes / size)),
        _ => Err(BadArgument::new(format!("{bytes} bytes as elements of {size} bytes: there is a rest"))),
    }
}

/// Refuses a copy between views of different lengths.
pub(crate) fn same_len(doing: &str, from: usize, to: usize) -> Result<(), BadArgument> {
    if from == to {
        return Ok(());
    }
    Err(BadArgument::new(format!("{doing}: {from} elements into {to}; take slices of one length")))
}

/// What both views tell of themselves.
macro_rules! place {
    ($view:ident) => {
        impl<T: Pod> $view<'_, T> {
            /// Number of elements.
            #[must_use]
            pub const fn len(&self) -> usize {
                self.len
            }

            /// Whether it has no elements.
            #[must_use]
            pub const fn is_empty(&self) -> bool {
                self.len == 0
            }

            /// The backend it is of.
            #[must_use]
            pub const fn gpu(&self) -> &Arc<dyn GpuBackend> {
                self.gpu
            }

            /// Bytes of all elements.
            #[must_use]
            pub const fn bytes(&self) -> usize {
                self.len * size_of::<T>()
            }

            /// The address of the first element, for kernel arguments and raw calls. It is good as long as what it is
            /// borrowed from.
            #[must_use]
            pub const fn ptr(&self) -> DevicePtr {
                self.ptr
            }
        }

        impl<T: Pod> fmt::Debug for $view<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({} elements at {})", stringify!($view), self.len, self.ptr)
            }
        }
    };
}

place!(DeviceSlice);
place!(DeviceSliceMut);

impl<'a, T: Pod> DeviceSlice<'a, T> {
    pub(crate) const fn new(gpu: &'a Arc<dyn GpuBackend>, ptr: DevicePtr, len: usize) -> Self {
        Self { gpu, ptr, len, elements: PhantomData }
    }

    /// Some of the elements.
    ///
    /// # Errors
    /// [`BadArgument`] for a range that leaves it.
    pub fn slice(self, range: impl RangeBounds<usize>) -> Result<Self, BadArgument> {
        let (ptr, len) = part::<T>((self.ptr, self.len), &range)?;
        Ok(Self::new(self.gpu, ptr, len))
    }

    /// The same bytes as elements of another type.
    ///
    /// # Errors
    /// [`BadArgument`] where the bytes are no whole number of those, or the address is not aligned for them.
    pub fn cast<U: Pod>(self) -> Result<DeviceSlice<'a, U>, BadArgument> {
        let (ptr, len) = cast::<T, U>((self.ptr, self.len))?;
        Ok(DeviceSlice::new(self.gpu, ptr, len))
    }

    /// Copies all elements to the host. Blocks.
    ///
    /// # Errors
    /// As [`GpuCopies::copy_d2h`](crate::GpuCopies::copy_d2h); [`BadArgument`] for another number of elements.
    pub fn copy_to(self, dst: &mut [T]) -> Result<()> {
        same_len("copying to the host", self.len, dst.len())?;
        self.gpu.copy_d2h(self.ptr, cast_slice_mut(dst))
    }

    /// A copy of all elements on the host. Blocks.
    ///
    /// # Errors
    /// As [`GpuCopies::copy_d2h`](crate::GpuCopies::copy_d2h).
    pub fn to_vec(self) -> Result<Vec<T>> {
        let mut elements = vec![T::zeroed(); self.len];
        self.copy_to(&mut elements)?;
        Ok(elements)
    }
}

impl<'a, T: Pod> DeviceSliceMut<'a, T> {
    pub(crate) const fn new(gpu: &'a Arc<dyn GpuBackend>, ptr: DevicePtr, len: usize) -> Self {
        Self { gpu, ptr, len, elements: PhantomData }
    }

    /// The elements, to read.
    #[must_use]
    pub const fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice::new(self.gpu, self.ptr, self.len)
    }

    /// The same elements, borrowed for a shorter time.
    #[must_use]
    pub const fn reborrow(&mut self) -> DeviceSliceMut<'_, T> {
        DeviceSliceMut::new(self.gpu, self.ptr, self.len)
    }

    /// Some of the elements.
    ///
    /// # Errors
    /// [`BadArgument`] for a range that leaves it.
    pub fn slice(self, range: impl RangeBounds<usize>) -> Result<Self, BadArgument> {
        let (ptr, len) = part::<T>((self.ptr, self.len), &range)?;
        Ok(Self::new(self.gpu, ptr, len))
    }

    /// The elements before `mid` and those from it on, to write at the same time.
    ///
    /// # Errors
    /// [`BadArgument`] where `mid` is past the end.
    pub fn split_at(self, mid: usize) -> Result<(Self, Self), BadArgument> {
        let (place, gpu) = ((self.ptr, self.len), self.gpu);
        let [(low, low_len), (high, high_len)] = [part::<T>(place, &(..mid))?, part::<T>(place, &(mid..))?];
        Ok((Self::new(gpu, low, low_len), Self::new(gpu, high, high_len)))
    }

    /// The same bytes as elements of another type.
    ///
    /// # Errors
    /// [`BadArgument`] where the bytes are no whole number of those, or the address is not aligned for them.
    pub fn cast<U: Pod>(self) -> Result<DeviceSliceMut<'a, U>, BadArgument> {
        let (ptr, len) = cast::<T, U>((self.ptr, self.len))?;
        Ok(DeviceSliceMut::new(self.gpu, ptr, len))
    }

    /// Copies all elements from the host. Blocks: valid on every stream at return.
    ///
    /// # Errors
    /// As [`GpuCopies::copy_h2d`](crate::GpuCopies::copy_h2d); [`BadArgument`] for another number of elements.
    pub fn copy_from(&mut self, src: &[T]) -> Result<()> {
        same_len("copying to the device", src.len(), self.len)?;
        self.gpu.copy_h2d(cast_slice(src), self.ptr)
    }

    /// Copies all elements from device memory. Blocks: valid on every stream at return.
    ///
    /// # Errors
    /// As [`GpuCopies::copy_d2d`](crate::GpuCopies::copy_d2d); [`BadArgument`] for another number of elements.
    pub fn copy_from_device<'s>(&mut self, src: impl Into<DeviceSlice<'s, T>>) -> Result<()> {
        let src = src.into();
        same_len("copying inside the device", src.len, self.len)?;
        same_driver("copying inside the device", self.gpu, src.gpu)?;
        self.gpu.copy_d2d(src.ptr, self.ptr, self.bytes())
    }

    /// Fills all bytes with `value`. Blocks: valid on every stream at return.
    ///
    /// # Errors
    /// As [`GpuCopies::memset`](crate::GpuCopies::memset).
    pub fn fill_bytes(&mut self, value: u8) -> Result<()> {
        self.gpu.memset(self.ptr, value, self.bytes())
    }
}
