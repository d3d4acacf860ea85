// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cubins of two assemblers, fatbins of CUDA 13.5, what people hand over by mistake, and which architecture runs what.

use metrale_driver_sys::image::arch::{
    ComputeCapability, IsaVersion, Portability, SmTarget, cubin_runs_on, ptx_runs_on,
};
use metrale_driver_sys::image::cubin::{Cubin, CubinAbi, CubinError, ElfHeader};
use metrale_driver_sys::image::fatbin::{EntryKind, Fatbin, FatbinError, FatbinHeader, Packing};
use metrale_driver_sys::image::ptx::Ptx;
use metrale_driver_sys::image::{Code, ImageKind};

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("data/cubin/", $name)))),*]
    };
}

const FILES: &[(&str, &[u8])] = files![
    "c_129_sm_100a.cubin",
    "c_129_sm_101.cubin",
    "c_129_sm_121a.cubin",
    "c_129_sm_50.cubin",
    "c_129_sm_75.cubin",
    "c_129_sm_87.cubin",
    "c_129_sm_90.cubin",
    "c_129_sm_90a.cubin",
    "c_135_sm_100a.cubin",
    "c_135_sm_100f.cubin",
    "c_135_sm_120a.cubin",
    "c_135_sm_121.cubin",
    "c_135_sm_75.cubin",
    "c_135_sm_87.cubin",
    "c_135_sm_90a.cubin",
    "symbols_12.cubin",
    "symbols_13.cubin",
    "x02_elf_magic_only.bin",
    "x03_elf_header_only.bin",
    "x05_elf_x86_64.bin",
    "x06_elf32_class.bin",
    "x08_unknown_abi_9.bin",
    "x09_fatbin_magic_only.bin",
    "x11_gzip.bin",
    "x12_path_as_data.bin",
    "x14_spirv.bin",
    "x15_llvm_bitcode.bin",
];

fn file(name: &str) -> &'static [u8] {
    FILES.iter().find(|file| file.0 == name).unwrap_or_else(|| panic!("{name}")).1
}

fn rows(table: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    table.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t').collect())
}

/// What is handed over, as kind and bytes.
fn all_code(image: &[u8]) -> Vec<(bool, Vec<u8>)> {
    let mut all = Vec::new();
    Code::each_in(image, |code| {
        all.push(match code {
            Code::Ptx(text) => (true, text.to_vec()),
            Code::Cubin(cubin) => (false, cubin.to_vec()),
        });
    });
    all
}

fn hex(text: &str) -> u32 {
    u32::from_str_radix(text.trim_start_matches("0x"), 16).unwrap()
}

#[test]
fn cubins_of_both_generations() {
    let mut read = 0;
    for row in rows(include_str!("data/cubin/EXPECTED.tsv")).filter(|row| row[0].starts_with("c_")) {
        let (name, image) = (row[0], file(row[0]));
        let cubin = Cubin::read(image).unwrap_or_else(|error| panic!("{name}: {error}"));
        let abi = if row[1] == "0x33" { CubinAbi::V7 } else { CubinAbi::V8 };
        assert_eq!(cubin.header.abi, abi, "{name}");
        assert_eq!(cubin.header.version, hex(row[3]), "{name}");
        assert_eq!(cubin.header.flags, hex(row[4]), "{name}");
        let sm = cubin.sm.unwrap();
        assert_eq!(SmTarget::portable(sm.number).to_string(), row[6], "{name}");
        assert_eq!(sm.portability == Portability::Exact, row[7] != "no", "{name}");
        assert_eq!(cubin.kernels.iter().map(|kernel| kernel.name).collect::<Vec<_>>(), ["k"], "{name}");
        assert_eq!(cubin.kernels[0].parameters.len(), 1, "{name}");
        assert_eq!(cubin.image_bytes, image.len() as u64, "{name}");
        assert_eq!(ImageKind::of(image), ImageKind::Cubin, "{name}");
        read += 1;
    }
    assert_eq!(read, 14);
    // The older generation marks the `a` in another bit.
    assert_eq!(Cubin::read(file("c_129_sm_90a.cubin")).unwrap().sm.unwrap().to_string(), "sm_90a");
}

#[test]
fn what_is_no_cubin_says_what_it_is() {
    let read = |name: &str| Cubin::read(file(name)).unwrap_err();
    assert_eq!(read("x02_elf_magic_only.bin"), CubinError::Truncated { bytes: 4 });
    assert_eq!(
        read("x03_elf_header_only.bin"),
        CubinError::PastEnd { part: "the section table".into(), end: 4594 + 5 * 56, bytes: 64 }
    );
    assert_eq!(read("x05_elf_x86_64.bin"), CubinError::ForeignMachine { machine: 62 });
    assert_eq!(read("x06_elf32_class.bin"), CubinError::Not64Bit);
    let unknown = Cubin::read(file("x08_unknown_abi_9.bin")).unwrap();
    assert_eq!(unknown.header.abi, CubinAbi::Unknown { os_abi: 0x41, version: 9 });
    assert_eq!(unknown.sm, None);
    assert_eq!(unknown.kernels.len(), 1);
    let cut = &file("c_129_sm_90.cubin")[..2800];
    assert!(
        matches!(Cubin::read(cut), Err(CubinError::PastEnd { bytes: 2800, .. })),
        "{:?}",
        Cubin::read(cut)
    );
}

#[test]
fn the_kinds_people_hand_over() {
    let kinds: [(&str, ImageKind); 9] = [
        ("x02_elf_magic_only.bin", ImageKind::TruncatedElf),
        ("x03_elf_header_only.bin", ImageKind::Cubin),
        ("x05_elf_x86_64.bin", ImageKind::ForeignElf { machine: 62, class: 2 }),
        ("x06_elf32_class.bin", ImageKind::ForeignElf { machine: 190, class: 1 }),
        ("x09_fatbin_magic_only.bin", ImageKind::Fatbin),
        ("x11_gzip.bin", ImageKind::Gzip),
        ("x12_path_as_data.bin", ImageKind::Path),
        ("x14_spirv.bin", ImageKind::SpirV),
        ("x15_llvm_bitcode.bin", ImageKind::LlvmBitcode),
    ];
    for (name, kind) in kinds {
        assert_eq!(ImageKind::of(file(name)), kind, "{name}");
    }
    let kinds: [(&[u8], ImageKind); 18] = [
        (b"", ImageKind::Empty),
        (b" \n\t\0", ImageKind::Empty),
        (b"hello", ImageKind::Text),
        (b"// placeholder\n", ImageKind::Text),
        (b"<!DOCTYPE html><html>", ImageKind::Html),
        (b"\n<html>", ImageKind::Html),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", ImageKind::GitLfsPointer),
        (b"\xff\xfe.\0v\0", ImageKind::Utf16Text),
        (b".\0v\0e\0r\0", ImageKind::Utf16Text),
        (b"PK\x03\x04rest", ImageKind::Zip),
        (b"!<arch>\nrest", ImageKind::Archive),
        (b"; ModuleID = 'k'\n", ImageKind::LlvmText),
        (b"#include <cuda.h>\n__global__ void k() {}\n", ImageKind::CudaSource),
        (b"C:\\kernels\\add.ptx", ImageKind::Path),
        (b"kernels/add.cubin\n", ImageKind::Path),
        (b"\xb1CbF\x01\0\0\0", ImageKind::FatbinWrapper),
        (b"\x01\x02\x03\x04\x05", ImageKind::Unknown),
        (b".TARGET SM_75", ImageKind::Ptx),
    ];
    for (image, kind) in kinds {
        assert_eq!(ImageKind::of(image), kind, "{image:?}");
    }
    assert_eq!(ImageKind::Html.to_string(), "an HTML page, not a module image");
    assert_eq!(
        ImageKind::ForeignElf { machine: 62, class: 2 }.to_string(),
        "an ELF file for machine 62 (x86-64), not 190 (CUDA)"
    );
}

/// An ELF header that says `class` and `abi`, whose section table lies far behind its end, with a directive among its
/// bytes.
fn elf_with_a_directive(class: u8, abi: [u8; 2]) -> Vec<u8> {
    let mut elf = vec![0_u8; 64];
    elf[..9].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1, 1, abi[0], abi[1]]);
    elf[9..14].copy_from_slice(b".func");
    elf[18..20].copy_from_slice(&190_u16.to_le_bytes());
    elf[40..48].copy_from_slice(&0x0100_0000_0000_u64.to_le_bytes());
    elf[58..62].copy_from_slice(&[64, 0, 10, 0]);
    elf
}

#[test]
fn behind_a_byte_order_mark_the_bytes_decide_and_not_a_directive_among_them() {
    const MARK: &[u8] = b"\xef\xbb\xbf";
    let fatbin = [0xba55_ed50_u32.to_le_bytes().as_slice(), b".func\0\0\x01\0\0\0xx"].concat();
    let wrapper = [0x4662_43b1_u32.to_le_bytes().as_slice(), b"\n.entry k"].concat();
    let binaries = [
        elf_with_a_directive(2, [0x33, 7]),
        elf_with_a_directive(2, [0x41, 8]),
        elf_with_a_directive(1, [0x33, 7]),
        b"\x7fELF\n.func".to_vec(),
        file("c_129_sm_90.cubin").to_vec(),
        fatbin,
        wrapper,
        b"\x01\n.visible .entry k".to_vec(),
        b"\xc3\xa4\n.func f".to_vec(),
    ];
    for binary in &binaries {
        for marks in 1..4 {
            let image = [MARK.repeat(marks), binary.clone()].concat();
            assert_eq!(ImageKind::of(&image), ImageKind::MarkedBinary, "{marks} marks, then {binary:?}");
            assert!(!ImageKind::of(&image).is_loadable());
            assert_eq!(all_code(&image), [], "{marks} marks, then {binary:?}");
        }
    }
    // Text stays what it is, and what has a name of its own keeps it.
    let marked = |rest: &[u8]| ImageKind::of(&[MARK, rest].concat());
    assert_eq!(marked(b"\n// by hand\n.version 8.0"), ImageKind::Ptx);
    assert_eq!(marked(b"<html>"), ImageKind::Html);
    assert_eq!(marked(b"\x1f\x8b.func"), ImageKind::Gzip);
    assert_eq!(marked(b"\0\n"), ImageKind::Empty);
    assert_eq!(marked(b""), ImageKind::Empty);
    // Any number of marks is read without a call for each.
    assert_eq!(ImageKind::of(&MARK.repeat(1 << 20)), ImageKind::MarkedBinary);
    // Without a mark, too, a text begins with a byte of text.
    assert_eq!(ImageKind::of(b"\x01\n.func f"), ImageKind::Unknown);
}

#[test]
fn kernels_and_variables_are_those_of_the_source() {
    let ptx = Ptx::read(include_bytes!("data/cubin/symbols.ptx"));
    for name in ["symbols_12.cubin", "symbols_13.cubin"] {
        let cubin = Cubin::read(file(name)).unwrap();
        let k = cubin.kernels.iter().find(|kernel| kernel.name == "k").unwrap();
        let placed: Vec<_> = k.parameters.iter().map(|p| (p.offset, p.bytes)).collect();
        // The assembler aligns in the constant bank, where the parameters of sm_90 begin at 0x210: 0x210 + 48 is the
        // multiple of 64 that the third parameter asks for.
        assert_eq!(placed, [(0, 1), (8, 8), (48, 128), (176, 2), (184, 8)], "{name}");
        let sizes: Vec<_> = ptx.entry("k").unwrap().parameters.iter().map(|p| p.bytes).collect();
        assert_eq!(placed.iter().map(|p| p.1).collect::<Vec<_>>(), sizes, "{name}");
        assert_eq!((k.required_threads, k.static_shared_bytes), (Some([64, 2, 1]), 0), "{name}");
        let uses = cubin.kernels.iter().find(|kernel| kernel.name == "uses").unwrap();
        assert_eq!((uses.max_threads, uses.static_shared_bytes), (Some([128, 1, 1]), 112), "{name}");
        assert_eq!(ptx.entry("uses").unwrap().static_shared_bytes, 112);
        assert_eq!(cubin.kernels.len(), 3, "{name}");

        let global = |name: &str| cubin.globals.iter().find(|global| global.name == name).unwrap().clone();
        assert_eq!(global("vis_global").bytes, 24);
        assert_eq!(global("vis_global").initial.unwrap()[..4], [1, 2, 3, 0]);
        assert_eq!(global("plain_global").initial, Some(&[7, 0, 0, 0][..]));
        assert_eq!((global("zeroed").bytes, global("zeroed").initial), (1000, None));
        assert!(global("vis_const").is_constant);
        assert_eq!(global("vis_const").initial, Some(&[5, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0][..]));
        let mut names: Vec<_> = cubin.globals.iter().map(|global| (global.name, global.bytes)).collect();
        let mut of_text: Vec<_> = ptx.globals().map(|global| (global.name, global.bytes)).collect();
        names.sort_unstable();
        of_text.sort_unstable();
        assert_eq!(names, of_text, "{name}");
    }
}

#[test]
fn a_cubin_bounds_itself_by_its_header_then_its_tables() {
    for (name, image) in FILES.iter().filter(|file| file.0.ends_with(".cubin")) {
        let mut longer = image.to_vec();
        longer.extend_from_slice(&[0xaa; 100]);
        let header = ElfHeader::read(&longer[..64]).unwrap();
        let tables_end = usize::try_from(header.tables_end()).unwrap();
        assert_eq!(header.image_bytes(&longer[..tables_end - 1]), None, "{name}");
        assert_eq!(header.image_bytes(&longer[..tables_end]), Some(image.len() as u64), "{name}");
    }
}

const PLAIN: &[u8] = include_bytes!("data/fatbin/plain.fatbin");
const PACKED: &[u8] = include_bytes!("data/fatbin/packed.fatbin");
const LZ4: &[u8] = include_bytes!("data/fatbin/lz4.fatbin");
const EXACT: &[u8] = include_bytes!("data/fatbin/exact.fatbin");
const FAMILY: &[u8] = include_bytes!("data/fatbin/family.fatbin");
const PTX: &[u8] = include_bytes!("data/fatbin/k.ptx");

#[test]
fn a_fatbin_opens_into_its_images() {
    let fatbin = Fatbin::read(PLAIN).unwrap();
    assert_eq!(fatbin.header.image_bytes(), PLAIN.len() as u64);
    let [ptx, elf] = fatbin.entries[..] else { panic!("{:?}", fatbin.entries) };
    assert_eq!((ptx.kind, ptx.sm, ptx.packing), (EntryKind::Ptx, SmTarget::portable(80), Packing::Plain));
    assert_eq!(ptx.version, IsaVersion::new(7, 8));
    assert!(ptx.payload.starts_with(PTX));
    assert!(Ptx::read(ptx.payload).entry("k").is_some());
    assert_eq!((elf.kind, elf.sm, elf.packing), (EntryKind::Elf, SmTarget::portable(90), Packing::Plain));
    assert_eq!(Cubin::read(elf.payload).unwrap().sm, Some(SmTarget::portable(90)));
    // Bytes behind the container do not matter.
    let longer = [PLAIN, &[0xaa; 9]].concat();
    assert_eq!(Fatbin::read(&longer).unwrap().entries.len(), 2);

    let packed = Fatbin::read(PACKED).unwrap();
    assert_eq!(packed.entries.iter().map(|entry| entry.packing).collect::<Vec<_>>(), [Packing::Zstd; 2]);
    assert_eq!(packed.entries[0].unpacked_bytes, PTX.len() as u64 + 1);
    assert!(packed.entries[0].payload.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]));
    assert_eq!(packed.entries[0].payload.len(), 0xab);
    assert_eq!(Fatbin::read(LZ4).unwrap().entries[0].packing, Packing::Lz4);
    assert_eq!(Fatbin::read(EXACT).unwrap().entries[0].sm.to_string(), "sm_90a");
    assert_eq!(Fatbin::read(FAMILY).unwrap().entries[0].sm.to_string(), "sm_100f");
    assert_eq!(Fatbin::read(FAMILY).unwrap().entries[1].sm.to_string(), "sm_100f");
}

#[test]
fn the_code_of_an_image_is_all_that_can_be_read() {
    let fatbin = Fatbin::read(PLAIN).unwrap();
    let [ptx, elf] = fatbin.entries[..] else { panic!("{:?}", fatbin.entries) };
    assert_eq!(all_code(PLAIN), [(true, ptx.payload.to_vec()), (false, elf.payload.to_vec())]);
    assert_eq!(all_code(elf.payload), [(false, elf.payload.to_vec())]);
    for packed in [PACKED, LZ4] {
        let fatbin = Fatbin::read(packed).unwrap();
        let is_read = |packing| packing == Packing::Plain || cfg!(feature = "unpack");
        let read = fatbin.entries.iter().filter(|entry| is_read(entry.packing)).count();
        assert_eq!(all_code(packed).len(), read);
        #[cfg(feature = "unpack")]
        assert_eq!(all_code(packed)[0], (true, [PTX, b"\0"].concat()));
    }
    assert_eq!(
        all_code(&[b"\xef\xbb\xbf", PTX].concat()),
        [(true, PTX.to_vec())],
        "a driver accepts no mark"
    );
    assert_eq!(all_code(&PLAIN[..PLAIN.len() - 1]), [], "a fatbin that is not whole");
}

#[test]
fn a_fatbin_whose_sizes_lie_is_refused() {
    assert_eq!(Fatbin::read(file("x09_fatbin_magic_only.bin")), Err(FatbinError::NoImage));
    assert_eq!(Fatbin::read(&PLAIN[..12]), Err(FatbinError::Truncated { bytes: 12 }));
    let end = PLAIN.len() as u64;
    assert_eq!(Fatbin::read(&PLAIN[..1000]), Err(FatbinError::PastEnd { end, bytes: 1000 }));
    let with = |at: usize, value: &[u8]| {
        let mut image = PLAIN.to_vec();
        image[at..at + value.len()].copy_from_slice(value);
        image
    };
    let huge = with(8, &u64::MAX.to_le_bytes());
    assert_eq!(FatbinHeader::read(&huge).unwrap().image_bytes(), u64::MAX);
    assert_eq!(Fatbin::read(&huge), Err(FatbinError::PastEnd { end: u64::MAX, bytes: end }));
    // The first entry's payload past the container; its header larger than everything; its header too small.
    let past = with(24, &0x10_0000_u64.to_le_bytes());
    let past = Fatbin::read(&past);
    assert_eq!(past, Err(FatbinError::EntryPastEnd { index: 0, end: 16 + 80 + 0x10_0000, bytes: end }));
    let past = with(20, &u32::MAX.to_le_bytes());
    let past = Fatbin::read(&past);
    assert!(matches!(past, Err(FatbinError::EntryPastEnd { index: 0, .. })), "{past:?}");
    assert_eq!(Fatbin::read(&with(20, &[0; 4])), Err(FatbinError::BadHeaderSize { bytes: 0 }));
    assert_eq!(Fatbin::read(&with(6, &[0; 2])), Err(FatbinError::BadHeaderSize { bytes: 0 }));
    assert_eq!(Fatbin::read(&with(0, b"\xb1CbF")), Err(FatbinError::Wrapper));
}

#[test]
fn architectures_need_their_language_version() {
    for row in rows(include_str!("data/ptx_min_isa_by_target.tsv")).filter(|row| row[0].starts_with("sm_")) {
        let target: SmTarget = row[0].parse().unwrap();
        assert_eq!(target.to_string(), row[0]);
        assert_eq!(target.lowest_isa().unwrap().to_string(), row[1], "{target}");
    }
    for unknown in ["sm_95", "sm_87a", "sm_90f"] {
        assert!(!unknown.parse::<SmTarget>().unwrap().is_known(), "{unknown}");
    }
    for word in ["sm_", "sm_a", "sm_+90", "sm_90b", "90", "sm_99999999999", "sm_90A"] {
        assert!(word.parse::<SmTarget>().is_err(), "{word}");
    }
    assert_eq!("compute_90a".parse::<SmTarget>().unwrap().to_string(), "sm_90a");
}

#[test]
fn drivers_take_language_versions_up_to_theirs() {
    for row in rows(include_str!("data/ptx_isa_by_toolkit.tsv")) {
        let driver: i32 = row[0].parse().unwrap();
        assert_eq!(IsaVersion::highest_of_driver(driver).unwrap().to_string(), row[1], "{driver}");
        assert_eq!(IsaVersion::highest_of_driver(driver + 1).unwrap().to_string(), row[1], "{driver}");
    }
    // As ptxas 12.9 and 13.5 take or refuse them.
    for (version, exists) in
        [((7, 8), true), ((7, 9), false), ((7, 10), true), ((7, 11), true), ((7, 80), false)]
    {
        assert_eq!(IsaVersion::new(version.0, version.1).exists(), exists, "{version:?}");
    }
    for gap in [(0, 9), (1, 6), (2, 4), (3, 3), (4, 4), (6, 6), (8, 9)] {
        assert!(!IsaVersion::new(gap.0, gap.1).exists(), "{gap:?}");
    }
    assert_eq!(IsaVersion::highest_of_driver(2020), None);
    assert_eq!(IsaVersion::highest_of_driver(i32::MAX), Some(IsaVersion::new(9, 5)));
}

#[test]
fn ptx_runs_where_the_assemblers_compile_it() {
    let devices_of = |toolkit: &str| match toolkit {
        "13.5" => &[75, 80, 86, 87, 88, 89, 90, 100, 103, 107, 110, 120, 121][..],
        _ => &[50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 120, 121][..],
    };
    let mut decided = 0;
    for row in rows(include_str!("data/ptx_target_matrix.tsv")).filter(|row| row[0] != "toolkit") {
        let target: SmTarget = row[1].parse().unwrap();
        // An assembler too old for the target says nothing about devices.
        if row[4] == "isa_too_new" {
            continue;
        }
        let runs_on: Vec<u32> = row[3].split(',').map(|number| number.parse().unwrap()).collect();
        for &device in devices_of(row[0]) {
            let capability = SmTarget::portable(device).compute_capability();
            let expected = runs_on.contains(&device);
            assert_eq!(ptx_runs_on(target, capability), expected, "{target} on {capability} by {}", row[0]);
            decided += 1;
        }
    }
    assert_eq!(decided, 26 * 13 + 24 * 19);
    let runs = |target: &str, major, minor| {
        ptx_runs_on(target.parse().unwrap(), ComputeCapability::new(major, minor))
    };
    assert!(runs("sm_100f", 10, 3) && runs("sm_100f", 10, 7) && !runs("sm_100f", 11, 0));
    assert!(!runs("sm_100f", 10, 1) && !runs("sm_103f", 10, 0) && !runs("sm_100f", 12, 0));
    assert!(
        runs("sm_120f", 12, 1) && runs("sm_101f", 11, 0) && runs("sm_110f", 11, 0) && runs("sm_110f", 10, 1)
    );
    assert!(runs("sm_90a", 9, 0) && !runs("sm_90a", 10, 0) && !runs("sm_120a", 12, 1));
}

#[test]
fn cubins_run_where_the_table_says() {
    for row in rows(include_str!("data/cubin_compat.tsv")) {
        let target: SmTarget = format!("sm_{}", row[0].replace('.', "")).parse().unwrap();
        let (major, minor) = row[1].split_once('.').unwrap();
        let device = ComputeCapability::new(major.parse().unwrap(), minor.parse().unwrap());
        let expected = row[2].starts_with("yes") || row[2].starts_with("same chip");
        assert_eq!(cubin_runs_on(target, device), expected, "{target} on {device}");
    }
}

/// Compiled with `-rdc` from `rdc/rdc.ptx`, which says what each kernel calls.
#[test]
fn kernels_that_need_what_nothing_defines_say_what_it_is() {
    let cubin = Cubin::read(include_bytes!("data/rdc/rdc.cubin")).unwrap();
    let undefined: Vec<_> = cubin.kernels.iter().map(|kernel| (kernel.name, kernel.undefined)).collect();
    assert_eq!(
        undefined,
        [
            ("own", None),
            ("variable", None),
            ("calls_leaf", None),
            ("through", Some("missing")),
            ("direct", Some("missing")),
            ("good", None),
        ]
    );
    let cubin = Cubin::read(include_bytes!("data/rdc/k_rdc_extern.cubin")).unwrap();
    assert_eq!((cubin.kernels[0].name, cubin.kernels[0].undefined), ("scale", Some("_Z6helperf")));
    // Linked files have nothing undefined.
    for name in ["symbols_12.cubin", "symbols_13.cubin", "c_135_sm_90a.cubin", "c_129_sm_50.cubin"] {
        let cubin = Cubin::read(file(name)).unwrap();
        assert!(cubin.kernels.iter().all(|kernel| kernel.undefined.is_none()), "{name}");
    }
}

#[test]
fn intermediate_code_for_the_linker_is_told_apart() {
    let image = include_bytes!("data/fatbin/lto_only.fatbin");
    let fatbin = Fatbin::read(image).unwrap();
    let entries: Vec<_> = fatbin.entries.iter().map(|entry| (entry.kind, entry.sm.to_string())).collect();
    assert_eq!(entries, [(EntryKind::LtoIr, "sm_90".to_owned())]);
    assert_eq!(all_code(image), []);
}
