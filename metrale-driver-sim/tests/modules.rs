// SPDX-License-Identifier: MIT OR Apache-2.0
//! What becomes of modules, as an H200 with driver 580 answered, from both drivers.

use core::ffi::{c_char, c_void};
use std::ffi::CString;

use metrale_driver_sim::{ContextGuard, on_both_drivers};
use metrale_driver_sys::{
    CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CUDA_ERROR_NOT_FOUND, CUDA_SUCCESS,
    CUmodule, CUresult, DriverApi,
};

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("data/", $name)))),*]
    };
}

/// The files of the table.
const FILES: &[(&str, &[u8])] = files![
    "ptx/p01_baseline.ptx",
    "ptx/p02_crlf.ptx",
    "ptx/p04_trailing_nul.ptx",
    "ptx/p05_embedded_nul.ptx",
    "ptx/p07_one_line.ptx",
    "ptx/p07b_one_line_sm120a.ptx",
    "ptx/p09_target_trailing_comment.ptx",
    "ptx/p10_debug_no_dwarf.ptx",
    "ptx/p10c_debug_nospace.ptx",
    "ptx/p11_texmode_independent.ptx",
    "ptx/p12_v14_sm10_map_f64.ptx",
    "ptx/p13_v13_params_in_body.ptx",
    "ptx/p14b_address_size_32.ptx",
    "ptx/p15_two_targets.ptx",
    "ptx/p17_names.ptx",
    "ptx/p18_linkage.ptx",
    "ptx/p19_globals_only_no_entry.ptx",
    "ptx/p19b_globals_only_sm75.ptx",
    "ptx/p21_sm90a_isa_too_old.ptx",
    "ptx/p21b_sm90a_ok.ptx",
    "ptx/p22_sm100f.ptx",
    "ptx/p22b_sm120f.ptx",
    "ptx/p22d_sm100f_isa87.ptx",
    "ptx/p23_sm101f_isa88.ptx",
    "ptx/p23c_sm110f_isa90.ptx",
    "ptx/p24_isa_from_future.ptx",
    "ptx/p25_cache_hash_prefix.ptx",
    "ptx/p26_nonascii_comment.ptx",
    "ptx/p27_nonascii_identifier.ptx",
    "ptx/p28_entry_words_in_comments.ptx",
    "ptx/p29b_whitespace_only.ptx",
    "ptx/p29c_comment_only.ptx",
    "ptx/p30_large_array_before_entry.ptx",
    "ptx/p31_attrs_between_params_and_body.ptx",
    "ptx/p33_indented_header.ptx",
    "ptx/p34_uppercase_directive.ptx",
    "ptx/p36_split_across_lines.ptx",
    "ptx/p37_duplicate_version.ptx",
    "ptx/p38b_comment_between.ptx",
    "ptx/p39_version_two_digit_minor.ptx",
    "ptx/p41_unknown_target_option.ptx",
    "ptx/p42_unknown_sm.ptx",
    "ptx/p44_utf16le.ptx",
    "ptx/p45_formfeed_vtab.ptx",
    "ptx/p47_duplicate_entry.ptx",
    "ptx/p48_semicolon_after_target.ptx",
    "ptx/p50_sm_88_isa_90.ptx",
    "ptx/p51_handwritten_sm100a_isa92.ptx",
    "ptx/real/r01_isa13_module_regs.ptx",
    "ptx/real/r02_isa14_tex_const.ptx",
    "ptx/real/r04_isa31_shared_before_entry.ptx",
    "ptx/real/r05_isa65_const_initialisers.ptx",
    "ptx/real/r07_isa82_globals_only.ptx",
    "ptx/real/r08_isa87_triton_debug_sections.ptx",
    "ptx/real/r10_isa92_handwritten_sm100a.ptx",
    "cubin/c_129_sm_100a.cubin",
    "cubin/c_129_sm_101.cubin",
    "cubin/c_129_sm_121a.cubin",
    "cubin/c_129_sm_50.cubin",
    "cubin/c_129_sm_75.cubin",
    "cubin/c_129_sm_87.cubin",
    "cubin/c_129_sm_90.cubin",
    "cubin/c_135_sm_100a.cubin",
    "cubin/c_135_sm_100f.cubin",
    "cubin/c_135_sm_120a.cubin",
    "cubin/c_135_sm_121.cubin",
    "cubin/c_135_sm_75.cubin",
    "cubin/c_135_sm_87.cubin",
    "cubin/c_135_sm_90a.cubin",
    "cubin/x02_elf_magic_only.bin",
    "cubin/x03_elf_header_only.bin",
    "cubin/x05_elf_x86_64.bin",
    "cubin/x06_elf32_class.bin",
    "cubin/x08_unknown_abi_9.bin",
    "cubin/x09_fatbin_magic_only.bin",
];

/// A file with NULs behind: text needs one, and a cut-off ELF keeps the reader within bounds.
fn padded(file: &[u8]) -> Vec<u8> {
    let mut image = file.to_vec();
    image.resize(image.len() + (16 << 10), 0);
    image
}

/// Loads an image: the module, or the status and the error log.
fn load(driver: &dyn DriverApi, image: &[u8]) -> Result<CUmodule, (CUresult, String)> {
    let mut module = 0;
    let mut log = vec![0_u8; 4096];
    let mut options = [CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values: [*mut c_void; 2] =
        [log.as_mut_ptr().cast(), core::ptr::without_provenance_mut(log.len())];
    // SAFETY: the image ends in NULs and is longer than its headers say; there are two options and two values, and the
    // log's buffer has the size that the second of them says.
    let status = unsafe {
        driver.cuModuleLoadDataEx(
            &mut module,
            image.as_ptr().cast(),
            2,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
    let log = String::from_utf8_lossy(&log[..end]).into_owned();
    if status == CUDA_SUCCESS { Ok(module) } else { Err((status, log)) }
}

fn lookup(driver: &dyn DriverApi, module: CUmodule, name: &str) -> CUresult {
    let name = CString::new(name).unwrap();
    let mut function = 0;
    // SAFETY: the result pointer is a local, and the name ends in NUL.
    unsafe { driver.cuModuleGetFunction(&mut function, module, name.as_ptr()) }
}

fn global(driver: &dyn DriverApi, module: CUmodule, name: &str) -> Result<(u64, usize), CUresult> {
    let name = CString::new(name).unwrap();
    let name: *const c_char = name.as_ptr();
    let (mut address, mut bytes) = (0, 0);
    // SAFETY: the result pointers are locals, and the name ends in NUL.
    let status = unsafe { driver.cuModuleGetGlobal_v2(&mut address, &mut bytes, module, name) };
    if status == CUDA_SUCCESS { Ok((address, bytes)) } else { Err(status) }
}

fn unload(driver: &dyn DriverApi, module: CUmodule) {
    // SAFETY: the module was loaded here and nothing of it runs.
    assert_eq!(unsafe { driver.cuModuleUnload(module) }, CUDA_SUCCESS);
}

fn device_bytes(driver: &dyn DriverApi, address: u64, bytes: usize) -> Vec<u8> {
    let mut host = vec![0xee; bytes];
    // SAFETY: the buffer has as many bytes, and so has the variable.
    let status = unsafe { driver.cuMemcpyDtoH_v2(host.as_mut_ptr().cast(), address, bytes) };
    assert_eq!(status, CUDA_SUCCESS);
    host
}

on_both_drivers! {
    every_image_is_answered_as_the_h200_did(driver) {
        let _context = ContextGuard::new(&driver, 0).unwrap();
        let mut answered = 0;
        let rows = include_str!("data/modules_on_h200.tsv").lines().filter(|line| !line.starts_with('#'));
        for row in rows {
            let columns: Vec<&str> = row.split('\t').collect();
            let (name, status) = (columns[0], columns[1].parse::<CUresult>().unwrap());
            let (_, file) = FILES.iter().find(|file| file.0 == name).unwrap();
            match load(&*driver, &padded(file)) {
                Ok(module) => {
                    assert_eq!(status, CUDA_SUCCESS, "{name}");
                    for found in columns[2].split_whitespace() {
                        let (entry, expected) = found.rsplit_once('=').unwrap();
                        let expected: CUresult = expected.parse().unwrap();
                        assert_eq!(lookup(&*driver, module, entry), expected, "{name}: {entry}");
                    }
                    unload(&*driver, module);
                }
                Err((refused, log)) => {
                    assert_eq!(refused, status, "{name}: {log}");
                    // A driver that has no sentence for a status is silent; where it blames a line, we do too.
                    if let Some(line) = columns[3].split("line ").nth(1) {
                        let line = line.split([';', ' ']).next().unwrap();
                        assert!(log.contains(&format!("line {line}")), "{name}: {log}");
                    }
                }
            }
            answered += 1;
        }
        assert_eq!(answered, FILES.len());
    }

    variables_of_text_and_machine_code(driver) {
        let _context = ContextGuard::new(&driver, 0).unwrap();
        let images: [&[u8]; 3] = [
            include_bytes!("data/cubin/symbols.ptx"),
            include_bytes!("data/cubin/symbols_12.cubin"),
            include_bytes!("data/cubin/symbols_13.cubin"),
        ];
        for image in images {
            let module = load(&*driver, &padded(image)).unwrap();
            for kernel in ["k", "uses", "calls"] {
                assert_eq!(lookup(&*driver, module, kernel), CUDA_SUCCESS);
            }
            assert_eq!(lookup(&*driver, module, "f"), CUDA_ERROR_NOT_FOUND);
            let (address, bytes) = global(&*driver, module, "vis_global").unwrap();
            assert_eq!(bytes, 24);
            assert_eq!(device_bytes(&*driver, address, 4), [1, 2, 3, 0]);
            let (address, bytes) = global(&*driver, module, "zeroed").unwrap();
            assert_eq!(device_bytes(&*driver, address, bytes), vec![0; 1000]);
            let (address, bytes) = global(&*driver, module, "vis_const").unwrap();
            assert_eq!(device_bytes(&*driver, address, bytes), [5, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0]);
            assert_eq!(global(&*driver, module, "weak_global").map(|found| found.1), Ok(4));
            assert_eq!(global(&*driver, module, "missing"), Err(CUDA_ERROR_NOT_FOUND));
            unload(&*driver, module);
        }
    }

    a_variable_without_linkage_is_found(driver) {
        let _context = ContextGuard::new(&driver, 0).unwrap();
        let module = load(&*driver, &padded(include_bytes!("data/cubin/symbols.ptx"))).unwrap();
        let (address, bytes) = global(&*driver, module, "plain_global").unwrap();
        assert_eq!(device_bytes(&*driver, address, bytes), [7, 0, 0, 0]);
        unload(&*driver, module);
    }

    fatbins_plain_and_packed(driver) {
        let _context = ContextGuard::new(&driver, 0).unwrap();
        let images: [&[u8]; 4] = [
            include_bytes!("data/fatbin/plain.fatbin"),
            include_bytes!("data/fatbin/packed.fatbin"),
            include_bytes!("data/fatbin/lz4.fatbin"),
            include_bytes!("data/fatbin/exact.fatbin"),
        ];
        for image in images {
            let module = load(&*driver, &padded(image)).unwrap();
            assert_eq!(lookup(&*driver, module, "k"), CUDA_SUCCESS);
            let (address, bytes) = global(&*driver, module, "scale").unwrap();
            assert_eq!(device_bytes(&*driver, address, bytes), [7, 0, 0, 0]);
            unload(&*driver, module);
        }
    }
}
