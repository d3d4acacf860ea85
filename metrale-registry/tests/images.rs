// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is noticed about images: what a driver cannot link, what is packed, two images in one, and what loads all the same.

mod common;

use std::sync::Arc;

use common::{STORE, leak};
use metrale_driver_sim::{Profile, SimDriver, TraceDriver, on_both_drivers};
use metrale_driver_sys::DriverFn;
use metrale_registry::{ImageError, ImageKind, ImageNote, MetraleRegistry, RegistryError};

/// Compiled with `-rdc`: its kernel calls `_Z6helperf`, which nothing defines.
const RDC_EXTERN: &[u8] = include_bytes!("data/k_rdc_extern.cubin");
/// Several kernels, some of which need what nothing defines; its source is beside the copy in metrale-driver-sys.
const RDC: &[u8] = include_bytes!("data/rdc.cubin");
/// Cubins for sm_75 and sm_90 and PTX for sm_75, all packed.
const PACKED: &[u8] = include_bytes!("data/all_packed.fatbin");
/// LTO-IR for sm_90, and nothing else.
const LTO_ONLY: &[u8] = include_bytes!("data/lto_only.fatbin");

fn sim() -> Arc<SimDriver> {
    Arc::new(SimDriver::new(Profile::h200()))
}

fn load(image: &'static [u8]) -> Result<Arc<MetraleRegistry>, RegistryError> {
    MetraleRegistry::load_with(sim(), 0, &[("m", image)])
}

fn notes(image: &[u8]) -> Vec<ImageNote> {
    load(leak(image.to_vec())).unwrap_or_else(|error| panic!("{error}")).modules().remove(0).notes
}

on_both_drivers! {
    a_kernel_that_is_not_linked_loads_and_is_not_found(driver) {
        let registry = MetraleRegistry::load_with(driver, 0, &[("m", RDC_EXTERN)]).unwrap();
        let error = registry.function("m", "scale").unwrap_err();
        let RegistryError::KernelNotLinked { undefined, .. } = &error else { panic!("{error:?}") };
        assert_eq!(undefined.as_deref(), Some("_Z6helperf"));
        let text = error.to_string();
        assert!(text.contains("is in the image of module \"m\", but not linked: it needs \"_Z6helperf\""), "{text}");
        assert!(text.contains("nvcc -dlink") && !text.contains("did you mean"), "{text}");
        // It is there and unusable, which who can do without it should hear of, too.
        assert!(registry.optional_function("m", "scale").is_err());
        assert!(registry.function("m", "scal").unwrap_err().to_string().contains("did you mean \"scale\"?"));
    }

    intermediate_code_alone_is_refused_with_what_to_do(driver) {
        let error = MetraleRegistry::load_with(driver, 0, &[("m", LTO_ONLY)]).unwrap_err();
        assert_eq!(error.driver_error().unwrap().status, 209);
        let text = error.to_string();
        for part in ["sm_90 as LTO-IR", "only LTO-IR, which a driver does not link", "nvJitLink"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
}

#[test]
fn only_kernels_that_need_what_is_undefined_are_not_found() {
    let registry = load(RDC).unwrap();
    for kernel in ["good", "calls_leaf", "own", "variable"] {
        registry.function("m", kernel).unwrap_or_else(|error| panic!("{error}"));
    }
    for kernel in ["direct", "through"] {
        let text = registry.function("m", kernel).unwrap_err().to_string();
        assert!(text.contains("needs \"missing\""), "{text}");
    }
}

#[test]
fn a_kernel_of_other_code_in_a_fatbin_is_not_said_to_be_misspelled() {
    let cubin = include_bytes!("data/k_sm_90.cubin");
    let text = b".version 7.0\n.target sm_75\n.visible .entry only_in_text() { ret; }\n";
    let registry = load(leak(fatbin(&[(2, 90, 0x11, 0, cubin), (1, 75, 0x11, 0, text)]))).unwrap();
    let error = registry.function("m", "only_in_text").unwrap_err();
    assert!(matches!(&error, RegistryError::KernelNotLinked { undefined: None, .. }), "{error:?}");
    assert!(error.to_string().contains("not in the code that the driver took for this device"), "{error}");
}

/// A fatbin of entries: kind, architecture, flags, bytes when unpacked, payload.
fn fatbin(entries: &[(u16, u32, u64, u64, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for &(kind, sm, flags, unpacked, payload) in entries {
        let mut header = [0_u8; 64];
        header[0..2].copy_from_slice(&kind.to_le_bytes());
        header[4..8].copy_from_slice(&64_u32.to_le_bytes());
        header[8..16].copy_from_slice(&(payload.len() as u64).to_le_bytes());
        header[26..28].copy_from_slice(&7_u16.to_le_bytes());
        header[28..32].copy_from_slice(&sm.to_le_bytes());
        header[40..48].copy_from_slice(&flags.to_le_bytes());
        header[56..64].copy_from_slice(&unpacked.to_le_bytes());
        body.extend_from_slice(&header);
        body.extend_from_slice(payload);
    }
    let mut image = 0xba55_ed50_u32.to_le_bytes().to_vec();
    image.extend_from_slice(&[1, 0, 16, 0]);
    image.extend_from_slice(&(body.len() as u64).to_le_bytes());
    image.extend_from_slice(&body);
    image
}

#[test]
fn a_packed_fatbin_is_read_for_its_names() {
    let registry = load(PACKED).unwrap();
    let info = registry.modules().remove(0);
    assert_eq!((info.kernels.len(), info.notes), (1, vec![]));
    let kernel = &info.kernels[0];
    registry.function("m", kernel).unwrap();
    let error = registry.function("m", &kernel[1..]).unwrap_err().to_string();
    assert!(error.contains(&format!("did you mean {kernel:?}?")), "{error}");
}

#[test]
fn what_cannot_be_unpacked_is_said_not_to_be_checked() {
    let image =
        fatbin(&[(2, 90, 0x11, 0, include_bytes!("data/k_sm_90.cubin")), (1, 75, 0x8011, 64, b"no zstd")]);
    let notes = notes(&image);
    assert!(matches!(&notes[..], [ImageNote::NotChecked { entries: 1, .. }]), "{notes:?}");
    let text = notes[0].to_string();
    assert!(text.starts_with("names and parameters of 1 of its entries are not checked"), "{text}");
    assert!(text.contains("its Zstandard frame is broken"), "{text}");
}

#[test]
fn intermediate_code_beside_other_code_is_nothing_to_note() {
    let cubin: &[u8] = include_bytes!("data/k_sm_90.cubin");
    assert_eq!(notes(&fatbin(&[(8, 90, 0x11, 0, b"ir"), (2, 90, 0x11, 0, cubin)])), []);
    // Several of it alone are still of no use.
    let both = leak(fatbin(&[(8, 90, 0x11, 0, b"ir"), (8, 100, 0x11, 0, b"ir")]));
    let text = load(both).unwrap_err().to_string();
    assert!(text.contains("sm_90 as LTO-IR, sm_100 as LTO-IR") && text.contains("only LTO-IR"), "{text}");
}

#[test]
fn two_images_in_one_are_refused_before_the_driver_is_asked() {
    let text = STORE;
    let cubin: &[u8] = include_bytes!("data/k_sm_90.cubin");
    let at = text.len();
    for (parts, appended, at) in [
        ([text, b"".as_slice(), cubin], ImageKind::Cubin, at),
        ([text, b"\0", cubin], ImageKind::Cubin, at + 1),
        ([text, b"\0\0\0\0", cubin], ImageKind::Cubin, at + 4),
        ([text, b"", PACKED], ImageKind::Fatbin, at),
        ([text, b"\0", PACKED], ImageKind::Fatbin, at + 1),
        ([text, b"\0", text], ImageKind::Ptx, at + 1),
        ([text, b"\0\0// the other\n", text], ImageKind::Ptx, at + 2),
    ] {
        for mark in [b"".as_slice(), b"\xef\xbb\xbf"] {
            let trace = Arc::new(TraceDriver::new(sim()));
            let image = leak([mark, &parts.concat()].concat());
            let error = MetraleRegistry::load_with(trace.clone(), 0, &[("m", image)]).unwrap_err();
            let RegistryError::Image { reason, .. } = &error else { panic!("{error:?}") };
            assert_eq!(*reason, ImageError::TwoImages { appended, at: mark.len() + at });
            assert!(error.to_string().contains("two images in one"), "{error}");
            assert_eq!(trace.count(DriverFn::cuModuleLoadDataEx), 0);
        }
    }
    let twice = leak([text, text].concat());
    let RegistryError::Image { reason, .. } = load(twice).unwrap_err() else { panic!() };
    let lines = text.iter().filter(|&&byte| byte == b'\n').count() as u32;
    assert_eq!(reason, ImageError::TwoTexts { line: lines + 1 });
}

#[test]
fn what_is_noticed_and_not_refused_reaches_the_caller() {
    let head = ".version 7.0\n.target sm_75\n";
    assert_eq!(notes(format!("{head}.global .u32 g;\n").as_bytes()), [ImageNote::NoKernels]);
    assert_eq!(notes(format!("{head}.func f() {{ ret; }}\n").as_bytes()), [ImageNote::NoKernels]);
    let debug =
        ".version 7.0\n.target sm_75, debug\n.visible .entry k() { ret; }\n.section .debug_str { .b8 0 }\n";
    assert_eq!(notes(debug.as_bytes()), [ImageNote::Debug]);
    let global = format!("{head}.global .u32 g;\n");
    assert_eq!(notes(&fatbin(&[(1, 75, 0x11, 0, global.as_bytes())])), [ImageNote::NoKernels]);
    assert_eq!(notes(&fatbin(&[(1, 75, 0x11, 0, debug.as_bytes())])), [ImageNote::Debug]);
    assert_eq!(notes(STORE), []);
    // What the reader has no word for, and the driver takes.
    let odd = leak(format!("{head}.unheard of;\n.visible .entry k() {{ ret; }}\n").into_bytes());
    assert_eq!(load(odd).unwrap().modules()[0].flaws, ["line 3: .unheard is unknown here"]);
}
