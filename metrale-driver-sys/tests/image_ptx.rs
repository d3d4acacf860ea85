// SPDX-License-Identifier: MIT OR Apache-2.0
//! PTX texts made after public reports, and the directive lines of real ones, against what the assemblers say of them.

use std::collections::{BTreeMap, BTreeSet};

use metrale_driver_sys::image::ImageKind;
use metrale_driver_sys::image::arch::{IsaVersion, SmTarget};
use metrale_driver_sys::image::ptx::{FlawKind, FunctionKind, Header, Initial, Linkage, Ptx, StateSpace};

macro_rules! texts {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_bytes!(concat!("data/ptx/", $name, ".ptx")))),*]
    };
}

/// Every text of the table, by its name there.
const TEXTS: &[(&str, &[u8])] = texts![
    "p01_baseline",
    "p02_crlf",
    "p04_trailing_nul",
    "p05_embedded_nul",
    "p07_one_line",
    "p07b_one_line_sm120a",
    "p09_target_trailing_comment",
    "p10_debug_no_dwarf",
    "p10c_debug_nospace",
    "p11_texmode_independent",
    "p12_v14_sm10_map_f64",
    "p13_v13_params_in_body",
    "p14b_address_size_32",
    "p15_two_targets",
    "p17_names",
    "p18_linkage",
    "p19_globals_only_no_entry",
    "p19b_globals_only_sm75",
    "p21_sm90a_isa_too_old",
    "p21b_sm90a_ok",
    "p22_sm100f",
    "p22b_sm120f",
    "p22d_sm100f_isa87",
    "p23_sm101f_isa88",
    "p23c_sm110f_isa90",
    "p24_isa_from_future",
    "p25_cache_hash_prefix",
    "p26_nonascii_comment",
    "p27_nonascii_identifier",
    "p28_entry_words_in_comments",
    "p29b_whitespace_only",
    "p29c_comment_only",
    "p30_large_array_before_entry",
    "p31_attrs_between_params_and_body",
    "p33_indented_header",
    "p34_uppercase_directive",
    "p36_split_across_lines",
    "p37_duplicate_version",
    "p38b_comment_between",
    "p39_version_two_digit_minor",
    "p41_unknown_target_option",
    "p42_unknown_sm",
    "p44_utf16le",
    "p45_formfeed_vtab",
    "p47_duplicate_entry",
    "p48_semicolon_after_target",
    "p50_sm_88_isa_90",
    "p51_handwritten_sm100a_isa92",
    "p53_entry_name_prefixes",
];

/// Directive lines of real texts.
const REAL: &[(&str, &[u8])] = texts![
    "real/r01_isa13_module_regs",
    "real/r02_isa14_tex_const",
    "real/r04_isa31_shared_before_entry",
    "real/r05_isa65_const_initialisers",
    "real/r07_isa82_globals_only",
    "real/r08_isa87_triton_debug_sections",
    "real/r10_isa92_handwritten_sm100a",
];

fn text(name: &str) -> &'static [u8] {
    TEXTS.iter().chain(REAL).find(|text| text.0 == name).unwrap_or_else(|| panic!("{name}")).1
}

fn read(name: &str) -> Ptx<'static> {
    Ptx::read(text(name))
}

fn rows(table: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    table.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t').collect())
}

fn names(list: &str) -> BTreeSet<&str> {
    list.split(',').map(str::trim).filter(|name| !matches!(*name, "-" | "(none)" | "")).collect()
}

/// The text behind `key` up to the next of `ends`, where the prose has it.
fn after<'a>(prose: &'a str, key: &str, ends: &[char]) -> Option<&'a str> {
    let rest = &prose[prose.find(key)? + key.len()..];
    Some(&rest[..rest.find(ends).unwrap_or(rest.len())])
}

#[test]
fn every_row_has_its_text_and_the_other_way_round() {
    let in_table: BTreeSet<&str> = rows(include_str!("data/ptx/EXPECTED.tsv")).map(|row| row[0]).collect();
    let here: BTreeSet<&str> = TEXTS.iter().map(|text| text.0).collect();
    assert_eq!(here, in_table);
    let in_table: BTreeSet<&str> =
        rows(include_str!("data/ptx/real/EXPECTED.tsv")).map(|row| row[0]).collect();
    let here: BTreeSet<String> =
        REAL.iter().map(|text| format!("{}.ptx", &text.0["real/".len()..])).collect();
    assert_eq!(here, in_table.into_iter().map(str::to_owned).collect());
}

#[test]
fn what_an_assembler_compiled_is_what_is_read() {
    let mut compiled = 0;
    for row in rows(include_str!("data/ptx/EXPECTED.tsv")) {
        let (name, by_12, by_13, entries, prose) = (row[0], row[2], row[3], names(row[4]), row[5]);
        if entries.is_empty() {
            continue;
        }
        compiled += 1;
        let ptx = read(name);
        assert_eq!(ptx.entries().map(|entry| entry.name).collect::<BTreeSet<_>>(), entries, "{name}");
        let allowed = |kind: &FlawKind| matches!(kind, FlawKind::NonAsciiComment);
        assert!(ptx.flaws.iter().all(|flaw| allowed(&flaw.kind)), "{name}: {:?}", ptx.flaws);
        assert!(by_12.starts_with("accept") || by_13.starts_with("accept"), "{name}");
        // What the prose says of the header, where it does.
        if let Some(isa) = after(prose, "isa ", &[';', ' ', ')']).filter(|isa| !isa.starts_with('(')) {
            assert_eq!(ptx.header.version.unwrap().to_string(), isa, "{name}");
        }
        if let Some(target) = after(prose, "target ", &[';', ' ']) {
            assert_eq!(ptx.header.target().unwrap().to_string(), target, "{name}");
        }
        if let Some(options) = after(prose, "options [", &[']']) {
            assert_eq!(ptx.header.options, [options], "{name}");
        }
    }
    assert_eq!(compiled, 28);
}

#[test]
fn the_directive_lines_of_real_texts() {
    for row in rows(include_str!("data/ptx/real/EXPECTED.tsv")) {
        let name = format!("real/{}", row[0].trim_end_matches(".ptx"));
        let ptx = read(&name);
        assert_eq!(ptx.flaws, [], "{name}");
        assert_eq!(Header::read(text(&name)), ptx.header, "{name}");
        assert_eq!(ptx.header.version.unwrap().to_string(), row[1], "{name}");
        assert_eq!(ptx.header.target().unwrap().to_string(), row[2], "{name}");
        assert_eq!(ptx.header.options.join(","), row[3], "{name}");
        let address_size = if row[4] == "absent" { None } else { Some(row[4].parse().unwrap()) };
        assert_eq!(ptx.header.address_size, address_size, "{name}");
        assert_eq!(ptx.entries().map(|entry| entry.name).collect::<BTreeSet<_>>(), names(row[5]), "{name}");
    }
}

#[test]
fn what_is_refused_says_where_and_why() {
    let found = |text: &str| text.to_owned();
    let cases: [(&str, u32, FlawKind); 14] = [
        ("p15_two_targets", 5, FlawKind::MisplacedHeader { directive: found(".target") }),
        ("p25_cache_hash_prefix", 1, FlawKind::LeadingBytes(4)),
        ("p26_nonascii_comment", 1, FlawKind::NonAsciiComment),
        ("p27_nonascii_identifier", 5, FlawKind::NonAscii(0xc3)),
        ("p29b_whitespace_only", 3, FlawKind::MissingVersion { found: String::new() }),
        ("p29c_comment_only", 2, FlawKind::MissingVersion { found: String::new() }),
        ("p34_uppercase_directive", 1, FlawKind::MissingVersion { found: found(".VERSION") }),
        ("p36_split_across_lines", 1, FlawKind::MissingVersion { found: found("7.5") }),
        ("p37_duplicate_version", 2, FlawKind::MissingTarget { found: found(".version") }),
        ("p44_utf16le", 1, FlawKind::NonAscii(0xff)),
        ("p45_formfeed_vtab", 2, FlawKind::StrayByte(0x0b)),
        ("p45_formfeed_vtab", 3, FlawKind::StrayByte(0x0c)),
        ("p47_duplicate_entry", 6, FlawKind::Duplicate { name: found("k"), first_line: 5 }),
        ("p48_semicolon_after_target", 1, FlawKind::MissingTarget { found: found(";") }),
    ];
    for (name, line, kind) in cases {
        let flaws = read(name).flaws;
        assert!(flaws.iter().any(|flaw| flaw.line == line && flaw.kind == kind), "{name}: {flaws:?}");
    }
    let message = read("p34_uppercase_directive").flaws[0].to_string();
    assert!(message.ends_with("directives are lower case"), "{message}");
    // Facts, no flaws: the driver's business.
    assert_eq!(read("p14b_address_size_32").header.address_size, Some(32));
    assert_eq!(read("p41_unknown_target_option").header.options, ["fastmath"]);
    assert_eq!(read("p42_unknown_sm").header.target(), Some(SmTarget::portable(95)));
    assert!(!SmTarget::portable(95).is_known());
    let debug = read("p10_debug_no_dwarf");
    assert!(debug.header.has_option("debug") && !debug.has_sections);
    assert!(read("p10c_debug_nospace").has_sections);
    assert_eq!(read("p24_isa_from_future").header.version, Some(IsaVersion::new(10, 7)));
    assert!(read("p39_version_two_digit_minor").header.version.unwrap() > IsaVersion::new(7, 8));
}

#[test]
fn a_text_with_a_mistake_in_its_header_still_gives_the_rest() {
    for name in ["p36_split_across_lines", "p37_duplicate_version", "p48_semicolon_after_target"] {
        let ptx = read(name);
        assert_eq!(ptx.header.version, Some(IsaVersion::new(7, 5)), "{name}");
        assert_eq!(ptx.header.target(), Some(SmTarget::portable(75)), "{name}");
        assert_eq!(ptx.header.address_size, Some(64), "{name}");
        assert!(ptx.entry("k").is_some(), "{name}");
    }
    let ptx = read("p25_cache_hash_prefix");
    assert_eq!(ptx.header.target(), Some(SmTarget::portable(52)));
    assert!(ptx.entry("k").is_some());
}

#[test]
fn a_byte_order_mark_and_a_missing_nul_do_not_matter_to_the_reader() {
    let mut marked = b"\xef\xbb\xbf".to_vec();
    marked.extend_from_slice(text("p01_baseline"));
    let ptx = Ptx::read(&marked);
    assert_eq!(ptx.flaws.len(), 1);
    assert_eq!(ptx.flaws[0].kind, FlawKind::ByteOrderMark);
    assert_eq!(ImageKind::of(&marked), ImageKind::Ptx);
    assert!(ptx.entry("k").is_some());
    marked.extend_from_slice(&[0; 3]);
    assert!(Ptx::read(&marked).after_nul.is_empty());
}

#[test]
fn what_follows_the_nul_is_told_apart() {
    let ptx = read("p05_embedded_nul");
    assert_eq!(ptx.after_nul.len(), 37);
    assert_eq!(ptx.entries_after_nul(), ["after_nul"]);
    assert!(ptx.entry("after_nul").is_none());
    assert!(read("p04_trailing_nul").after_nul.is_empty());
}

#[test]
fn linkage_functions_and_externs() {
    let ptx = read("p18_linkage");
    let all: Vec<_> = ptx
        .functions
        .iter()
        .map(|function| (function.name, function.kind, function.linkage, function.is_defined))
        .collect();
    assert_eq!(
        all,
        [
            ("__omp_offloading_ab_12_main_l9", FunctionKind::Entry, Linkage::Weak, true),
            ("vis", FunctionKind::Entry, Linkage::Visible, true),
            ("plain", FunctionKind::Entry, Linkage::Internal, true),
            ("vprintf", FunctionKind::Func, Linkage::Extern, false),
            ("helper", FunctionKind::Func, Linkage::Internal, true),
            ("dev_visible", FunctionKind::Func, Linkage::Visible, true),
        ]
    );
    assert!(ptx.undefined_functions.is_empty());
}

#[test]
fn an_undefined_function_counts_when_it_is_used() {
    let head = ".version 8.0\n.target sm_90\n.extern .func foo();\n.extern .func bar();\n";
    let text = format!("{head}.func baz() {{ ret; }}\n.visible .entry k() {{ call foo; call baz; ret; }}\n");
    assert_eq!(Ptx::read(text.as_bytes()).undefined_functions, ["foo"]);
    let defined = format!("{text}.func foo() {{ ret; }}\n");
    assert!(Ptx::read(defined.as_bytes()).undefined_functions.is_empty());
    let alias = format!("{head}.func foo2();\n.func g() {{ ret; }}\n.alias foo2, g;\n");
    assert!(Ptx::read(alias.as_bytes()).undefined_functions.is_empty());
    // A declaration that is not even extern must be kept.
    let promised = b".version 8.0\n.target sm_90\n.func f();\n.visible .entry k() { ret; }\n";
    assert_eq!(Ptx::read(promised).undefined_functions, ["f"]);
}

#[test]
fn parameters_lie_one_behind_the_other_by_their_alignment() {
    let text = b".version 8.0\n.target sm_90\n.visible .entry k(.param .u8 a, .param .u64 b, \
        .param .align 64 .b8 d[128], .param .u16 e, .param .u64 .ptr .global .align 1 p) { ret; }\n";
    let ptx = Ptx::read(text);
    let placed: Vec<_> =
        ptx.entry("k").unwrap().parameters.iter().map(|p| (p.name, p.offset, p.bytes, p.align)).collect();
    assert_eq!(
        placed,
        [("a", 0, 1, 1), ("b", 8, 8, 8), ("d", 64, 128, 64), ("e", 192, 2, 2), ("p", 200, 8, 8)]
    );
    let old = read("p13_v13_params_in_body");
    let placed: Vec<_> = old.functions[0].parameters.iter().map(|p| (p.offset, p.bytes)).collect();
    assert_eq!(placed, [(0, 8), (8, 4)]);
    assert_eq!(read("real/r02_isa14_tex_const").functions[0].parameters.len(), 4);
    assert_eq!(read("real/r08_isa87_triton_debug_sections").functions[0].parameters[4].offset, 32);
}

#[test]
fn threads_and_shared_memory() {
    let ptx = read("p31_attrs_between_params_and_body");
    assert_eq!(ptx.entry("k").unwrap().max_threads, Some([128, 1, 1]));
    assert_eq!(ptx.entry("r").unwrap().required_threads, Some([128, 1, 1]));
    assert_eq!(read("real/r10_isa92_handwritten_sm100a").functions[0].static_shared_bytes, 131_200);
    // A line number in front of the declaration does not hide it.
    let text = ".version 8.0\n.target sm_90\n.entry k() {\n.loc 1 1 0\n.shared .align 4 .b8 s[12];\n$L: .loc 1 2 3, function_name $L, inlined_at 1 1 0\n.shared .u32 t;\nret; }\n";
    assert_eq!(Ptx::read(text.as_bytes()).functions[0].static_shared_bytes, 16);
    // A module-level array counts for the kernels that use it, also through a function; sizes as ptxas reports them.
    let text = ".version 8.0\n.target sm_90\n.shared .align 4 .b8 a[6];\n.shared .align 8 .b8 b[100];\n\
        .extern .shared .align 16 .b8 dynamic[];\n\
        .func f() { .shared .u32 own; st.shared.u32 [a], %r1; ret; }\n\
        .visible .entry none() { ret; }\n\
        .visible .entry uses() { mov.u32 %r1, b; mov.u32 %r2, dynamic; ret; }\n\
        .visible .entry calls() { call f; st.shared.u32 [%r1], %r1; ret; }\n";
    let ptx = Ptx::read(text.as_bytes());
    assert_eq!(ptx.flaws, []);
    let shared: BTreeMap<_, _> = ptx.entries().map(|entry| (entry.name, entry.static_shared_bytes)).collect();
    assert_eq!(shared, BTreeMap::from([("none", 0), ("uses", 112), ("calls", 16)]));
}

#[test]
fn variables_with_their_sizes_and_values() {
    let ptx = read("p19_globals_only_no_entry");
    assert_eq!(ptx.entries().count(), 0);
    let globals: Vec<_> = ptx.globals().map(|global| (global.name, global.bytes, &global.initial)).collect();
    assert_eq!(
        globals,
        [
            ("_lookup", 8, &Initial::Bytes(vec![255, 255, 255, 255, 2, 0, 0, 0].into())),
            ("exponent_max", 4, &Initial::Bytes(vec![31, 0, 0, 0].into())),
        ]
    );
    let ptx = read("real/r05_isa65_const_initialisers");
    let globals: Vec<_> = ptx.globals().map(|global| (global.name, global.space, global.bytes)).collect();
    assert_eq!(
        globals,
        [("x", StateSpace::Const, 8), ("y", StateSpace::Const, 32), ("constparams", StateSpace::Const, 32)]
    );
    assert_eq!(
        ptx.variables[1].initial,
        Initial::Bytes([4_u64, 5, 6].iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>().into())
    );
    assert_eq!(ptx.variables[2].initial, Initial::Symbolic("x".into()));
    assert_eq!(read("real/r07_isa82_globals_only").globals().count(), 5);
    assert_eq!(read("p30_large_array_before_entry").globals().next().unwrap().bytes, 3600);
    // The texture is no data, the array is.
    let old = read("real/r02_isa14_tex_const");
    assert_eq!(old.globals().map(|global| global.name).collect::<Vec<_>>(), ["__cudart_i2opi_f"]);
}

#[test]
fn values_in_every_notation() {
    let text = ".version 8.0\n.target sm_90\n.global .s8 neg[2] = {-1, 300};\n.global .u32 nested[2][3] = {{1,2},{3}};\n\
        .global .u32 a, b = 7;\n.global .v4 .f32 v = {1.0, 2.0, 0f40400000, 4.0};\n.global .u32 h[4] = {0x10U, 0b11, 017, 5U};\n\
        .global .u64 p[2] = {a, a+4};\n.global .u64 q = generic(a);\n.global .f32 m = -1.5;\n.global .b8 open[] = {1,2,3};\n\
        .visible .global .attribute(.managed) .align 16 .u32 managed;\n.global .u16 open2[][2] = {{1},{2},{3}};\n";
    let ptx = Ptx::read(text.as_bytes());
    assert_eq!(ptx.flaws, []);
    let of = |name: &str| ptx.variables.iter().find(|variable| variable.name == name).unwrap();
    let bytes =
        |words: &mut dyn Iterator<Item = [u8; 4]>| Initial::Bytes(words.flatten().collect::<Vec<_>>().into());
    let words = |words: &[u32]| bytes(&mut words.iter().map(|word| word.to_le_bytes()));
    let floats = |floats: &[f32]| bytes(&mut floats.iter().map(|float| float.to_le_bytes()));
    assert_eq!(of("neg").initial, Initial::Bytes(vec![0xff, 44].into()));
    assert_eq!(of("nested").initial, words(&[1, 2, 0, 3]));
    assert_eq!(of("nested").bytes, 24);
    assert_eq!(of("a").initial, Initial::Zero);
    assert_eq!(of("b").initial, words(&[7]));
    assert_eq!(of("v").initial, floats(&[1.0, 2.0, 3.0, 4.0]));
    assert_eq!((of("v").bytes, of("v").align), (16, 16));
    assert_eq!(of("h").initial, words(&[16, 3, 15, 5]));
    assert_eq!(of("p").initial, Initial::Symbolic("a".into()));
    assert_eq!(of("q").initial, Initial::Symbolic("generic".into()));
    assert_eq!(of("m").initial, floats(&[-1.5]));
    assert_eq!(of("open").bytes, 3);
    assert_eq!(of("open2").bytes, 12);
    assert_eq!((of("managed").is_managed, of("managed").align), (true, 16));
}

#[test]
fn sizes_beyond_all_measure_are_flaws() {
    let text = b".version 8.0\n.target sm_90\n.global .b64 c[18446744073709551615];\n.global .b8 z[0];\n\
        .visible .entry k(.param .align 8 .b8 a[18446744073709551615], .param .u64 b) { ret; }\n";
    let ptx = Ptx::read(text);
    let kinds: Vec<_> = ptx.flaws.iter().map(|flaw| (flaw.line, flaw.kind.clone())).collect();
    assert_eq!(
        kinds,
        [
            (3, FlawKind::SizeOverflow { name: "c".into() }),
            (4, FlawKind::IncompleteType { name: "z".into() }),
            (5, FlawKind::SizeOverflow { name: "b".into() }),
        ]
    );
}

/// What ptxas 13.5 takes and refuses.
#[test]
fn a_functions_declaration_needs_no_semicolon_before_a_directive() {
    let old = ".version 2.0\n.target sm_20\n.func (.reg .b32 r) f (.reg .b32 x)\n.extern .func g (.reg .b32 x)\n\
        .func (.reg .b32 r) f (.reg .b32 x) { mov.b32 r, x; ret; }\n.entry k() { call f; ret; }\n";
    let ptx = Ptx::read(old.as_bytes());
    assert_eq!(ptx.flaws, []);
    let functions: Vec<_> =
        ptx.functions.iter().map(|function| (function.name, function.is_defined)).collect();
    assert_eq!(functions, [("f", true), ("g", false), ("k", true)]);
    let head = ".version 8.0\n.target sm_90\n.address_size 64\n";
    for (text, is_taken) in [
        (".extern .func foo(.param .b32 x)\n.entry j() { ret; }\n", true),
        (".extern .func foo\n.entry j() { ret; }\n", true),
        (".extern .func foo() .noreturn\n.entry j() { ret; }\n", true),
        (".extern .func foo()\n.global .u32 g;\n.entry j() { ret; }\n", true),
        (".extern .func foo()\n.section .debug_str { }\n.entry j() { ret; }\n", true),
        (".entry j() { ret; }\n.extern .func foo()\n", true),
        (".extern .func foo() foo2\n.entry j() { ret; }\n", false),
        (".entry k()\n.entry k() { ret; }\n", false),
        (".entry k() .maxntid 32\n.entry k() .maxntid 32 { ret; }\n", false),
        (".extern .func foo();;\n.entry j() { ret; }\n", false),
    ] {
        let flaws = Ptx::read(format!("{head}{text}").as_bytes()).flaws;
        assert_eq!(flaws.is_empty(), is_taken, "{text}: {flaws:?}");
    }
}

#[test]
fn another_text_behind_a_whole_one_has_its_line() {
    let one = ".version 8.0\n.target sm_90\n.visible .entry k() { ret; }\n";
    assert_eq!(Ptx::read(format!("{one}{one}").as_bytes()).second_version_line, Some(4));
    assert_eq!(Ptx::read(format!("{one}{one}{one}").as_bytes()).second_version_line, Some(4));
    assert_eq!(Ptx::read(one.as_bytes()).second_version_line, None);
    // Nothing was said before it: a mistake in one header, not two texts.
    assert_eq!(read("p37_duplicate_version").second_version_line, None);
}
