// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small images that declare much: what reading one allocates follows from its own size, and what is not read is said.
//!
//! All bytes that are ever allocated are counted, freed ones too: work that grows faster than the image shows as bytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt::Write;

use metrale_driver_sys::image::cubin::{Cubin, CubinError};
use metrale_driver_sys::image::ptx::{FlawKind, Initial, MAX_CALL_STEPS, MAX_DECLARATIONS, Ptx};

/// The system's allocator, which counts the bytes it gave out on each thread.
struct Counting;

thread_local! {
    static GIVEN_BYTES: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: each call is passed on as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending has no counter any more, and no test either.
        let _ = GIVEN_BYTES.try_with(|given| given.set(given.get() + layout.size()));
        // SAFETY: the caller's promise is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is the system's.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The answer, and how many bytes were allocated for it in all.
fn counted<T>(read: impl FnOnce() -> T) -> (T, usize) {
    let before = GIVEN_BYTES.get();
    let answer = read();
    (answer, GIVEN_BYTES.get() - before)
}

const HEAD: &str = ".version 8.0\n.target sm_90\n.address_size 64\n";

/// Reads a text; no more than `times` its size is allocated.
fn within(text: &str, times: usize) -> Ptx<'_> {
    let (ptx, bytes) = counted(|| Ptx::read(text.as_bytes()));
    let most = times * text.len() + (64 << 10);
    assert!(bytes <= most, "{bytes} bytes allocated, {most} at most, for {}", &text[..text.len().min(200)]);
    ptx
}

fn many(count: usize, mut part: impl FnMut(usize) -> String) -> String {
    (0..count).fold(HEAD.to_owned(), |text, index| text + &part(index))
}

fn limits(ptx: &Ptx<'_>) -> Vec<&'static str> {
    let limit = |kind: &FlawKind| match kind {
        FlawKind::Limit { what, .. } => Some(*what),
        _ => None,
    };
    ptx.flaws.iter().filter_map(|flaw| limit(&flaw.kind)).collect()
}

#[test]
fn gaps_in_initial_values_take_no_memory_and_lose_nothing() {
    let text = many(300, |i| format!(".global .b64 a{i}[2][8388607] = {{{{1}},{{2}}}};\n"));
    let ptx = within(&text, 60);
    assert_eq!((ptx.variables.len(), ptx.flaws.len()), (300, 0));
    let Initial::Bytes(bytes) = &ptx.variables[299].initial else { panic!("{:?}", ptx.variables[299]) };
    let pieces: Vec<_> = bytes.pieces().collect();
    assert_eq!(pieces, [(0, &1_u64.to_le_bytes()[..]), (8 * 8_388_607, &2_u64.to_le_bytes()[..])]);
    assert!(bytes.kept_bytes() <= 256);

    let list = vec!["{1}"; 20_000].join(",");
    let text = format!("{HEAD}.global .b8 a[100000][1000000] = {{{list}}};\n");
    let ptx = within(&text, 60);
    let Initial::Bytes(bytes) = &ptx.variables[0].initial else { panic!() };
    assert_eq!(bytes.pieces().last(), Some((19_999_000_000, &[1_u8][..])));
    // A small gap is filled: one piece, as if it had been written out.
    let ptx = Ptx::read(b".version 8.0\n.target sm_90\n.global .b8 a[3][4] = {{1},{2},{3}};\n");
    assert_eq!(ptx.variables[0].initial, Initial::Bytes(vec![1, 0, 0, 0, 2, 0, 0, 0, 3].into()));
}

#[test]
fn calls_from_function_to_function_take_no_more_than_the_text() {
    let declared = |count| many(count, |i| format!(".shared .b8 v{i}[1];\n.func f{i};\n"));
    let chain = |count: usize, body: &str| {
        (0..count).fold(declared(count), |mut text, i| {
            writeln!(text, ".func f{i}() {{ {body} f{} }}", i + 1).unwrap();
            text
        })
    };
    // Each kernel's way through the chain ends at nothing, so nobody goes it.
    let text = chain(1500, "") + &many(1500, |i| format!(".entry k{i}() {{ f{i} }}\n"))[HEAD.len()..];
    let ptx = within(&text, 60);
    assert_eq!((ptx.functions.len(), limits(&ptx)), (3000, vec![]));

    // Here each passes shared memory: a kernel's is the sum of what is before it, until there are too many steps.
    let kernels = &many(300, |i| format!(".entry k{i}() {{ f{i} }}\n"))[HEAD.len()..];
    let text = chain(300, ".shared .b8 s[1];") + kernels;
    let ptx = within(&text, 60);
    assert_eq!(ptx.entry("k0").unwrap().static_shared_bytes, 300);
    assert_eq!(ptx.entry("k290").unwrap().static_shared_bytes, 10);
    let count = 6000;
    assert!(count * count / 2 > MAX_CALL_STEPS);
    let kernels = &many(count, |i| format!(".entry k{i}() {{ f{i} }}\n"))[HEAD.len()..];
    let text = chain(count, ".shared .b8 s[1];") + kernels;
    let ptx = within(&text, 60);
    assert_eq!(limits(&ptx), ["steps from kernels to shared memory"]);
    assert_eq!(ptx.entry("k0").unwrap().static_shared_bytes, count as u64);
    assert!(ptx.flaws.last().unwrap().to_string().contains("more than 16777216 steps"), "{:?}", ptx.flaws);

    // A kernel of its own for each costs no table of all functions.
    let text = many(20_000, |i| format!(".entry f{i}() {{ v }}\n")) + ".shared .b8 v[1];\n";
    within(&text, 60);
    // And a word that is said twice is one mention.
    let text = format!("{HEAD}.shared .b8 v[1];\n.entry k() {{ {} }}\n", "v ".repeat(500_000));
    within(&text, 1);
}

#[test]
fn there_are_only_so_many_declarations() {
    let names = |count: usize| (0..count).map(|i| format!("a{i}")).collect::<Vec<_>>().join(",");
    let all = names(MAX_DECLARATIONS + 1);
    for (front, back) in [
        (".global .b8 ", ";\n"),
        (".entry k() { .shared .b8 ", "; ret; }\n"),
        (".file 1 \"x\"\n.const .b8 ", ";\n"),
    ] {
        let text = format!("{HEAD}{front}{all}{back}.entry last() {{ ret; }}\n");
        let ptx = Ptx::read(text.as_bytes());
        assert_eq!(limits(&ptx), ["declarations"], "{front}");
        assert_eq!(ptx.flaws.len(), 1, "what a cut text lacks is no flaw: {:?}", ptx.flaws);
        assert!(ptx.variables.len() <= MAX_DECLARATIONS);
    }
    let text = format!(".version 8.0\n.target sm_90,{all}\n");
    assert_eq!(limits(&Ptx::read(text.as_bytes())), ["declarations"]);
    let text = format!("{HEAD}.global .b8 {};\n", names(1000));
    assert_eq!((Ptx::read(text.as_bytes()).variables.len(), limits(&within(&text, 200))), (1000, vec![]));
}

#[test]
fn depth_and_repetition_take_no_more_than_the_text() {
    within(&format!("{HEAD}.global .b8 a{} = {{1}};\n", "[1]".repeat(200_000)), 60);
    within(&format!("{HEAD}.global .b8 a[1] = {}\n", "{".repeat(200_000)), 60);
    let text = format!("{HEAD}\0{}", ".entry a; ".repeat(50_000));
    let ptx = Ptx::read(text.as_bytes());
    let (names, bytes) = counted(|| ptx.entries_after_nul());
    assert_eq!(names.len(), 50_000);
    assert!(bytes <= 8 * text.len(), "{bytes}");
    let text = format!("{HEAD}\0{}", ";".repeat(500_000));
    let (names, bytes) = counted(|| Ptx::read(text.as_bytes()).entries_after_nul());
    assert_eq!(names, [""; 0]);
    assert!(bytes <= 64 << 10, "{bytes}");
}

/// A part of a cubin: where its name begins, its type, its bytes, the section it links to.
#[derive(Clone, Copy)]
struct Part<'a> {
    name: u32,
    kind: u32,
    data: &'a [u8],
    link: u32,
}

/// A cubin for sm_90 with these sections. Parts of the same bytes lie at the same place.
fn cubin(names: u16, parts: &[Part<'_>]) -> Vec<u8> {
    let mut image = vec![0_u8; 64];
    image[..9].copy_from_slice(b"\x7fELF\x02\x01\x01\x41\x08");
    let mut table = Vec::new();
    let mut places: Vec<(*const u8, usize)> = Vec::new();
    for part in parts {
        let known = places.iter().find(|place| place.0 == part.data.as_ptr()).map(|place| place.1);
        let at = known.unwrap_or_else(|| {
            places.push((part.data.as_ptr(), image.len()));
            image.extend_from_slice(part.data);
            image.len() - part.data.len()
        });
        table.extend_from_slice(&part.name.to_le_bytes());
        table.extend_from_slice(&part.kind.to_le_bytes());
        for number in [0, 0, at as u64, part.data.len() as u64, u64::from(part.link), 1, 0] {
            table.extend_from_slice(&number.to_le_bytes());
        }
    }
    let tables = image.len() as u64;
    image.extend_from_slice(&table);
    image[18..20].copy_from_slice(&190_u16.to_le_bytes());
    image[40..48].copy_from_slice(&tables.to_le_bytes());
    image[48..52].copy_from_slice(&0x5a02_u32.to_le_bytes());
    image[58..60].copy_from_slice(&64_u16.to_le_bytes());
    image[60..62].copy_from_slice(&(parts.len() as u16).to_le_bytes());
    image[62..64].copy_from_slice(&names.to_le_bytes());
    image
}

fn symbol(name: u32, info: u8, other: u8, section: u16, bytes: u64) -> Vec<u8> {
    let mut symbol = name.to_le_bytes().to_vec();
    symbol.extend_from_slice(&[info, other]);
    symbol.extend_from_slice(&section.to_le_bytes());
    symbol.extend_from_slice(&[0; 8]);
    symbol.extend_from_slice(&bytes.to_le_bytes());
    symbol
}

const STRINGS: u32 = 3;
const SYMBOLS: u32 = 2;

/// Refused for its overlaps, before more was allocated than `times` its size.
fn overlaps(image: &[u8], what: &str) {
    let (answer, bytes) = counted(|| Cubin::read(image).map(drop));
    assert_eq!(answer, Err(CubinError::Overlaps { most: 4 * image.len() as u64 + (1 << 20) }), "{what}");
    assert!(bytes <= 20 * image.len() + (4 << 20), "{what}: {bytes} bytes allocated");
}

#[test]
fn parts_of_a_cubin_that_lie_over_each_other_are_refused() {
    let empty = Part { name: 0, kind: 0, data: &[], link: 0 };
    let strings = |data| Part { name: 0, kind: STRINGS, data, link: 0 };
    let long = [&b"A".repeat(1 << 18)[..], b"\0"].concat();

    // Sections that all have one long name, and sections whose names end in one another.
    for step in [0, 1] {
        let mut parts = vec![empty, strings(&long)];
        parts.extend((0..20_000).map(|index| Part {
            name: step * index,
            kind: 1,
            data: &long[..0],
            link: 0,
        }));
        overlaps(&cubin(1, &parts), "section names");
    }
    // Without a NUL there is no name, and looking for it costs as much.
    let endless = b"A".repeat(1 << 18);
    let mut parts = vec![empty, strings(&endless)];
    parts.extend((0..20_000).map(|name| Part { name, kind: 1, data: &long[..0], link: 0 }));
    overlaps(&cubin(1, &parts), "section names without an end");

    // Kernels of one long name.
    let section_names = b"\0.nv.info.k\0.nv.global.init\0";
    let symbols = symbol(0, 2, 0x10, 1, 0).repeat(4000);
    let table = |data| Part { name: 0, kind: SYMBOLS, data, link: 1 };
    overlaps(&cubin(2, &[empty, strings(&long), strings(section_names), table(&symbols)]), "kernel names");

    // Kernels that share one list of parameters.
    let record = [&[4, 0x17, 12, 0][..], &[0; 8], &(4_u32 << 18).to_le_bytes()].concat().repeat(2000);
    let symbols = symbol(1, 2, 0x10, 3, 0).repeat(2000);
    let info = Part { name: 1, kind: 1, data: &record, link: 0 };
    let parts = [empty, strings(b"\0k\0"), strings(section_names), info, table(&symbols)];
    overlaps(&cubin(2, &parts), "parameters of one name");
    // As many names as kernels, and sections of their own at one place.
    let mut names = b"\0".to_vec();
    let mut infos = section_names.to_vec();
    let mut symbols = Vec::new();
    let mut info_parts = Vec::new();
    for index in 0..2000 {
        symbols.extend(symbol(names.len() as u32, 2, 0x10, 3, 0));
        names.extend_from_slice(format!("k{index}\0").as_bytes());
        info_parts.push(Part { name: infos.len() as u32, kind: 1, data: &record, link: 0 });
        infos.extend_from_slice(format!(".nv.info.k{index}\0").as_bytes());
    }
    let mut parts = vec![empty, strings(&names), strings(&infos)];
    parts.append(&mut info_parts);
    parts.push(table(&symbols));
    overlaps(&cubin(2, &parts), "parameters at one place");

    // Variables that all hold one megabyte.
    let data = b"x".repeat(1 << 20);
    let symbols = symbol(1, 1, 0, 3, 1 << 20).repeat(200);
    let init = Part { name: 12, kind: 1, data: &data, link: 0 };
    let parts = [empty, strings(b"\0g\0"), strings(section_names), init, table(&symbols)];
    overlaps(&cubin(2, &parts), "initial values");
    // What is said once is read.
    let symbols = symbol(1, 1, 0, 3, 1 << 20);
    let init = Part { name: 12, kind: 1, data: &data, link: 0 };
    let parts = [empty, strings(b"\0g\0"), strings(section_names), init, table(&symbols)];
    let image = cubin(2, &parts);
    assert_eq!(Cubin::read(&image).unwrap().globals[0].initial.map(<[u8]>::len), Some(1 << 20));
}

#[test]
fn a_section_of_a_long_name_is_named_by_its_beginning() {
    let long = [&b"A".repeat(1 << 16)[..], b"\0"].concat();
    let mut image = cubin(
        1,
        &[
            Part { name: 0, kind: 0, data: &[], link: 0 },
            Part { name: 0, kind: 3, data: &long, link: 0 },
            Part { name: 0, kind: 1, data: b"code", link: 0 },
        ],
    );
    let at = image.len() - 64 + 32;
    image[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
    let text = Cubin::read(&image).unwrap_err().to_string();
    assert!(text.contains("section \"AAAA") && text.len() < 300, "{} bytes", text.len());
}
