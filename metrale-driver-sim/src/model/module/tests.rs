// SPDX-License-Identifier: MIT OR Apache-2.0
//! The loader against what an H200 answered, and by the same rules for other devices and drivers.

use std::collections::BTreeMap;

use metrale_driver_sys::{CUDA_ERROR_INVALID_PTX, CUDA_ERROR_UNSUPPORTED_PTX_VERSION};

use super::*;

const H200: Target = Target { compute_capability: (9, 0), driver_version: 13000 };

macro_rules! data {
    ($path:literal) => {
        include_bytes!(concat!("../../../tests/data/", $path))
    };
}

const TABLE: &str = include_str!("../../../tests/data/modules_on_h200.tsv");

/// The files of the table.
const FILES: &[(&str, &[u8])] = &[
    ("ptx/p01_baseline.ptx", data!("ptx/p01_baseline.ptx")),
    ("ptx/p02_crlf.ptx", data!("ptx/p02_crlf.ptx")),
    ("ptx/p04_trailing_nul.ptx", data!("ptx/p04_trailing_nul.ptx")),
    ("ptx/p05_embedded_nul.ptx", data!("ptx/p05_embedded_nul.ptx")),
    ("ptx/p07_one_line.ptx", data!("ptx/p07_one_line.ptx")),
    ("ptx/p07b_one_line_sm120a.ptx", data!("ptx/p07b_one_line_sm120a.ptx")),
    ("ptx/p09_target_trailing_comment.ptx", data!("ptx/p09_target_trailing_comment.ptx")),
    ("ptx/p10_debug_no_dwarf.ptx", data!("ptx/p10_debug_no_dwarf.ptx")),
    ("ptx/p10c_debug_nospace.ptx", data!("ptx/p10c_debug_nospace.ptx")),
    ("ptx/p11_texmode_independent.ptx", data!("ptx/p11_texmode_independent.ptx")),
    ("ptx/p12_v14_sm10_map_f64.ptx", data!("ptx/p12_v14_sm10_map_f64.ptx")),
    ("ptx/p13_v13_params_in_body.ptx", data!("ptx/p13_v13_params_in_body.ptx")),
    ("ptx/p14b_address_size_32.ptx", data!("ptx/p14b_address_size_32.ptx")),
    ("ptx/p15_two_targets.ptx", data!("ptx/p15_two_targets.ptx")),
    ("ptx/p17_names.ptx", data!("ptx/p17_names.ptx")),
    ("ptx/p18_linkage.ptx", data!("ptx/p18_linkage.ptx")),
    ("ptx/p19_globals_only_no_entry.ptx", data!("ptx/p19_globals_only_no_entry.ptx")),
    ("ptx/p19b_globals_only_sm75.ptx", data!("ptx/p19b_globals_only_sm75.ptx")),
    ("ptx/p21_sm90a_isa_too_old.ptx", data!("ptx/p21_sm90a_isa_too_old.ptx")),
    ("ptx/p21b_sm90a_ok.ptx", data!("ptx/p21b_sm90a_ok.ptx")),
    ("ptx/p22_sm100f.ptx", data!("ptx/p22_sm100f.ptx")),
    ("ptx/p22b_sm120f.ptx", data!("ptx/p22b_sm120f.ptx")),
    ("ptx/p22d_sm100f_isa87.ptx", data!("ptx/p22d_sm100f_isa87.ptx")),
    ("ptx/p23_sm101f_isa88.ptx", data!("ptx/p23_sm101f_isa88.ptx")),
    ("ptx/p23c_sm110f_isa90.ptx", data!("ptx/p23c_sm110f_isa90.ptx")),
    ("ptx/p24_isa_from_future.ptx", data!("ptx/p24_isa_from_future.ptx")),
    ("ptx/p25_cache_hash_prefix.ptx", data!("ptx/p25_cache_hash_prefix.ptx")),
    ("ptx/p26_nonascii_comment.ptx", data!("ptx/p26_nonascii_comment.ptx")),
    ("ptx/p27_nonascii_identifier.ptx", data!("ptx/p27_nonascii_identifier.ptx")),
    ("ptx/p28_entry_words_in_comments.ptx", data!("ptx/p28_entry_words_in_comments.ptx")),
    ("ptx/p29b_whitespace_only.ptx", data!("ptx/p29b_whitespace_only.ptx")),
    ("ptx/p29c_comment_only.ptx", data!("ptx/p29c_comment_only.ptx")),
    ("ptx/p30_large_array_before_entry.ptx", data!("ptx/p30_large_array_before_entry.ptx")),
    ("ptx/p31_attrs_between_params_and_body.ptx", data!("ptx/p31_attrs_between_params_and_body.ptx")),
    ("ptx/p33_indented_header.ptx", data!("ptx/p33_indented_header.ptx")),
    ("ptx/p34_uppercase_directive.ptx", data!("ptx/p34_uppercase_directive.ptx")),
    ("ptx/p36_split_across_lines.ptx", data!("ptx/p36_split_across_lines.ptx")),
    ("ptx/p37_duplicate_version.ptx", data!("ptx/p37_duplicate_version.ptx")),
    ("ptx/p38b_comment_between.ptx", data!("ptx/p38b_comment_between.ptx")),
    ("ptx/p39_version_two_digit_minor.ptx", data!("ptx/p39_version_two_digit_minor.ptx")),
    ("ptx/p41_unknown_target_option.ptx", data!("ptx/p41_unknown_target_option.ptx")),
    ("ptx/p42_unknown_sm.ptx", data!("ptx/p42_unknown_sm.ptx")),
    ("ptx/p44_utf16le.ptx", data!("ptx/p44_utf16le.ptx")),
    ("ptx/p45_formfeed_vtab.ptx", data!("ptx/p45_formfeed_vtab.ptx")),
    ("ptx/p47_duplicate_entry.ptx", data!("ptx/p47_duplicate_entry.ptx")),
    ("ptx/p48_semicolon_after_target.ptx", data!("ptx/p48_semicolon_after_target.ptx")),
    ("ptx/p50_sm_88_isa_90.ptx", data!("ptx/p50_sm_88_isa_90.ptx")),
    ("ptx/p51_handwritten_sm100a_isa92.ptx", data!("ptx/p51_handwritten_sm100a_isa92.ptx")),
    ("ptx/real/r01_isa13_module_regs.ptx", data!("ptx/real/r01_isa13_module_regs.ptx")),
    ("ptx/real/r02_isa14_tex_const.ptx", data!("ptx/real/r02_isa14_tex_const.ptx")),
    ("ptx/real/r04_isa31_shared_before_entry.ptx", data!("ptx/real/r04_isa31_shared_before_entry.ptx")),
    ("ptx/real/r05_isa65_const_initialisers.ptx", data!("ptx/real/r05_isa65_const_initialisers.ptx")),
    ("ptx/real/r07_isa82_globals_only.ptx", data!("ptx/real/r07_isa82_globals_only.ptx")),
    ("ptx/real/r08_isa87_triton_debug_sections.ptx", data!("ptx/real/r08_isa87_triton_debug_sections.ptx")),
    ("ptx/real/r10_isa92_handwritten_sm100a.ptx", data!("ptx/real/r10_isa92_handwritten_sm100a.ptx")),
    ("cubin/c_129_sm_100a.cubin", data!("cubin/c_129_sm_100a.cubin")),
    ("cubin/c_129_sm_101.cubin", data!("cubin/c_129_sm_101.cubin")),
    ("cubin/c_129_sm_121a.cubin", data!("cubin/c_129_sm_121a.cubin")),
    ("cubin/c_129_sm_50.cubin", data!("cubin/c_129_sm_50.cubin")),
    ("cubin/c_129_sm_75.cubin", data!("cubin/c_129_sm_75.cubin")),
    ("cubin/c_129_sm_87.cubin", data!("cubin/c_129_sm_87.cubin")),
    ("cubin/c_129_sm_90.cubin", data!("cubin/c_129_sm_90.cubin")),
    ("cubin/c_135_sm_100a.cubin", data!("cubin/c_135_sm_100a.cubin")),
    ("cubin/c_135_sm_100f.cubin", data!("cubin/c_135_sm_100f.cubin")),
    ("cubin/c_135_sm_120a.cubin", data!("cubin/c_135_sm_120a.cubin")),
    ("cubin/c_135_sm_121.cubin", data!("cubin/c_135_sm_121.cubin")),
    ("cubin/c_135_sm_75.cubin", data!("cubin/c_135_sm_75.cubin")),
    ("cubin/c_135_sm_87.cubin", data!("cubin/c_135_sm_87.cubin")),
    ("cubin/c_135_sm_90a.cubin", data!("cubin/c_135_sm_90a.cubin")),
    ("cubin/x02_elf_magic_only.bin", data!("cubin/x02_elf_magic_only.bin")),
    ("cubin/x03_elf_header_only.bin", data!("cubin/x03_elf_header_only.bin")),
    ("cubin/x05_elf_x86_64.bin", data!("cubin/x05_elf_x86_64.bin")),
    ("cubin/x06_elf32_class.bin", data!("cubin/x06_elf32_class.bin")),
    ("cubin/x08_unknown_abi_9.bin", data!("cubin/x08_unknown_abi_9.bin")),
    ("cubin/x09_fatbin_magic_only.bin", data!("cubin/x09_fatbin_magic_only.bin")),
];

fn file(name: &str) -> &'static [u8] {
    FILES.iter().find(|file| file.0 == name).unwrap_or_else(|| panic!("{name}")).1
}

/// A file as the driver was given it: with NULs behind, enough for what a header alone promises.
fn padded(name: &str) -> Vec<u8> {
    let mut image = file(name).to_vec();
    image.resize(image.len() + (16 << 10), 0);
    image
}

#[test]
fn every_image_is_answered_as_the_h200_did() {
    let mut answered = 0;
    for row in TABLE.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = row.split('\t').collect();
        let (name, status, lookups, log) =
            (columns[0], columns[1].parse::<i32>().unwrap(), columns[2], columns[3]);
        let image = padded(name);
        // SAFETY: text ends at its NUL, and no header here promises more than was padded.
        let bounded = unsafe { image_bytes(image.as_ptr().cast()) };
        for bytes in [bounded.unwrap(), file(name), &image] {
            match load(bytes, &H200) {
                Ok(module) => {
                    assert_eq!(status, 0, "{name}");
                    for lookup in lookups.split_whitespace() {
                        let (entry, found) = lookup.rsplit_once('=').unwrap();
                        let is_there = module.functions.iter().any(|function| function.name == entry);
                        assert_eq!(is_there, found == "0", "{name}: {entry}");
                    }
                    let found = lookups.split_whitespace().filter(|lookup| lookup.ends_with("=0")).count();
                    assert_eq!(module.functions.len(), found, "{name}");
                }
                Err(refusal) => {
                    assert_eq!(refusal.status, status, "{name}: {}", refusal.log);
                    assert!(!refusal.log.is_empty(), "{name}");
                    // The line the driver's assembler blames is the line blamed here.
                    if let Some(line) =
                        log.split("line ").nth(1).and_then(|rest| rest.split([';', ' ']).next())
                    {
                        let line = format!("line {}:", line.trim());
                        assert!(refusal.log.starts_with(&line), "{name}: {} for {log}", refusal.log);
                    }
                }
            }
        }
        answered += 1;
    }
    assert_eq!(answered, FILES.len());
}

#[test]
fn refusals_say_what_is_wrong() {
    let logs = BTreeMap::from([
        ("ptx/p21_sm90a_isa_too_old.ptx", "line 2: sm_90a needs PTX version 8.0, the text has 7.8"),
        ("ptx/p22_sm100f.ptx", "line 2: sm_100f does not run on compute capability 9.0"),
        ("ptx/p24_isa_from_future.ptx", "line 1: PTX version 10.7 is newer than this driver's, which is 9.0"),
        ("ptx/p41_unknown_target_option.ptx", "line 2: fastmath is not an option of .target"),
        ("ptx/p42_unknown_sm.ptx", "line 2: sm_95 is not an architecture this driver knows"),
        ("ptx/p47_duplicate_entry.ptx", "line 6: k is defined a second time, first on line 5"),
        ("cubin/c_129_sm_75.cubin", "a cubin for sm_75, which does not run on compute capability 9.0"),
        (
            "cubin/x05_elf_x86_64.bin",
            "the image is not recognized: an ELF file for machine 62, not 190 (CUDA)",
        ),
        ("cubin/x09_fatbin_magic_only.bin", "a fatbin: no image inside"),
        (
            "ptx/p44_utf16le.ptx",
            "the image is not recognized: this is UTF-16 text; a driver reads PTX in ASCII only",
        ),
    ]);
    for (name, log) in logs {
        assert_eq!(load(file(name), &H200).unwrap_err().log, log, "{name}");
    }
}

#[test]
fn the_h200s_status_table_of_modules() {
    let status = |image: &[u8]| load(image, &H200).map_or_else(|refusal| refusal.status, |_| 0);
    let text = |header: &str| format!("{header}\n.address_size 64\n.visible .entry k() {{ ret; }}\n");
    assert_eq!(status(b"hello"), 200);
    assert_eq!(status(b""), 200);
    assert_eq!(status(text(".version 9.9\n.target sm_90").as_bytes()), 222);
    assert_eq!(status(text(".version 8.6\n.target sm_100").as_bytes()), 218);
    assert_eq!(status(text(".version 8.0\n.target sm_90a").as_bytes()), 0);
    let marked = format!("\u{feff}{}", text(".version 8.0\n.target sm_90"));
    assert_eq!(status(marked.as_bytes()), 200);
    assert_eq!(status(text(".version 8.0\n.target sm_70, sm_90").as_bytes()), 0);
    let used = ".version 8.0\n.target sm_90\n.extern .func foo();\n.entry k() { call foo; ret; }\n";
    assert_eq!(status(used.as_bytes()), 218);
}

#[test]
fn devices_and_drivers_by_the_same_rules() {
    let status = |name: &str, compute_capability, driver_version| {
        let target = Target { compute_capability, driver_version };
        load(file(name), &target).map_or_else(|refusal| refusal.status, |_| 0)
    };
    assert_eq!(status("ptx/p07b_one_line_sm120a.ptx", (12, 0), 13000), 0);
    assert_eq!(status("ptx/p07b_one_line_sm120a.ptx", (12, 1), 13000), CUDA_ERROR_INVALID_PTX);
    assert_eq!(status("ptx/p22b_sm120f.ptx", (12, 1), 13000), 0);
    assert_eq!(status("ptx/p23_sm101f_isa88.ptx", (11, 0), 13000), 0);
    assert_eq!(status("ptx/p21b_sm90a_ok.ptx", (10, 0), 13000), CUDA_ERROR_INVALID_PTX);
    assert_eq!(status("ptx/p51_handwritten_sm100a_isa92.ptx", (10, 0), 13020), 0);
    assert_eq!(
        status("ptx/p51_handwritten_sm100a_isa92.ptx", (10, 0), 13010),
        CUDA_ERROR_UNSUPPORTED_PTX_VERSION
    );
    assert_eq!(status("ptx/p26_nonascii_comment.ptx", (9, 0), 13050), 0);
    assert_eq!(status("ptx/p27_nonascii_identifier.ptx", (9, 0), 13050), CUDA_ERROR_INVALID_PTX);
    assert_eq!(status("ptx/p01_baseline.ptx", (8, 9), 11040), CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    assert_eq!(status("ptx/p01_baseline.ptx", (8, 9), 11050), 0);
    assert_eq!(status("cubin/c_135_sm_121.cubin", (12, 1), 13000), 0);
    assert_eq!(status("cubin/c_135_sm_120a.cubin", (12, 1), 13000), CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert_eq!(status("cubin/c_129_sm_101.cubin", (11, 0), 13000), 0);
    assert_eq!(status("cubin/c_129_sm_50.cubin", (5, 2), 11080), 0);
    assert_eq!(status("cubin/x03_elf_header_only.bin", (10, 0), 13000), CUDA_ERROR_INVALID_IMAGE);
}

#[test]
fn limits_are_those_of_the_assembler() {
    let status = |text: String| load(text.as_bytes(), &H200).map_or_else(|refusal| refusal.status, |_| 0);
    let kernel = |version: &str, target: &str, parameter: u32, shared: u32| {
        format!(
            ".version {version}\n.target {target}\n.entry k(.param .align 4 .b8 p[{parameter}]) {{ .shared .b8 s[{shared}]; ret; }}\n"
        )
    };
    for (version, target, parameter, shared, expected) in [
        ("8.0", "sm_90", 4352, 49_152, 0),
        ("8.0", "sm_90", 4353, 16, CUDA_ERROR_INVALID_PTX),
        ("8.1", "sm_90", 32_764, 16, 0),
        ("8.1", "sm_90", 32_765, 16, CUDA_ERROR_INVALID_PTX),
        ("8.1", "sm_60", 4353, 16, CUDA_ERROR_INVALID_PTX),
        ("8.0", "sm_90", 4, 49_153, CUDA_ERROR_INVALID_PTX),
    ] {
        assert_eq!(
            status(kernel(version, target, parameter, shared)),
            expected,
            "{version} {target} {parameter}"
        );
    }
    let head = ".version 8.0\n.target sm_90\n";
    assert_eq!(status(format!("{head}.const .b8 c[65536];\n")), 0);
    assert_eq!(status(format!("{head}.const .b8 c[65537];\n")), CUDA_ERROR_INVALID_PTX);
    // What ptxas takes or refuses in texts of one line more.
    for (line, expected) in [
        (".foo bar;", 0),
        ("hello", CUDA_ERROR_INVALID_PTX),
        ("}", CUDA_ERROR_INVALID_PTX),
        (".entry k() { ret;", CUDA_ERROR_INVALID_PTX),
        (".entry k();\n.entry k() { ret; }", 0),
        (".func f();", CUDA_ERROR_INVALID_PTX),
        (".extern .func f();", 0),
        (".extern .global .u32 g;", 0),
        (".global .u32 g;\n.global .u32 g;", CUDA_ERROR_INVALID_PTX),
        (".extern .global .u32 g;\n.visible .global .u32 g;", 0),
        (".global .b8 z[];", CUDA_ERROR_INVALID_PTX),
        (".global .u64 a = {1};\n# 1 \"x\"", 0),
        ("/* open", CUDA_ERROR_INVALID_PTX),
        (".visible .func f() {ret;}\n.visible .func g();\n.alias g, f;", 0),
    ] {
        assert_eq!(status(format!("{head}{line}\n")), expected, "{line}");
    }
}

#[test]
fn kernels_and_variables_reach_the_model() {
    let text = data!("cubin/symbols.ptx");
    for image in [&text[..], data!("cubin/symbols_12.cubin"), data!("cubin/symbols_13.cubin")] {
        let module = load(image, &H200).unwrap();
        let function = |name: &str| module.functions.iter().find(|function| function.name == name).unwrap();
        assert_eq!(function("k").max_threads, Some(128));
        let sizes: Vec<usize> = function("k").parameters.iter().map(|parameter| parameter.bytes).collect();
        assert_eq!(sizes, [1, 8, 128, 2, 8]);
        assert_eq!(function("uses").static_shared_bytes, 112);
        let global = |name: &str| module.globals.iter().find(|global| global.name == name).unwrap();
        assert_eq!((global("zeroed").bytes, global("zeroed").align), (1000, 16));
        assert!(global("zeroed").initial.is_empty());
        assert_eq!(global("plain_global").initial, vec![7, 0, 0, 0].into());
        assert!(global("vis_const").constant && !global("vis_global").constant);
    }
}

#[test]
fn a_fatbin_gives_its_best_image() {
    let at = |image: &[u8], compute_capability| {
        let target = Target { compute_capability, driver_version: 13000 };
        load(image, &target).map(|module| module.functions[0].parameters[0].align)
    };
    // Only text has alignments: machine code on its own architecture, text elsewhere.
    for image in [&data!("fatbin/plain.fatbin")[..], data!("fatbin/packed.fatbin")] {
        assert_eq!(at(image, (9, 0)), Ok(1));
        assert_eq!(at(image, (8, 0)), Ok(8));
        assert_eq!(at(image, (12, 0)), Ok(8));
        let refusal = at(image, (7, 5)).unwrap_err();
        assert_eq!(refusal.status, CUDA_ERROR_NO_BINARY_FOR_GPU);
        assert!(refusal.log.ends_with("it holds PTX for sm_80, a cubin for sm_90"), "{}", refusal.log);
    }
    assert_eq!(at(data!("fatbin/lz4.fatbin"), (9, 0)), Ok(8));
    assert_eq!(at(data!("fatbin/exact.fatbin"), (9, 0)), Ok(1));
    assert_eq!(at(data!("fatbin/exact.fatbin"), (10, 0)).unwrap_err().status, CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert_eq!(at(data!("fatbin/family.fatbin"), (9, 0)).unwrap_err().status, CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert_eq!(at(data!("fatbin/family.fatbin"), (10, 3)), Ok(1));
    // Bounded by its own header, with other bytes behind.
    let mut image = data!("fatbin/plain.fatbin").to_vec();
    let bytes = image.len();
    image.extend_from_slice(&[0xaa; 64]);
    // SAFETY: a whole fatbin.
    assert_eq!(unsafe { image_bytes(image.as_ptr().cast()) }.unwrap().len(), bytes);
}

#[test]
fn a_fatbin_whose_sizes_lie_is_not_waited_for() {
    let mut image = data!("fatbin/plain.fatbin").to_vec();
    image[24..32].copy_from_slice(&0x10_0000_u64.to_le_bytes());
    let refusal = load(&image, &H200).unwrap_err();
    assert_eq!(refusal.status, CUDA_ERROR_INVALID_IMAGE);
    assert!(refusal.log.contains("may never return"), "{}", refusal.log);
    // A packed payload that is broken, or states what it does not hold.
    for at in [0x60, 16 + 56] {
        let mut image = data!("fatbin/lz4.fatbin").to_vec();
        image[at] ^= 0x55;
        assert!(load(&image, &H200).is_err(), "{at}");
    }
    let mut image = data!("fatbin/packed.fatbin").to_vec();
    image[16 + 56] ^= 1;
    let target = Target { compute_capability: (8, 0), driver_version: 13000 };
    assert_eq!(load(&image, &target).unwrap_err().status, CUDA_ERROR_INVALID_IMAGE);
}

#[test]
fn a_damaged_image_is_answered() {
    let targets =
        [(8, 0), (9, 0)].map(|compute_capability| Target { compute_capability, driver_version: 13000 });
    for image in
        [&data!("fatbin/lz4.fatbin")[..], data!("fatbin/packed.fatbin"), data!("cubin/c_135_sm_90a.cubin")]
    {
        for at in 0..image.len() {
            for change in [0x01, 0x80, 0xff] {
                let mut damaged = image.to_vec();
                damaged[at] ^= change;
                for target in &targets {
                    if let Err(refusal) = load(&damaged, target) {
                        assert!(matches!(refusal.status, 200 | 209 | 218 | 222 | 801 | 999), "{refusal:?}");
                    }
                }
            }
        }
    }
}

/// An H200 answers 200 to a fatbin behind a mark, and ends the process at an ELF with a section table out of bounds.
#[test]
fn binary_data_behind_a_byte_order_mark_is_no_text() {
    for binary in [
        &b"\x7fELF\x02\x01\x01\x33\x07\n.version 8.0\n.func f"[..],
        b"\x50\xed\x55\xba\n.version 8.0\n.func f",
    ] {
        let image = [b"\xef\xbb\xbf", binary, b"\0"].concat();
        // SAFETY: neither ELF nor fatbin by its first bytes, and it ends in NUL.
        let bytes = unsafe { image_bytes(image.as_ptr().cast()) }.unwrap();
        assert_eq!(bytes.len(), image.len() - 1);
        let refusal = load(bytes, &H200).unwrap_err();
        assert_eq!(refusal.status, CUDA_ERROR_INVALID_IMAGE);
        assert!(refusal.log.contains("binary data behind a UTF-8 byte order mark"), "{}", refusal.log);
    }
}

#[test]
fn a_null_pointer_is_refused() {
    // SAFETY: null is allowed.
    assert_eq!(unsafe { image_bytes(core::ptr::null()) }.unwrap_err().status, CUDA_ERROR_INVALID_VALUE);
}

/// An H200 takes the file (0) and does not find the kernel (500). That others of the file are found is modelled.
#[test]
fn kernels_that_are_not_linked_load() {
    let module = load(data!("cubin/k_rdc_extern.cubin"), &H200).unwrap();
    let linked = |module: &ModuleImage| {
        let kernels = module.functions.iter().filter(|kernel| kernel.is_linked);
        kernels.map(|kernel| kernel.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!((module.functions.len(), linked(&module)), (1, vec![]));
    let module = load(data!("cubin/rdc.cubin"), &H200).unwrap();
    assert_eq!(linked(&module), ["own", "variable", "calls_leaf", "good"]);
}

#[test]
fn intermediate_code_is_nothing_to_load() {
    let refusal = load(data!("fatbin/lto_only.fatbin"), &H200).unwrap_err();
    assert_eq!(refusal.status, CUDA_ERROR_NO_BINARY_FOR_GPU);
    assert!(refusal.log.ends_with("it holds LTO-IR for sm_90"), "{}", refusal.log);
}
