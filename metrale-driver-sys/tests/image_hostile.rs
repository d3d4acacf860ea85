// SPDX-License-Identifier: MIT OR Apache-2.0
//! Input of any kind: every reader answers, none panics, and no answer points outside the input.

use metrale_driver_sys::image::cubin::{Cubin, ElfHeader};
use metrale_driver_sys::image::fatbin::{Fatbin, FatbinHeader};
use metrale_driver_sys::image::ptx::{MAX_FLAWS, Ptx, Text};
use metrale_driver_sys::image::{Code, ImageKind};
use proptest::prelude::*;

const SEEDS: &[&[u8]] = &[
    include_bytes!("data/cubin/symbols_12.cubin"),
    include_bytes!("data/cubin/c_135_sm_90a.cubin"),
    include_bytes!("data/cubin/c_129_sm_50.cubin"),
    include_bytes!("data/cubin/x03_elf_header_only.bin"),
    include_bytes!("data/fatbin/plain.fatbin"),
    include_bytes!("data/fatbin/packed.fatbin"),
    include_bytes!("data/rdc/rdc.cubin"),
    include_bytes!("data/fatbin/lto_only.fatbin"),
    include_bytes!("data/cubin/symbols.ptx"),
    include_bytes!("data/ptx/p31_attrs_between_params_and_body.ptx"),
    include_bytes!("data/ptx/p17_names.ptx"),
    include_bytes!("data/ptx/p25_cache_hash_prefix.ptx"),
    include_bytes!("data/ptx/real/r05_isa65_const_initialisers.ptx"),
    include_bytes!("data/ptx/real/r08_isa87_triton_debug_sections.ptx"),
];

/// Reads with everything there is, whatever the bytes claim to be.
fn read_all(image: &[u8]) {
    let _ = ImageKind::of(image).to_string();
    let ptx = Ptx::read(image);
    assert!(ptx.flaws.len() <= MAX_FLAWS + 4);
    let _: Vec<String> = ptx.flaws.iter().map(ToString::to_string).collect();
    let _ = ptx.entries_after_nul();
    assert!(Text::of(image).appended().is_none_or(|(_, at)| at < image.len()));
    Code::each_in(image, |code| drop(format!("{code:?}")));
    for entry in ptx.entries() {
        for pair in entry.parameters.windows(2) {
            assert!(pair[0].offset + pair[0].bytes <= pair[1].offset);
        }
    }
    if let Ok(header) = ElfHeader::read(image) {
        let _ = (header.sm(), header.tables_end(), header.image_bytes(image));
    }
    match Cubin::read(image) {
        Ok(cubin) => assert!(cubin.image_bytes <= image.len() as u64),
        Err(error) => drop(error.to_string()),
    }
    if let Ok(header) = FatbinHeader::read(image) {
        let _ = header.image_bytes();
    }
    match Fatbin::read(image) {
        Ok(fatbin) => assert!(fatbin.header.image_bytes() <= image.len() as u64),
        Err(error) => drop(error.to_string()),
    }
}

#[test]
fn every_beginning_of_every_file() {
    for seed in SEEDS {
        let step = (seed.len() / 400).max(1);
        for end in (0..=seed.len()).step_by(step) {
            read_all(&seed[..end]);
        }
    }
}

#[test]
fn deep_nesting_takes_no_stack() {
    let open = "{".repeat(200_000);
    read_all(format!(".version 8.0\n.target sm_90\n.global .b8 a[2] = {open}").as_bytes());
    read_all(format!(".version 8.0\n.target sm_90\n.entry k {open}").as_bytes());
    let open = "(".repeat(200_000);
    read_all(format!(".version 8.0\n.target sm_90\n.func {open}").as_bytes());
    read_all(format!(".version 8.0\n.target sm_90\n.global .u64 a = {open}").as_bytes());
}

#[test]
fn a_list_with_gaps_takes_no_memory() {
    let text = ".version 8.0\n.target sm_90\n.global .b64 a[3][1152921504606846976] = {{1},{2},{3}};\n\
        .global .b64 b[18446744073709551615][18446744073709551615] = {{1},{2},{3}};\n";
    read_all(text.as_bytes());
}

/// Pieces of PTX in any order: closer to the grammar's edges than random bytes come.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        ".version",
        " 7.5\n",
        ".target",
        " sm_90a",
        ",",
        "debug",
        ".address_size",
        " 64",
        ".visible",
        ".extern",
        ".weak",
        ".entry",
        ".func",
        " k",
        " k",
        " f",
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        "[4]",
        "[18446744073709551615]",
        "=",
        ";",
        ".param",
        ".global",
        ".const",
        ".shared",
        ".align",
        " 8",
        " 3",
        ".u64",
        ".b8",
        ".v4",
        ".f32",
        ".ptr",
        " 0x10U",
        "-",
        "1.5",
        "0f3F800000",
        "\"text\"",
        "\"open",
        "//",
        "/*",
        "*/",
        "\n",
        "#",
        ".section",
        ".alias",
        ".pragma",
        ".maxntid",
        ".reqntid",
        ".attribute",
        "(.managed)",
        "<",
        ">",
        ".texref",
        "\u{b}",
        "é",
        "\0",
    ]);
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.join(" "))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(image in prop::collection::vec(any::<u8>(), 0..512)) {
        read_all(&image);
    }

    #[test]
    fn any_bytes_behind_a_magic(
        magic in prop::sample::select(vec![&b"\x7fELF\x02\x01\x01\x41\x08"[..], b"\x7fELF\x02\x01\x01\x33\x07", b"P\xedU\xba\x01\0\x10\0"]),
        rest in prop::collection::vec(any::<u8>(), 0..512),
    ) {
        read_all(&[magic, &rest].concat());
    }

    #[test]
    fn real_files_with_some_bytes_changed(
        seed in prop::sample::select(SEEDS),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..24),
        end in any::<prop::sample::Index>(),
    ) {
        let mut image = seed.to_vec();
        for (at, value) in changes {
            let at = at.index(image.len());
            image[at] = value;
        }
        read_all(&image);
        image.truncate(end.index(image.len()) + 1);
        read_all(&image);
    }

    #[test]
    fn real_headers_with_some_numbers_changed(
        seed in prop::sample::select(&SEEDS[..8]),
        changes in prop::collection::vec(
            (0_usize..64, prop::sample::select(vec![0_u64, 1, 63, 64, 65, 1 << 31, u32::MAX as u64, 1 << 63, u64::MAX - 1, u64::MAX])),
            1..4,
        ),
    ) {
        let mut image = seed.to_vec();
        for (at, value) in changes {
            for (place, byte) in image.iter_mut().skip(at).zip(value.to_le_bytes()) {
                *place = byte;
            }
        }
        read_all(&image);
    }

    #[test]
    fn any_pieces_of_ptx(text in pieces()) {
        read_all(text.as_bytes());
    }
}
