// SPDX-License-Identifier: MIT OR Apache-2.0
//! [`Image`]: a module's bytes, looked at before the driver sees them and brought into the form it takes.

use core::fmt;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use metrale_driver_sys::image::cubin::{Cubin, CubinError};
use metrale_driver_sys::image::fatbin::{EntryKind, Fatbin, FatbinEntry, FatbinError};
use metrale_driver_sys::image::ptx::{MAX_FLAWS, Ptx, Text};
use metrale_driver_sys::image::{Code, ImageKind, Unpacker, arch::IsaVersion, arch::SmTarget};

/// Why bytes are no image that a driver should see.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// They are something else, or cut off so early that nothing can be told.
    #[error("this is {0}")]
    NotAnImage(ImageKind),
    /// Bytes that are no text stand in front of a PTX text.
    #[error("{bytes} non-text bytes stand in front of the PTX (the header of a cache?): pass the text alone")]
    LeadingBytes {
        /// How many.
        bytes: usize,
    },
    /// Another image stands behind the PTX, which no driver takes: it stops at a NUL, or at what is no text.
    #[error(
        "two images in one: {appended} stands at byte {at}, behind PTX text; give each as a module of its own"
    )]
    TwoImages {
        /// What the second is.
        appended: ImageKind,
        /// Where it begins, in bytes.
        at: usize,
    },
    /// Two PTX texts, one behind the other.
    #[error("two images in one: another PTX text begins on line {line}; give each as a module of its own")]
    TwoTexts {
        /// The line of the second `.version`.
        line: u32,
    },
    /// A cubin that is not whole, or not one that a driver reads.
    #[error("this is a cubin, but {0}")]
    Cubin(CubinError),
    /// A fatbin that is not whole: its sizes point past its data, which can keep a driver busy for ever.
    #[error("this is a fatbin, but {0}")]
    Fatbin(FatbinError),
    /// A fatbin with a cubin inside that is not whole.
    #[error("this is a fatbin, but its entry {index} is a cubin, and {error}")]
    FatbinCubin {
        /// Which entry, from 0.
        index: usize,
        /// What is wrong with it.
        error: CubinError,
    },
}

/// Something noticed about an image that is no error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImageNote {
    /// A byte order mark stood in front of the text, which no driver takes. It was left out.
    ByteOrderMark,
    /// Something follows the text's NUL, where the driver stops reading. It is ignored.
    AfterNul {
        /// How many bytes, without NULs at the end.
        bytes: usize,
        /// The kernels among them, which no look-up will find.
        kernels: Vec<String>,
    },
    /// No kernel is in it: no look-up of one will find any.
    NoKernels,
    /// `.target` asks for `debug`: compiled without optimization, it is slow.
    Debug,
    /// Only LTO-IR is in the fatbin, which a driver does not link: it refuses the module.
    LtoIrOnly,
    /// Entries of a fatbin that could not be unpacked: their kernels' names and parameters are not checked.
    NotChecked {
        /// How many.
        entries: usize,
        /// Why, for the first.
        reason: String,
    },
}

/// As many kernels are named in a note.
const NAMED: usize = 8;

impl fmt::Display for ImageNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByteOrderMark => f.write_str("a byte order mark in front was left out"),
            Self::NoKernels => f.write_str("it has no kernels"),
            Self::Debug => f.write_str("its .target asks for debug: its kernels are not optimized"),
            Self::LtoIrOnly => f.write_str(
                "only LTO-IR, which a driver does not link: link it with nvJitLink or nvcc -dlto, or compile it to machine \
                 code or PTX",
            ),
            Self::NotChecked { entries, reason } => write!(
                f,
                "names and parameters of {entries} of its entries are not checked, since they could not be unpacked ({reason})"
            ),
            Self::AfterNul { bytes, kernels } => {
                write!(f, "{bytes} bytes after a NUL are ignored")?;
                for (index, kernel) in kernels.iter().take(NAMED).enumerate() {
                    write!(
                        f,
                        "{} {}",
                        if index == 0 { ", with the kernels" } else { "," },
                        shortened(kernel)
                    )?;
                }
                match kernels.len().saturating_sub(NAMED) {
                    0 => Ok(()),
                    more => write!(f, " and {more} more"),
                }
            }
        }
    }
}

/// A module's image, found fit to be handed to a driver.
pub(crate) struct Image<'a> {
    pub(crate) kind: ImageKind,
    pub(crate) target: Option<String>,
    pub(crate) isa: Option<IsaVersion>,
    /// Size as given.
    pub(crate) image_bytes: usize,
    pub(crate) notes: Vec<ImageNote>,
    /// What is wrong with the text, as far as that can be told without the driver, whose word counts.
    pub(crate) flaws: Vec<String>,
    pub(crate) kernels: Vec<String>,
    pub(crate) globals: Vec<String>,
    /// What kernels need that the image does not define, by kernel.
    pub(crate) undefined: HashMap<String, String>,
    /// What the driver gets, but for the NUL.
    bytes: &'a [u8],
    lacks_nul: bool,
}

impl<'a> Image<'a> {
    /// Looks at bytes that are to be a module.
    pub(crate) fn read(bytes: &'a [u8]) -> Result<Self, ImageError> {
        match ImageKind::of(bytes) {
            ImageKind::Ptx => Self::read_ptx(bytes),
            ImageKind::Cubin => Self::read_cubin(bytes).map_err(ImageError::Cubin),
            ImageKind::Fatbin => Self::read_fatbin(bytes),
            other => Err(ImageError::NotAnImage(other)),
        }
    }

    /// The bytes in the form the driver takes: PTX ends in NUL, and begins with no byte order mark.
    pub(crate) fn for_the_driver(&self) -> Cow<'a, [u8]> {
        if !self.lacks_nul {
            return Cow::Borrowed(self.bytes);
        }
        let mut text = Vec::with_capacity(self.bytes.len() + 1);
        text.extend_from_slice(self.bytes);
        text.push(0);
        Cow::Owned(text)
    }

    fn new(kind: ImageKind, bytes: &'a [u8]) -> Self {
        Self {
            kind,
            target: None,
            isa: None,
            image_bytes: bytes.len(),
            notes: Vec::new(),
            flaws: Vec::new(),
            kernels: Vec::new(),
            globals: Vec::new(),
            undefined: HashMap::new(),
            bytes,
            lacks_nul: false,
        }
    }

    fn read_ptx(bytes: &'a [u8]) -> Result<Self, ImageError> {
        let text = Text::of(bytes);
        if !text.leading_bytes.is_empty() {
            return Err(ImageError::LeadingBytes { bytes: text.leading_bytes.len() });
        }
        if let Some((appended, at)) = text.appended() {
            return Err(ImageError::TwoImages { appended, at });
        }
        let start = text.bom_bytes();
        let ptx = Ptx::read(&bytes[start..]);
        if let Some(line) = ptx.second_version_line {
            return Err(ImageError::TwoTexts { line });
        }
        let mut notes = Vec::new();
        if text.has_bom {
            notes.push(ImageNote::ByteOrderMark);
        }
        if !ptx.after_nul.is_empty() {
            let kernels = owned(ptx.entries_after_nul());
            notes.push(ImageNote::AfterNul { bytes: ptx.after_nul.len(), kernels });
        }
        if ptx.header.has_option("debug") {
            notes.push(ImageNote::Debug);
        }
        if ptx.entries().next().is_none() {
            notes.push(ImageNote::NoKernels);
        }
        // The NUL that ends the text, where there is one, is the first byte after it.
        let lacks_nul = start + text.code.len() == bytes.len();
        Ok(Self {
            target: ptx.header.targets.last().map(|target| target.name.to_owned()),
            isa: ptx.header.version,
            notes,
            flaws: ptx.flaws.iter().map(ToString::to_string).chain(header_flaws(&ptx)).collect(),
            kernels: owned(ptx.entries().map(|entry| entry.name)),
            globals: owned(ptx.globals().map(|global| global.name)),
            bytes: &bytes[start..],
            lacks_nul,
            ..Self::new(ImageKind::Ptx, bytes)
        })
    }

    fn read_cubin(bytes: &'a [u8]) -> Result<Self, CubinError> {
        let cubin = Cubin::read(bytes)?;
        let needs = cubin.kernels.iter().filter_map(|kernel| Some((kernel.name, kernel.undefined?)));
        Ok(Self {
            notes: if cubin.kernels.is_empty() { vec![ImageNote::NoKernels] } else { Vec::new() },
            undefined: needs.map(|(kernel, needs)| (kernel.to_owned(), needs.to_owned())).collect(),
            target: cubin.sm.map(|sm| sm.to_string()),
            kernels: owned(cubin.kernels.iter().map(|kernel| kernel.name)),
            globals: owned(cubin.globals.iter().map(|global| global.name)),
            ..Self::new(ImageKind::Cubin, bytes)
        })
    }

    fn read_fatbin(bytes: &'a [u8]) -> Result<Self, ImageError> {
        let fatbin = Fatbin::read(bytes).map_err(ImageError::Fatbin)?;
        let mut image = Self::new(ImageKind::Fatbin, bytes);
        let mut targets = Targets::default();
        let mut unpacker = Unpacker::of(bytes);
        let (mut not_checked, mut reason) = (0, None);
        for (index, entry) in fatbin.entries.iter().enumerate() {
            targets.add(entry);
            if !entry.is_code() {
                continue;
            }
            // Names come from all entries. The driver takes one of them, and has the last word on what is there.
            let payload = match unpacker.unpack(entry) {
                Ok(payload) => payload,
                Err(error) => {
                    not_checked += 1;
                    reason.get_or_insert(error);
                    continue;
                }
            };
            let part = match entry.code(&payload) {
                Some(Code::Ptx(text)) => Image::read_ptx(text).ok(),
                Some(Code::Cubin(cubin)) => match Image::read_cubin(cubin) {
                    Err(error @ CubinError::PastEnd { .. }) => {
                        return Err(ImageError::FatbinCubin { index, error });
                    }
                    read => read.ok(),
                },
                None => None,
            };
            if let Some(part) = part {
                image.kernels.extend(part.kernels);
                image.globals.extend(part.globals);
                image.undefined.extend(part.undefined);
                if part.notes.contains(&ImageNote::Debug) && !image.notes.contains(&ImageNote::Debug) {
                    image.notes.push(ImageNote::Debug);
                }
            }
        }
        image.target = Some(targets.text);
        without_repeats(&mut image.kernels);
        without_repeats(&mut image.globals);
        if let Some(reason) = reason {
            image.notes.push(ImageNote::NotChecked { entries: not_checked, reason: reason.to_string() });
        } else if fatbin.entries.iter().all(|entry| entry.kind == EntryKind::LtoIr) {
            image.notes.push(ImageNote::LtoIrOnly);
        } else if image.kernels.is_empty() {
            image.notes.push(ImageNote::NoKernels);
        }
        Ok(image)
    }
}

/// What the entries of a fatbin are for, each once; a fatbin can have as many unlike ones as it has kilobytes.
#[derive(Default)]
struct Targets {
    text: String,
    seen: HashSet<(EntryKind, SmTarget)>,
}

impl Targets {
    fn add(&mut self, entry: &FatbinEntry<'_>) {
        const MOST: usize = 16;
        if self.seen.len() > MOST || !self.seen.insert((entry.kind, entry.sm)) {
            return;
        }
        if !self.text.is_empty() {
            self.text.push_str(", ");
        }
        if self.seen.len() > MOST {
            self.text.push_str("and others");
            return;
        }
        self.text.push_str(&match entry.kind {
            EntryKind::Ptx => format!("{} as PTX", entry.sm),
            EntryKind::Elf => entry.sm.to_string(),
            EntryKind::LtoIr => format!("{} as LTO-IR", entry.sm),
            EntryKind::Other(kind) => format!("{} as entry of kind {kind}", entry.sm),
        });
    }
}

/// What a header says that no assembler takes, or takes only from a newer one. Read as a text these are no mistakes, so the
/// reader has no words for them.
fn header_flaws(ptx: &Ptx<'_>) -> Vec<String> {
    const OPTIONS: [&str; 4] = ["texmode_unified", "texmode_independent", "debug", "map_f64_to_f32"];
    let header = &ptx.header;
    let mut flaws = Vec::new();
    if header.address_size == Some(32) {
        let line = header.address_size_line;
        flaws.push(format!("line {line}: 32-bit PTX is no longer supported: compile for 64-bit addresses"));
    }
    let line = header.target_line;
    for option in header.options.iter().filter(|option| !OPTIONS.contains(option)).take(MAX_FLAWS) {
        flaws.push(format!("line {line}: unknown target option {:?}", shortened(option)));
    }
    if header.has_option("debug") && !ptx.has_sections {
        flaws.push(format!("line {line}: target option debug, but there is no debug information (.section)"));
    }
    if let Some(sm) = header.target() {
        if !sm.is_known() {
            flaws.push(format!("line {line}: {sm} is no architecture that this program knows"));
        }
        if let (Some(isa), Some(lowest)) = (header.version, sm.lowest_isa())
            && isa < lowest
        {
            let line = header.version_line;
            flaws.push(format!("line {line}: {sm} exists only from PTX {lowest} on, and this is PTX {isa}"));
        }
    }
    flaws
}

/// The beginning of a name that may be as long as its file.
fn shortened(name: &str) -> String {
    const MOST: usize = 64;
    match name.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &name[..end]),
        None => name.to_owned(),
    }
}

fn owned<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    names.into_iter().map(str::to_owned).collect()
}

/// Leaves the first of each, in order.
fn without_repeats(names: &mut Vec<String>) {
    let mut seen = HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] =
        b".version 7.10\n.target sm_75, sm_86\n.address_size 64\n.global .u32 g;\n.visible .entry k() { ret; }\n";

    fn read(bytes: &[u8]) -> Image<'_> {
        Image::read(bytes).unwrap_or_else(|error| panic!("{error}"))
    }

    fn refusal(bytes: &[u8]) -> ImageError {
        match Image::read(bytes) {
            Ok(image) => panic!("taken for {}", image.kind),
            Err(error) => error,
        }
    }

    #[test]
    fn a_text_tells_its_target_version_and_names() {
        let image = read(TEXT);
        assert_eq!(image.kind, ImageKind::Ptx);
        assert_eq!(image.target.as_deref(), Some("sm_86"), "the last name counts");
        assert_eq!(image.isa, Some(IsaVersion::new(7, 10)));
        assert_eq!((image.kernels, image.globals), (vec!["k".to_owned()], vec!["g".to_owned()]));
        assert!(image.notes.is_empty() && image.flaws.is_empty());
    }

    #[test]
    fn the_driver_gets_one_nul_and_no_byte_order_mark() {
        let mut expected = TEXT.to_vec();
        expected.push(0);
        assert_eq!(*read(TEXT).for_the_driver(), *expected);
        let marked = [b"\xef\xbb\xbf", TEXT].concat();
        let image = read(&marked);
        assert_eq!(*image.for_the_driver(), *expected);
        assert_eq!((image.notes, image.image_bytes), (vec![ImageNote::ByteOrderMark], TEXT.len() + 3));
    }

    #[test]
    fn a_text_with_its_nul_is_not_copied() {
        let terminated = [TEXT, b"\0"].concat();
        let image = read(&terminated);
        assert!(matches!(image.for_the_driver(), Cow::Borrowed(bytes) if bytes == terminated));
        assert!(image.notes.is_empty());
        assert!(read(&[TEXT, b"\0\0\0"].concat()).notes.is_empty(), "padding is nothing to note");
    }

    #[test]
    fn what_follows_a_nul_is_noted_with_its_kernels() {
        let image = [TEXT, b"\0.visible .entry lost() { ret; }"].concat();
        let image = read(&image);
        assert_eq!(image.kernels, ["k"]);
        let [note] = &*image.notes else { panic!("{:?}", image.notes) };
        assert_eq!(note.to_string(), "31 bytes after a NUL are ignored, with the kernels lost");
    }

    #[test]
    fn what_a_header_asks_in_vain_is_told_with_its_line() {
        for (header, flaw) in [
            (".version 7.5\n.target sm_75\n.address_size 32\n", "line 3: 32-bit PTX is no longer supported"),
            (".version 7.5\n.target sm_75, fastmath\n", "line 2: unknown target option \"fastmath\""),
            (
                ".version 7.5\n.target sm_75, debug\n",
                "line 2: target option debug, but there is no debug information",
            ),
            (".version 8.0\n.target sm_95\n", "line 2: sm_95 is no architecture that this program knows"),
            (
                ".version 7.8\n.target sm_90a\n",
                "line 1: sm_90a exists only from PTX 8.0 on, and this is PTX 7.8",
            ),
            (
                ".version 8.7\n.target sm_100f\n",
                "line 1: sm_100f exists only from PTX 8.8 on, and this is PTX 8.7",
            ),
        ] {
            let text = format!("{header}.visible .entry k() {{ ret; }}\n");
            let image = read(text.as_bytes());
            assert!(
                image.flaws.len() == 1 && image.flaws[0].starts_with(flaw),
                "{header}: {:?}",
                image.flaws
            );
        }
        for header in [
            ".version 8.0\n.target sm_90a\n.address_size 64\n",
            ".version 7.5\n.target sm_75, texmode_independent\n",
            ".version 1.4\n.target sm_10, map_f64_to_f32\n",
        ] {
            let text = format!("{header}.visible .entry k() {{ ret; }}\n");
            assert_eq!(read(text.as_bytes()).flaws, Vec::<String>::new(), "{header}");
        }
    }

    #[test]
    fn what_is_no_image_is_refused_by_name() {
        for (bytes, word) in [
            (&b""[..], "empty"),
            (b"<!DOCTYPE html><html>", "HTML"),
            (b"\x1f\x8b\x08\0\0\0\0\0", "gzip"),
            (b"/opt/kernels/attention.ptx", "path"),
            (b"version https://git-lfs.github.com/spec/v1\n", "LFS"),
            (b"BC\xc0\xde1234", "bitcode"),
            (b"\x03\x02\x23\x07rest", "SPIR-V"),
            (b"hello", "directive"),
            (b"\x7fELF", "cut off"),
        ] {
            let text = refusal(bytes).to_string();
            assert!(text.starts_with("this is ") && text.contains(word), "{text}");
        }
    }

    #[test]
    fn the_header_of_a_cache_in_front_is_counted() {
        let cached = [b"\x01\xff\x80\x02", TEXT].concat();
        assert_eq!(refusal(&cached), ImageError::LeadingBytes { bytes: 4 });
    }

    #[test]
    fn a_fatbin_whose_sizes_pass_its_data_is_refused() {
        let mut fatbin = 0xba55_ed50_u32.to_le_bytes().to_vec();
        fatbin.extend_from_slice(&[1, 0, 16, 0]);
        fatbin.extend_from_slice(&4096_u64.to_le_bytes());
        assert_eq!(refusal(&fatbin), ImageError::Fatbin(FatbinError::PastEnd { end: 4112, bytes: 16 }));
        fatbin.truncate(8);
        fatbin.extend_from_slice(&0_u64.to_le_bytes());
        assert_eq!(refusal(&fatbin), ImageError::Fatbin(FatbinError::NoImage));
    }

    /// An ELF header for `abi` whose section table ends at byte 4288, with a directive of PTX among its bytes.
    fn cut_cubin(abi: [u8; 2]) -> Vec<u8> {
        let mut cubin = vec![0_u8; 64];
        cubin[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        cubin[7..9].copy_from_slice(&abi);
        cubin[9..14].copy_from_slice(b".func");
        cubin[18..20].copy_from_slice(&190_u16.to_le_bytes());
        cubin[40..48].copy_from_slice(&4096_u64.to_le_bytes());
        cubin[58..60].copy_from_slice(&64_u16.to_le_bytes());
        cubin[60..62].copy_from_slice(&3_u16.to_le_bytes());
        cubin
    }

    #[test]
    fn a_cubin_that_ends_before_its_tables_is_refused() {
        let text = refusal(&cut_cubin([0x33, 7])).to_string();
        assert!(text.contains("the section table ends at byte 4288, and there are 64"), "{text}");
    }

    #[test]
    fn a_cubin_cut_off_inside_a_fatbin_is_refused_too() {
        let cubin = cut_cubin([0x41, 8]);
        let mut entry = vec![0_u8; 64];
        entry[0..2].copy_from_slice(&2_u16.to_le_bytes());
        entry[4..8].copy_from_slice(&64_u32.to_le_bytes());
        entry[8..16].copy_from_slice(&(cubin.len() as u64).to_le_bytes());
        entry[28..32].copy_from_slice(&90_u32.to_le_bytes());
        let mut fatbin = 0xba55_ed50_u32.to_le_bytes().to_vec();
        fatbin.extend_from_slice(&[1, 0, 16, 0]);
        fatbin.extend_from_slice(&((entry.len() + cubin.len()) as u64).to_le_bytes());
        fatbin.extend([entry, cubin].concat());
        let text = refusal(&fatbin).to_string();
        assert!(text.contains("its entry 0 is a cubin, and cut off: the section table"), "{text}");
    }
}
