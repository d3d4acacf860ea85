// SPDX-License-Identifier: MIT OR Apache-2.0
//! `cuTensorMapEncodeTiled`'s answers, as an H200 with driver 580.159.04 gave them, from both drivers.

use core::ffi::c_void;
use core::ptr;

use metrale_driver_sim::{ContextGuard, on_both_drivers};
use metrale_driver_sys::tensor_map as c;
use metrale_driver_sys::{CUresult, CUtensorMap, DriverApi};

/// The arguments of one call.
#[derive(Clone, Debug)]
struct Call {
    data_type: u32,
    address: u64,
    dims: Vec<u64>,
    strides: Vec<u64>,
    box_dims: Vec<u32>,
    element_strides: Vec<u32>,
    interleave: u32,
    swizzle: u32,
    oob_fill: u32,
}

impl Call {
    fn make(&self, driver: &dyn DriverApi) -> CUresult {
        let mut map = CUtensorMap::default();
        // One more than the rank asks for: rank 1 has none, and its pointer must not be null.
        let strides = [&self.strides[..], &[0]].concat();
        // SAFETY: the map is a local, and the strides are one less than the rank and that one.
        unsafe { self.make_with(driver, &mut map, strides.as_ptr()) }
    }

    /// # Safety
    /// `map` is valid for a map; `strides` is null or has one element less than the rank.
    unsafe fn make_with(
        &self,
        driver: &dyn DriverApi,
        map: *mut CUtensorMap,
        strides: *const u64,
    ) -> CUresult {
        // SAFETY: the other arrays have as many elements as the rank; the rest is the caller's promise.
        unsafe {
            driver.cuTensorMapEncodeTiled(
                map,
                self.data_type,
                u32::try_from(self.dims.len()).unwrap(),
                ptr::without_provenance_mut::<c_void>(usize::try_from(self.address).unwrap()),
                self.dims.as_ptr(),
                strides,
                self.box_dims.as_ptr(),
                self.element_strides.as_ptr(),
                self.interleave,
                self.swizzle,
                c::L2_PROMOTION_NONE,
                self.oob_fill,
            )
        }
    }
}

fn numbers<T: core::str::FromStr<Err: core::fmt::Debug>>(list: &str) -> Vec<T> {
    if list == "-" { Vec::new() } else { list.split(',').map(|number| number.parse().unwrap()).collect() }
}

fn call(row: &[&str]) -> Call {
    let named = |names: &[(&str, u32)], name: &str| names.iter().find(|named| named.0 == name).unwrap().1;
    Call {
        data_type: named(
            &[
                ("BF16", c::BFLOAT16),
                ("F16", c::FLOAT16),
                ("F32", c::FLOAT32),
                ("U8", c::UINT8),
                ("S32", c::INT32),
                ("16U4_ALIGN16B", c::U4X16_ALIGN16B),
            ],
            row[1],
        ),
        address: u64::from_str_radix(row[3].trim_start_matches("0x"), 16).unwrap(),
        dims: numbers(row[4]),
        strides: numbers(row[5]),
        box_dims: numbers(row[6]),
        element_strides: numbers(row[7]),
        interleave: named(
            &[("NONE", c::INTERLEAVE_NONE), ("16B", c::INTERLEAVE_16B), ("32B", c::INTERLEAVE_32B)],
            row[8],
        ),
        swizzle: named(
            &[
                ("NONE", c::SWIZZLE_NONE),
                ("32B", c::SWIZZLE_32B),
                ("64B", c::SWIZZLE_64B),
                ("128B", c::SWIZZLE_128B),
            ],
            row[9],
        ),
        oob_fill: named(&[("NONE", c::OOB_FILL_NONE), ("NAN", c::OOB_FILL_NAN_REQUEST_ZERO_FMA)], row[10]),
    }
}

/// What the table of bounds starts from: 1024 x 512 halves, rows of 2048 bytes, a box of 64 x 64.
fn plain() -> Call {
    Call {
        data_type: c::FLOAT16,
        address: 0x7f00_0000_0000,
        dims: vec![1024, 512],
        strides: vec![2048],
        box_dims: vec![64, 64],
        element_strides: vec![1, 1],
        interleave: c::INTERLEAVE_NONE,
        swizzle: c::SWIZZLE_NONE,
        oob_fill: c::OOB_FILL_NONE,
    }
}

/// The call a label of the table of bounds stands for.
fn labelled(label: &str) -> Call {
    let plain = plain();
    let three = |interleave, swizzle| Call {
        dims: vec![64, 64, 8],
        strides: vec![128, 8192],
        box_dims: vec![8, 8, 8],
        element_strides: vec![1; 3],
        interleave,
        swizzle,
        ..plain.clone()
    };
    match label {
        "box 256" => Call { box_dims: vec![256, 64], ..plain },
        "box0*es=16B" => Call { box_dims: vec![8, 64], ..plain },
        "box0*es=8B" => Call { box_dims: vec![4, 64], ..plain },
        "box inner 512B no swizzle" => Call { box_dims: vec![256, 1], ..plain },
        "stride<row" => Call { strides: vec![1024], ..plain },
        "es 8" => Call { element_strides: vec![1, 8], ..plain },
        "es 9" => Call { element_strides: vec![1, 9], ..plain },
        "gdim 2^32" => Call { dims: vec![1024, 1 << 32], ..plain },
        "gdim 2^32+16" => Call { dims: vec![1024, (1 << 32) + 16], ..plain },
        "stride 2^40-16" => Call { strides: vec![(1 << 40) - 16], ..plain },
        "stride 2^40" => Call { strides: vec![1 << 40], ..plain },
        "il16 rank3" => three(c::INTERLEAVE_16B, c::SWIZZLE_NONE),
        "il16 sw128" => three(c::INTERLEAVE_16B, c::SWIZZLE_128B),
        "rank5" => Call {
            dims: vec![1024, 64, 4, 4, 4],
            strides: vec![2048, 131_072, 524_288, 2_097_152],
            box_dims: vec![64, 8, 1, 1, 1],
            element_strides: vec![1; 5],
            ..plain
        },
        "nan f16" => Call { oob_fill: c::OOB_FILL_NAN_REQUEST_ZERO_FMA, ..plain },
        "nan s32" => Call {
            data_type: c::INT32,
            strides: vec![4096],
            oob_fill: c::OOB_FILL_NAN_REQUEST_ZERO_FMA,
            ..plain
        },
        "sw64 64B" => Call { box_dims: vec![32, 64], swizzle: c::SWIZZLE_64B, ..plain },
        "sw64 66B?" => Call { box_dims: vec![33, 64], swizzle: c::SWIZZLE_64B, ..plain },
        "box rows 256" => Call { box_dims: vec![64, 256], ..plain },
        "big box bytes" => {
            Call { data_type: c::FLOAT32, strides: vec![4096], box_dims: vec![256, 256], ..plain }
        }
        "es0 2 no interleave" => Call { element_strides: vec![2, 1], ..plain },
        other => panic!("{other}"),
    }
}

fn rows(table: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    table.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t').collect())
}

on_both_drivers! {
    every_case_is_answered_as_the_h200_did(driver) {
        let _context = ContextGuard::new(&driver, 0).unwrap();
        let mut calls = 0;
        for row in rows(include_str!("data/tma_cases.tsv")) {
            // Row k37 is about where the map itself lies, which is a test of its own below. The pointer to the strides
            // of row k14 was not null; that a null one must do is for the layer above.
            let status: CUresult = row[row.len() - 1].parse().unwrap();
            assert_eq!(call(&row).make(&*driver), status, "{row:?}");
            calls += 1;
        }
        assert_eq!(calls, 27);
    }

    every_bound_is_the_h200s(driver) {
        let _context = ContextGuard::new(&driver, 0).unwrap();
        let mut calls = 0;
        for row in rows(include_str!("data/tma_bounds_on_h200.tsv")) {
            let status: CUresult = row[1].parse().unwrap();
            assert_eq!(labelled(row[0]).make(&*driver), status, "{}", row[0]);
            calls += 1;
        }
        assert_eq!(calls, 21);
    }

    /// A box may take 233,472 bytes, the shared memory of a multiprocessor, and not a row more.
    a_box_fits_a_multiprocessor(driver) {
        let context = ContextGuard::new(&driver, 0).unwrap();
        let mut most = 0;
        // SAFETY: the result pointer is a local.
        assert_eq!(unsafe { driver.cuDeviceGetAttribute(&mut most, 81, context.device()) }, 0);
        let boxes: [(u32, u64, &[u32]); 7] = [
            (c::FLOAT16, 2, &[256, 256]),
            (c::FLOAT32, 4, &[256, 228]),
            (c::UINT8, 1, &[256, 228, 4]),
            (c::FLOAT32, 4, &[256, 229]),
            (c::UINT8, 1, &[256, 229, 4]),
            (c::FLOAT64, 8, &[256, 115]),
            (c::FLOAT16, 2, &[256, 229, 2]),
        ];
        for (data_type, element_bytes, box_dims) in boxes {
            let row = 4096 * element_bytes;
            let strides = [row, row * 4096];
            let call = Call {
                data_type,
                dims: vec![4096; box_dims.len()],
                strides: strides[..box_dims.len() - 1].to_vec(),
                box_dims: box_dims.to_vec(),
                element_strides: vec![1; box_dims.len()],
                ..plain()
            };
            let bytes = box_dims.iter().fold(element_bytes, |bytes, &side| bytes * u64::from(side));
            let expected = if bytes <= u64::try_from(most).unwrap() { 0 } else { 1 };
            assert_eq!(call.make(&*driver), expected, "{bytes} bytes: {call:?}");
        }
    }

    /// At rank 1 nothing is read through the pointer to the strides, and null is refused all the same.
    null_strides_are_refused_at_every_rank(driver) {
        let _context = ContextGuard::new(&driver, 0).unwrap();
        let one = Call {
            data_type: c::UINT8,
            dims: vec![1 << 20],
            strides: Vec::new(),
            box_dims: vec![256],
            element_strides: vec![1],
            ..plain()
        };
        for call in [one, plain()] {
            let mut map = CUtensorMap::default();
            assert_eq!(call.make(&*driver), 0);
            // SAFETY: the map is a local, the strides are null.
            assert_eq!(unsafe { call.make_with(&*driver, &mut map, ptr::null()) }, 1, "{call:?}");
        }
    }

    /// The headers declare an alignment of 128 bytes; the driver writes to any address.
    a_map_may_lie_anywhere(driver) {
        let _context = ContextGuard::new(&driver, 0).unwrap();
        let mut buffer = [CUtensorMap::default(); 3];
        for misaligned_by in [64, 32, 16, 8] {
            let map = buffer.as_mut_ptr().wrapping_byte_add(misaligned_by);
            let call = plain();
            // SAFETY: a whole map lies behind the address.
            let status = unsafe { call.make_with(&*driver, map, call.strides.as_ptr()) };
            assert_eq!(status, 0, "{misaligned_by}");
        }
    }
}
