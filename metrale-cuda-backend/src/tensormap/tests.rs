// SPDX-License-Identifier: MIT OR Apache-2.0
//! The recorded tables row by row, and each rule's two sides.

use std::sync::Arc;

use metrale_driver_sim::{ContextGuard, Profile, SimDriver, on_both_drivers};
use metrale_driver_sys::{CUresult, CUtensorMap, DriverApi};
use proptest::prelude::*;

use super::*;

const ADDRESS: u64 = 0x7f00_0000_0000;

/// The map that the recorded bounds vary.
fn f16() -> TensorMapSpec {
    TensorMapSpec::new(ElementType::F16, DevicePtr(ADDRESS), &[1024, 512], &[2048], &[64, 64])
}

fn of(element: ElementType, dims: &[u64], strides: &[u64], box_dims: &[u32]) -> TensorMapSpec {
    TensorMapSpec::new(element, DevicePtr(ADDRESS), dims, strides, box_dims)
}

fn interleaved(interleave: Interleave, swizzle: Swizzle) -> TensorMapSpec {
    let strides = if interleave == Interleave::Bytes32 { [160, 10240] } else { [144, 9216] };
    of(ElementType::F16, &[64, 64, 8], &strides, &[8, 8, 8]).interleave(interleave).swizzle(swizzle)
}

fn broken(spec: &TensorMapSpec) -> Vec<TensorMapRule> {
    spec.check().err().map_or_else(Vec::new, |error| error.broken)
}

fn list<T: std::str::FromStr>(text: &str) -> Vec<T> {
    text.split(',').filter_map(|number| number.parse().ok()).collect()
}

fn row_spec(row: &[&str]) -> TensorMapSpec {
    let element = match row[1] {
        "BF16" => ElementType::Bf16,
        "F16" => ElementType::F16,
        "F32" => ElementType::F32,
        "U8" => ElementType::U8,
        "S32" => ElementType::I32,
        "16U4_ALIGN16B" => ElementType::U4Align16,
        other => panic!("{other}"),
    };
    let address = u64::from_str_radix(row[3].strip_prefix("0x").unwrap(), 16).unwrap();
    let spec = TensorMapSpec::new(element, DevicePtr(address), &list(row[4]), &list(row[5]), &list(row[6]));
    let interleave = match row[8] {
        "NONE" => Interleave::None,
        "16B" => Interleave::Bytes16,
        "32B" => Interleave::Bytes32,
        other => panic!("{other}"),
    };
    let swizzle = match row[9] {
        "NONE" => Swizzle::None,
        "32B" => Swizzle::Bytes32,
        "64B" => Swizzle::Bytes64,
        "128B" => Swizzle::Bytes128,
        other => panic!("{other}"),
    };
    let fill = if row[10] == "NAN" { OobFill::NanRequestZeroFma } else { OobFill::Zero };
    assert_eq!(spec.dims.len().to_string(), row[2], "{}", row[0]);
    spec.element_strides(&list(row[7])).interleave(interleave).swizzle(swizzle).oob_fill(fill)
}

#[test]
fn every_recorded_case_gets_its_verdict() {
    let table = include_str!("../../tests/data/tma_cases.tsv");
    let mut checked = 0;
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let row: Vec<&str> = line.split('\t').collect();
        let (id, verdict, at_fault, status) = (row[0], row[11], row[12], row[14]);
        let spec = row_spec(&row);
        let found = broken(&spec);
        checked += 1;
        match verdict {
            "ok" => assert_eq!(found, [], "{id}"),
            "invalid" => {
                let [rule] = &found[..] else { panic!("{id}: {found:?}") };
                let expected = match at_fault {
                    "address" => "globalAddress",
                    "rank" => "tensorRank",
                    // What exceeds the swizzle, or is no multiple of 16 bytes, is the box's inner side.
                    _ if at_fault.starts_with("boxDim[0] x elem") => "boxDim[0]",
                    other => other,
                };
                assert_eq!(rule.argument(), expected, "{id}: {rule}");
                // The driver's own answer, where it has one.
                assert_eq!(rule.is_the_drivers(), status == "1", "{id}: {rule}");
            }
            // The arguments are right: the status came from an earlier kernel's fault, which the caller of the encoding
            // looks for first.
            "not the arguments" => assert_eq!((id, &found[..]), ("k35", &[][..])),
            // A map that is not aligned cannot be made of our type.
            "map pointer" => {
                assert_eq!((id, &found[..]), ("k37", &[][..]));
                assert!(align_of::<super::super::TensorMap>().is_multiple_of(64));
            }
            "ok, but" => {
                assert_eq!((id, &found[..]), ("k38", &[][..]));
                let on =
                    |major, allocation| spec.warnings(Some(ComputeCapability::new(major, 0)), allocation);
                let expected = TensorMapWarning::PaddedRowsInSmallAllocation {
                    row_bytes: 128,
                    pitch_bytes: 256,
                    allocation_bytes: 25_600,
                };
                assert_eq!(on(10, Some(25_600)), [expected]);
                assert_eq!(on(12, Some(25_600)), [expected]);
                // On other devices, in a larger allocation, with packed rows: not a word.
                assert_eq!(on(9, Some(25_600)), []);
                assert_eq!(on(10, Some(128 << 10)), []);
                assert_eq!(spec.warnings(None, Some(25_600)), []);
                let packed = of(ElementType::F16, &[64, 100], &[128], &[64, 64]);
                assert_eq!(packed.warnings(Some(ComputeCapability::new(10, 0)), Some(12_800)), []);
            }
            // The arguments are right, and a result cannot be ignored: the compiler asks for it.
            "ok; result ignored" => assert_eq!((id, &found[..]), ("k40", &[][..])),
            other => panic!("{id}: {other}"),
        }
    }
    assert_eq!(checked, 27);
}

#[test]
fn every_recorded_bound_of_the_driver_is_ours_or_is_refused_for_a_reason() {
    let table = include_str!("../../tests/data/tma_bounds_on_h200.tsv");
    let f16_of = |dims: &[u64], strides: &[u64]| of(ElementType::F16, dims, strides, &[64, 64]);
    let mut checked = 0;
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let (label, status) = line.split_once('\t').unwrap();
        let spec = match label {
            "box 256" => f16().box_dims(&[256, 64]),
            "box0*es=16B" => f16().box_dims(&[8, 64]),
            "box0*es=8B" => f16().box_dims(&[4, 64]),
            "box inner 512B no swizzle" => f16().box_dims(&[256, 16]),
            "stride<row" => f16_of(&[1024, 512], &[1024]),
            "es 8" => f16().element_strides(&[1, 8]),
            "es 9" => f16().element_strides(&[1, 9]),
            "gdim 2^32" => f16_of(&[1 << 32, 512], &[1 << 33]),
            "gdim 2^32+16" => f16_of(&[(1 << 32) + 16, 512], &[(1 << 33) + 32]),
            "stride 2^40-16" => f16_of(&[1024, 512], &[(1 << 40) - 16]),
            "stride 2^40" => f16_of(&[1024, 512], &[1 << 40]),
            "il16 rank3" => interleaved(Interleave::Bytes16, Swizzle::None),
            "il16 sw128" => interleaved(Interleave::Bytes16, Swizzle::Bytes128),
            "rank5" => TensorMapSpec::packed(
                ElementType::F16,
                DevicePtr(ADDRESS),
                &[64, 8, 8, 8, 8],
                &[64, 8, 2, 2, 2],
            ),
            "nan f16" => f16().oob_fill(OobFill::NanRequestZeroFma),
            "nan s32" => {
                of(ElementType::I32, &[1024, 512], &[4096], &[32, 32]).oob_fill(OobFill::NanRequestZeroFma)
            }
            "sw64 64B" => f16().box_dims(&[32, 64]).swizzle(Swizzle::Bytes64),
            "sw64 66B?" => f16().box_dims(&[33, 64]).swizzle(Swizzle::Bytes64),
            "box rows 256" => f16().box_dims(&[64, 256]),
            // 256 KiB.
            "big box bytes" => of(ElementType::F32, &[1024, 512], &[4096], &[256, 256]),
            "es0 2 no interleave" => f16().element_strides(&[2, 1]),
            other => panic!("{other}"),
        };
        let found = broken(&spec);
        if label == "stride<row" {
            // Taken by the driver; here rows that overlap are a mistake in the units.
            let rule = TensorMapRule::StrideBelowRow { index: 0, stride: 1024, row_bytes: 2048 };
            assert_eq!((status, &found[..]), ("0", &[rule][..]));
            assert!(!rule.is_the_drivers());
        } else {
            assert_eq!(found.is_empty(), status == "0", "{label}: {found:?}");
        }
        if label.starts_with("es0") {
            assert_eq!(spec.warnings(None, None), [TensorMapWarning::ElementStrideIgnored { step: 2 }]);
        }
        checked += 1;
    }
    assert_eq!(checked, 21);
}

/// For each rule that the driver has too: a map just inside it, and one just outside.
pub(crate) fn boundaries() -> Vec<(&'static str, TensorMapSpec, TensorMapSpec)> {
    let at = |address, spec: TensorMapSpec| TensorMapSpec { address: DevicePtr(address), ..spec };
    let padded =
        |dims: &[u64], stride, box_dims: &[u32]| of(ElementType::U4Align16, dims, &[stride], box_dims);
    let six = |swizzle| of(ElementType::U6Align16, &[1024, 64], &[768], &[128, 16]).swizzle(swizzle);
    let f32_rows = |step| of(ElementType::F32, &[1024, 512], &[4096], &[32, 32]).element_strides(&[1, step]);
    vec![
        (
            "rank 5",
            of(ElementType::U8, &[16; 5], &[16, 256, 4096, 65536], &[16, 1, 1, 1, 1]),
            of(ElementType::U8, &[16; 6], &[16, 256, 4096, 65536, 1 << 20], &[16, 1, 1, 1, 1, 1]),
        ),
        ("rank 1", of(ElementType::U8, &[1 << 20], &[], &[256]), of(ElementType::U8, &[], &[], &[])),
        (
            "interleave needs rank 3",
            interleaved(Interleave::Bytes16, Swizzle::None),
            f16().interleave(Interleave::Bytes16),
        ),
        ("address 16", at(ADDRESS + 16, f16()), at(ADDRESS + 8, f16())),
        (
            "address 32 padded",
            at(ADDRESS + 32, padded(&[1024, 64], 512, &[128, 16])),
            at(ADDRESS + 16, padded(&[1024, 64], 512, &[128, 16])),
        ),
        (
            "address 32 interleaved",
            at(ADDRESS + 32, interleaved(Interleave::Bytes32, Swizzle::Bytes32)),
            at(ADDRESS + 16, interleaved(Interleave::Bytes32, Swizzle::Bytes32)),
        ),
        (
            "dim 1",
            of(ElementType::F16, &[1024, 1], &[2048], &[64, 1]),
            of(ElementType::F16, &[1024, 0], &[2048], &[64, 1]),
        ),
        (
            "dim 2^32",
            of(ElementType::U8, &[1 << 32, 2], &[1 << 32], &[256, 1]),
            of(ElementType::U8, &[(1 << 32) + 1, 2], &[(1 << 32) + 16], &[256, 1]),
        ),
        ("dim 128 padded", padded(&[1024, 64], 512, &[128, 16]), padded(&[1000, 64], 512, &[128, 16])),
        (
            "dim 2 packed",
            of(ElementType::U4Align8, &[1002, 64], &[512], &[64, 16]),
            of(ElementType::U4Align8, &[1001, 64], &[512], &[64, 16]),
        ),
        (
            "stride 16",
            of(ElementType::F16, &[1024, 512], &[2064], &[64, 64]),
            of(ElementType::F16, &[1024, 512], &[2056], &[64, 64]),
        ),
        ("stride 32 padded", padded(&[1024, 64], 544, &[128, 16]), padded(&[1024, 64], 528, &[128, 16])),
        (
            "stride 32 interleaved",
            interleaved(Interleave::Bytes32, Swizzle::Bytes32),
            TensorMapSpec {
                strides_bytes: vec![144, 10240],
                ..interleaved(Interleave::Bytes32, Swizzle::Bytes32)
            },
        ),
        (
            "stride 2^40",
            of(ElementType::F16, &[1024, 512], &[(1 << 40) - 16], &[64, 64]),
            of(ElementType::F16, &[1024, 512], &[1 << 40], &[64, 64]),
        ),
        (
            "box 256",
            of(ElementType::U8, &[1024, 512], &[1024], &[256, 256]),
            of(ElementType::U8, &[1024, 512], &[1024], &[16, 257]),
        ),
        ("box 1", f16().box_dims(&[64, 1]), f16().box_dims(&[64, 0])),
        ("box 128 padded", padded(&[1024, 64], 512, &[128, 16]), padded(&[1024, 64], 512, &[64, 16])),
        ("box row 16 bytes", f16().box_dims(&[8, 64]), f16().box_dims(&[12, 64])),
        (
            "box row 32 swizzled",
            f16().box_dims(&[16, 64]).swizzle(Swizzle::Bytes32),
            f16().box_dims(&[24, 64]).swizzle(Swizzle::Bytes32),
        ),
        (
            "box row 64 swizzled",
            f16().box_dims(&[32, 64]).swizzle(Swizzle::Bytes64),
            f16().box_dims(&[40, 64]).swizzle(Swizzle::Bytes64),
        ),
        (
            "box row 128 swizzled",
            f16().swizzle(Swizzle::Bytes128),
            f16().box_dims(&[72, 64]).swizzle(Swizzle::Bytes128),
        ),
        ("element stride 8", f32_rows(8), f32_rows(9)),
        ("element stride 1", f32_rows(1), f32_rows(0)),
        ("padded swizzle", six(Swizzle::Bytes128), six(Swizzle::Bytes64)),
        (
            "nan fill",
            f16().oob_fill(OobFill::NanRequestZeroFma),
            of(ElementType::U16, &[1024, 512], &[2048], &[64, 64]).oob_fill(OobFill::NanRequestZeroFma),
        ),
    ]
}

#[test]
fn each_rule_holds_on_one_side_and_is_the_only_one_broken_on_the_other() {
    for (name, inside, outside) in boundaries() {
        assert_eq!(broken(&inside), [], "{name}");
        let found = broken(&outside);
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        assert!(found[0].is_the_drivers(), "{name}");
    }
}

#[test]
fn what_the_driver_takes_and_a_kernel_cannot_use_is_refused() {
    let null = TensorMapSpec { address: DevicePtr::NULL, ..f16() };
    assert_eq!(broken(&null), [TensorMapRule::NullAddress]);
    let narrow = of(ElementType::F16, &[1024, 512], &[2032], &[64, 64]);
    assert_eq!(broken(&narrow), [TensorMapRule::StrideBelowRow { index: 0, stride: 2032, row_bytes: 2048 }]);
    assert!(narrow.check().unwrap_err().to_string().contains("bytes, not elements"));
    let mixed = interleaved(Interleave::Bytes32, Swizzle::Bytes128);
    assert_eq!(broken(&mixed), [TensorMapRule::InterleaveSwizzle { swizzle: Swizzle::Bytes128 }]);
    for spec in [null, narrow, mixed] {
        assert!(!broken(&spec)[0].is_the_drivers());
    }
}

#[test]
fn dimensions_may_come_in_any_order_and_one_of_one_has_no_stride() {
    // Heads before positions: the outer stride is the shorter one.
    assert_eq!(broken(&of(ElementType::Bf16, &[128, 1024, 32], &[8192, 256], &[64, 64, 1])), []);
    assert_eq!(broken(&of(ElementType::Bf16, &[128, 1], &[0], &[64, 1])), []);
}

#[test]
fn all_broken_rules_come_together_with_their_values() {
    let spec = of(ElementType::I32, &[1024, 0], &[4090], &[512, 32])
        .element_strides(&[1, 12])
        .oob_fill(OobFill::NanRequestZeroFma);
    let error = spec.check().unwrap_err();
    assert_eq!(
        error.broken,
        [
            TensorMapRule::Dim { index: 1, dim: 0 },
            TensorMapRule::StrideAlignment { index: 0, stride: 4090, multiple: 16 },
            TensorMapRule::BoxSide { index: 0, side: 512 },
            TensorMapRule::ElementStride { index: 1, step: 12 },
            TensorMapRule::NanFill { element: ElementType::I32 },
        ]
    );
    let text = error.to_string();
    for part in ["globalDim[1]", "globalStrides[0]", "4090", "boxDim[0]", "512", "elementStrides[1]", "i32"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let short = TensorMapSpec { strides_bytes: vec![], ..f16() };
    assert_eq!(
        broken(&short),
        [TensorMapRule::Length { argument: "globalStrides", rank: 2, expected: 1, found: 0 }]
    );
}

#[test]
fn the_matrix_of_bf16_is_what_its_name_says() {
    let spec = TensorMapSpec::tiled_2d_bf16(DevicePtr(ADDRESS), 1024, 4000, 4096, 128, 64);
    let arguments = spec.check().unwrap();
    assert_eq!((arguments.rank, arguments.data_type, arguments.address), (2, 9, ADDRESS));
    assert_eq!(arguments.dims, [4000, 1024, 0, 0, 0]);
    assert_eq!(arguments.strides_bytes, [8192, 0, 0, 0]);
    assert_eq!((arguments.box_dims, arguments.element_strides), ([64, 128, 0, 0, 0], [1, 1, 0, 0, 0]));
    assert_eq!((arguments.interleave, arguments.swizzle, arguments.l2_promotion), (0, 0, 0));
    // The last row has no gap after it.
    assert_eq!(spec.extent_bytes(), Some(1023 * 8192 + 8000));
    let huge = TensorMapSpec::tiled_2d_bf16(DevicePtr(ADDRESS), 2, 64, u64::MAX, 2, 64);
    assert!(matches!(broken(&huge)[0], TensorMapRule::StrideRange { stride: u64::MAX, .. }));
}

#[test]
fn packed_tensors_have_the_strides_of_their_dimensions() {
    for element in ElementType::ALL {
        let dims = [256, 3, 5];
        let spec = TensorMapSpec::packed(element, DevicePtr(ADDRESS), &dims, &[128, 1, 1]);
        assert_eq!(broken(&spec), [], "{element}");
        assert_eq!(spec.extent_bytes(), Some(256 * 3 * 5 * element.global_bits() / 8), "{element}");
    }
    let interleaved = interleaved(Interleave::Bytes16, Swizzle::None);
    assert_eq!(interleaved.extent_bytes(), None);
}

/// What the driver answers, whatever our own rules say of the map.
fn ask(driver: &Arc<dyn DriverApi>, spec: &TensorMapSpec) -> CUresult {
    let mut map = CUtensorMap::default();
    // SAFETY: the map is a local, and each array has as many entries as the rank asks for; the address is not followed.
    unsafe {
        driver.cuTensorMapEncodeTiled(
            &mut map,
            spec.element.raw(),
            spec.dims.len() as u32,
            spec.address.0 as *mut core::ffi::c_void,
            spec.dims.as_ptr(),
            spec.strides_bytes.as_ptr(),
            spec.box_dims.as_ptr(),
            spec.element_strides.as_ptr(),
            spec.interleave.raw(),
            spec.swizzle.raw(),
            spec.l2_promotion.raw(),
            spec.oob_fill.raw(),
        )
    }
}

/// Asks the driver on both sides of each rule. What a device of this generation does not have it refuses on either side.
fn hold_boundaries(driver: &Arc<dyn DriverApi>, device: ComputeCapability) {
    for (name, inside, outside) in boundaries() {
        let refused = inside.check_on(device, MAX_BOX_BYTES).is_err();
        assert_eq!(ask(driver, &inside), CUresult::from(refused), "{name}, inside");
        assert_eq!(ask(driver, &outside), 1, "{name}, outside");
    }
    let wide = [Swizzle::Bytes128Atom32, Swizzle::Bytes128Atom32Flip8, Swizzle::Bytes128Atom64];
    for spec in wide.map(|swizzle| f16().swizzle(swizzle)) {
        let refused = spec.check_on(device, MAX_BOX_BYTES).is_err();
        assert_eq!(ask(driver, &spec), CUresult::from(refused), "{}", spec.swizzle);
    }
}

#[test]
fn a_device_is_told_from_one_that_came_later() {
    let (h200, gb10) = (ComputeCapability::new(9, 0), ComputeCapability::new(12, 1));
    let six = of(ElementType::U6Align16, &[1024, 64], &[768], &[128, 16]);
    for (spec, argument) in [(six, "tensorDataType"), (f16().swizzle(Swizzle::Bytes128Atom64), "swizzle")] {
        assert!(spec.check_on(gb10, MAX_BOX_BYTES).is_ok());
        let error = spec.check_on(h200, MAX_BOX_BYTES).unwrap_err();
        assert_eq!(error.broken.len(), 1, "{error}");
        assert!(error.broken[0].argument() == argument && error.broken[0].is_the_drivers(), "{error}");
        assert!(error.to_string().contains("compute capability 10.0, and this one has 9.0"), "{error}");
    }
}

/// On the software driver only: no such device could be asked.
#[test]
fn a_later_device_takes_every_type_and_swizzle() {
    let driver: Arc<dyn DriverApi> = Arc::new(SimDriver::new(Profile::gb10()));
    let _context = ContextGuard::new(&driver, 0).unwrap();
    hold_boundaries(&driver, ComputeCapability::new(12, 1));
}

on_both_drivers! {
    /// Just inside each rule the driver takes the map, just outside it does not.
    the_driver_has_each_rule_where_we_have_it(driver) {
        let _context = ContextGuard::new(&driver, 0).unwrap();
        hold_boundaries(&driver, ComputeCapability::new(9, 0));
        // What it takes and we do not.
        let null = TensorMapSpec { address: DevicePtr::NULL, ..f16() };
        let narrow = of(ElementType::F16, &[1024, 512], &[2032], &[64, 64]);
        for spec in [null, narrow, interleaved(Interleave::Bytes32, Swizzle::Bytes128)] {
            assert_eq!((ask(&driver, &spec), broken(&spec).len()), (0, 1));
        }
    }
}

proptest! {
    #[test]
    fn no_arguments_make_it_panic_and_what_passes_is_within_every_bound(
        element in 0..16_usize,
        address: u64, shift in 0..64_u32,
        dims in proptest::collection::vec(prop_oneof![0..300_u64, any::<u64>()], 0..7),
        strides in proptest::collection::vec(prop_oneof![(0..300_u64).prop_map(|n| n * 32), any::<u64>()], 0..6),
        box_dims in proptest::collection::vec(prop_oneof![Just(128_u32), 0..300_u32, any::<u32>()], 0..7),
        steps in proptest::collection::vec(0..10_u32, 0..7),
    ) {
        let element = ElementType::ALL[element];
        let address = DevicePtr(address >> shift << 5);
        let spec = TensorMapSpec::new(element, address, &dims, &strides, &box_dims).element_strides(&steps);
        let _ = (spec.extent_bytes(), spec.warnings(None, None));
        match spec.check() {
            Ok(arguments) => {
                prop_assert_eq!(arguments.rank as usize, dims.len());
                prop_assert!(arguments.address != 0 && arguments.address % 16 == 0);
                prop_assert!(arguments.strides_bytes.iter().all(|&stride| stride < 1 << 40 && stride % 16 == 0));
                prop_assert!(arguments.box_dims.iter().all(|&side| side <= 256));
            }
            Err(error) => {
                prop_assert!(!error.broken.is_empty());
                prop_assert!(!error.to_string().is_empty());
            }
        }
    }
}
