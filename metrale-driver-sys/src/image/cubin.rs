// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cubins: ELF files of machine 190. For which architecture, which kernels with which parameters, which variables.
//!
//! Two generations exist. Up to CUDA 12 most carry OS/ABI 0x33 with ABI version 7 and the architecture in the lowest
//! byte of the header's flags; newer ones carry 0x41 with version 8 and the architecture in the second byte. What a
//! later generation puts there is not guessed.

use std::collections::HashMap;

use super::allowance::Allowance;
use super::arch::{Portability, SmTarget};
use super::bytes::{array, range, u16_at, u32_at, u64_at};
use super::calls::Calls;

pub(super) const EM_CUDA: u16 = 190;
pub(super) const ELF_MAGIC: [u8; 4] = [0x7f, b'E', b'L', b'F'];

/// Bytes of a 64-bit ELF's header.
pub const ELF_HEADER_BYTES: usize = 64;

/// What keeps bytes from being read as a cubin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CubinError {
    /// Not an ELF at all.
    #[error("not an ELF file")]
    NotElf,
    /// The file ends inside its own header.
    #[error("cut off: {bytes} bytes, and an ELF header alone takes {ELF_HEADER_BYTES}")]
    Truncated {
        /// Bytes at hand.
        bytes: u64,
    },
    /// An ELF, but not of 64 bits.
    #[error("a 32-bit ELF file; no current driver loads one")]
    Not64Bit,
    /// An ELF, but not in little-endian order.
    #[error("a big-endian ELF file")]
    BigEndian,
    /// An ELF of another machine.
    #[error("an ELF file for machine {machine}, not 190 (CUDA)")]
    ForeignMachine {
        /// The machine number; 62 is x86-64.
        machine: u16,
    },
    /// Table entries of a size that ELF does not have.
    #[error("{table} entries of {bytes} bytes")]
    BadEntrySize {
        /// `section table` or `program table`.
        table: &'static str,
        /// The size stated.
        bytes: u16,
    },
    /// A table or a section that ends behind the file.
    #[error("cut off: {part} ends at byte {end}, and there are {bytes}")]
    PastEnd {
        /// Which part.
        part: String,
        /// Where it ends; `u64::MAX` where its place and size exceed 64 bits.
        end: u64,
        /// Bytes at hand.
        bytes: u64,
    },
    /// Sections, names or variables lie over each other, many times. A driver may take that.
    #[error(
        "its parts lie over each other, and name more than {most} bytes together: no compiler writes that"
    )]
    Overlaps {
        /// As many bytes may be named: four times the file, and a megabyte.
        most: u64,
    },
}

/// The generation of a cubin, which says where its architecture is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CubinAbi {
    /// OS/ABI 0x33, version 7.
    V7,
    /// OS/ABI 0x41, version 8.
    V8,
    /// Another one: what its flags mean is unknown.
    Unknown {
        /// Header byte 7.
        os_abi: u8,
        /// Header byte 8.
        version: u8,
    },
}

/// The header of a cubin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElfHeader {
    /// The generation.
    pub abi: CubinAbi,
    /// `e_version`.
    pub version: u32,
    /// `e_flags`.
    pub flags: u32,
    program_table: (u64, u16),
    section_table: (u64, u16),
    names_section: u16,
}

const PROGRAM_ENTRY_BYTES: u16 = 56;
const SECTION_ENTRY_BYTES: u16 = 64;

impl ElfHeader {
    /// Reads the first [`ELF_HEADER_BYTES`] bytes.
    ///
    /// # Errors
    /// All of [`CubinError`] but [`PastEnd`](CubinError::PastEnd): nothing beyond the header is looked at.
    pub fn read(image: &[u8]) -> Result<Self, CubinError> {
        if !image.starts_with(&ELF_MAGIC) {
            return Err(CubinError::NotElf);
        }
        let truncated = CubinError::Truncated { bytes: image.len() as u64 };
        // The class byte decides on the layout of all that follows, so it is worth telling even of a short file.
        match (image.get(4), image.get(5)) {
            (None, _) | (_, None) => return Err(truncated),
            (Some(2), Some(1)) => {}
            (Some(2), _) => return Err(CubinError::BigEndian),
            _ => return Err(CubinError::Not64Bit),
        }
        let header: [u8; ELF_HEADER_BYTES] = array(image, 0).ok_or(truncated.clone())?;
        let read = || {
            let machine = u16_at(&header, 18)?;
            let tables = (u64_at(&header, 32)?, u64_at(&header, 40)?);
            let abi = match (header[7], header[8]) {
                (0x33, 7) => CubinAbi::V7,
                (0x41, 8) => CubinAbi::V8,
                (os_abi, version) => CubinAbi::Unknown { os_abi, version },
            };
            let header = Self {
                abi,
                version: u32_at(&header, 20)?,
                flags: u32_at(&header, 48)?,
                program_table: (tables.0, u16_at(&header, 56)?),
                section_table: (tables.1, u16_at(&header, 60)?),
                names_section: u16_at(&header, 62)?,
            };
            Some((header, machine))
        };
        let (read, machine) = read().ok_or(truncated)?;
        if machine != EM_CUDA {
            return Err(CubinError::ForeignMachine { machine });
        }
        let entries = [
            ("program table", read.program_table.1, u16_at(&header, 54), PROGRAM_ENTRY_BYTES),
            ("section table", read.section_table.1, u16_at(&header, 58), SECTION_ENTRY_BYTES),
        ];
        for (table, count, bytes, expected) in entries {
            if let Some(bytes) = bytes.filter(|&bytes| count > 0 && bytes != expected) {
                return Err(CubinError::BadEntrySize { table, bytes });
            }
        }
        Ok(read)
    }

    /// The architecture by the flags; `None` where the generation is unknown.
    ///
    /// Cubins of CUDA 13 keep the `a` in a section instead: [`Cubin::sm`] reads it. In a cubin nothing
    /// distinguishes `f` from no letter.
    #[must_use]
    pub fn sm(&self) -> Option<SmTarget> {
        let (number, is_exact) = match self.abi {
            CubinAbi::V7 => (self.flags & 0xff, self.flags & 0x800 != 0),
            CubinAbi::V8 => (self.flags >> 8 & 0xff, self.flags & 0x8 != 0),
            CubinAbi::Unknown { .. } => return None,
        };
        Some(SmTarget {
            number,
            portability: if is_exact { Portability::Exact } else { Portability::Portable },
        })
    }

    /// Where the header and its two tables end: as many bytes must be at hand before the sections can be read.
    /// `u64::MAX` for a table beyond 64 bits.
    #[must_use]
    pub fn tables_end(&self) -> u64 {
        let end = |(at, count): (u64, u16), bytes: u16| match count {
            0 => 0,
            _ => at.saturating_add(u64::from(count) * u64::from(bytes)),
        };
        (ELF_HEADER_BYTES as u64)
            .max(end(self.program_table, PROGRAM_ENTRY_BYTES))
            .max(end(self.section_table, SECTION_ENTRY_BYTES))
    }

    /// The size of the whole file, by its tables; needs the bytes up to [`tables_end`](Self::tables_end), and reads
    /// no others. `None` where they are not at hand. `u64::MAX` for sections beyond 64 bits.
    #[must_use]
    pub fn image_bytes(&self, image: &[u8]) -> Option<u64> {
        if (image.len() as u64) < self.tables_end() {
            return None;
        }
        let sections = self.sections(image).map(|section| section.end());
        let programs = (0..self.program_table.1).filter_map(|index| {
            let at = usize::try_from(self.program_table.0).ok()?;
            let at = at.checked_add(usize::from(index) * usize::from(PROGRAM_ENTRY_BYTES))?;
            Some(u64_at(image, at + 8)?.saturating_add(u64_at(image, at + 32)?))
        });
        sections.chain(programs).max().unwrap_or(0).max(self.tables_end()).into()
    }

    /// The entries of the section table that are at hand.
    fn sections<'a>(&self, image: &'a [u8]) -> impl Iterator<Item = Section> + use<'a> {
        let (at, count) = self.section_table;
        (0..count).map_while(move |index| {
            let at = at.checked_add(u64::from(index) * u64::from(SECTION_ENTRY_BYTES))?;
            Section::read(range(image, at, u64::from(SECTION_ENTRY_BYTES))?)
        })
    }
}

/// An entry of the section table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section {
    name: u32,
    pub(super) kind: u32,
    offset: u64,
    bytes: u64,
    link: u32,
    /// Of relocations, the section they are for.
    pub(super) info: u32,
    align: u64,
}

/// A section without bytes in the file.
const SHT_NOBITS: u32 = 8;
const SHT_SYMTAB: u32 = 2;
const SHT_NULL: u32 = 0;

impl Section {
    fn read(entry: &[u8]) -> Option<Self> {
        Some(Self {
            name: u32_at(entry, 0)?,
            kind: u32_at(entry, 4)?,
            offset: u64_at(entry, 24)?,
            bytes: u64_at(entry, 32)?,
            link: u32_at(entry, 40)?,
            info: u32_at(entry, 44)?,
            align: u64_at(entry, 48)?,
        })
    }

    /// Where it ends in the file; `u64::MAX` beyond 64 bits.
    fn end(&self) -> u64 {
        match self.kind {
            SHT_NULL | SHT_NOBITS => 0,
            _ => self.offset.saturating_add(self.bytes),
        }
    }

    pub(super) fn data<'a>(&self, image: &'a [u8]) -> Option<&'a [u8]> {
        if self.kind == SHT_NOBITS { None } else { range(image, self.offset, self.bytes) }
    }
}

/// A kernel in a cubin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CubinKernel<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its parameters by their place, without names: a cubin keeps none.
    pub parameters: Vec<CubinParameter>,
    /// Shared memory it always takes, in bytes, without what the system reserves.
    pub static_shared_bytes: u64,
    /// The most threads a block may have along x, y, z, where the source said so.
    pub max_threads: Option<[u32; 3]>,
    /// The threads a block must have along x, y, z, where the source said so.
    pub required_threads: Option<[u32; 3]>,
    /// A function that the kernel needs, itself or through others of the file, and that the file does not define: it was
    /// compiled to be linked (`-rdc`), and was not. A driver loads such a file and does not find the kernel.
    pub undefined: Option<&'a str>,
}

/// One parameter of a kernel in a cubin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CubinParameter {
    /// Where it begins in the parameter block, in bytes.
    pub offset: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

/// A variable in a cubin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CubinGlobal<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its size in bytes.
    pub bytes: u64,
    /// The alignment of the section it lies in, in bytes.
    pub align: u64,
    /// Whether it lies in constant memory.
    pub is_constant: bool,
    /// What it holds at first, addresses of other symbols left out; `None` for zeros.
    pub initial: Option<&'a [u8]>,
}

/// What a cubin says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cubin<'a> {
    /// The ELF header.
    pub header: ElfHeader,
    /// The architecture it was built for; `None` where the generation is unknown.
    pub sm: Option<SmTarget>,
    /// Its kernels, in the order of the symbol table.
    pub kernels: Vec<CubinKernel<'a>>,
    /// Its variables in global and constant memory, in the order of the symbol table.
    pub globals: Vec<CubinGlobal<'a>>,
    /// The size of the file by its tables; what follows does not belong to it.
    pub image_bytes: u64,
}

impl<'a> Cubin<'a> {
    /// Reads a cubin. Bytes behind its end do not matter.
    ///
    /// # Errors
    /// All of [`CubinError`]: not an ELF, not one for CUDA, or not whole.
    pub fn read(image: &'a [u8]) -> Result<Self, CubinError> {
        let header = ElfHeader::read(image)?;
        let past_end =
            |part: &str, end| CubinError::PastEnd { part: part.to_owned(), end, bytes: image.len() as u64 };
        let image_bytes =
            header.image_bytes(image).ok_or_else(|| past_end("the section table", header.tables_end()))?;
        let mut allowance = Allowance::of(image);
        let sections = Sections::read(&header, image, &mut allowance)?;
        if let Some(&(name, section)) = sections.all.iter().find(|named| named.1.end() > image.len() as u64) {
            let name: String = name.chars().take(80).collect();
            return Err(past_end(&format!("section {name:?}"), section.end()));
        }
        if image_bytes > image.len() as u64 {
            return Err(past_end("a segment", image_bytes));
        }
        let mut cubin =
            Self { header, sm: header.sm(), kernels: Vec::new(), globals: Vec::new(), image_bytes };
        if let Some(sm) = &mut cubin.sm
            && let Some(compat) = sections.data(".nv.compat", image)
            && attributes(compat).any(|attribute| attribute.number == COMPAT_EXACT && attribute.value == 1)
        {
            sm.portability = Portability::Exact;
        }
        cubin.read_symbols(image, &sections, &mut allowance)?;
        Ok(cubin)
    }

    fn read_symbols(
        &mut self,
        image: &'a [u8],
        sections: &Sections<'a>,
        allowance: &mut Allowance,
    ) -> Result<(), CubinError> {
        let Some(table) = sections.all.iter().map(|named| named.1).find(|section| section.kind == SHT_SYMTAB)
        else {
            return Ok(());
        };
        let strings = sections.all.get(table.link as usize).and_then(|named| named.1.data(image));
        let (Some(symbols), Some(strings)) = (table.data(image), strings) else { return Ok(()) };
        let calls = Calls::read(sections, image, symbols, allowance)?;
        for symbol in symbols.chunks_exact(SYMBOL_BYTES).filter_map(Symbol::read) {
            let place = usize::from(symbol.section);
            let (Some(&(_, section)), Some(&holds)) = (sections.all.get(place), sections.holds.get(place))
            else {
                continue;
            };
            let is_kernel = symbol.kind == STT_FUNC && symbol.other & STO_ENTRY != 0;
            if !is_kernel && (symbol.kind != STT_OBJECT || holds == Holds::Other) {
                continue;
            }
            let Some(name) = allowance.name(strings, symbol.name)? else { continue };
            if is_kernel {
                let mut kernel = self.read_kernel(image, sections, name, allowance)?;
                if let Some(undefined) = calls.undefined_of(symbol.section) {
                    kernel.undefined = allowance.name(strings, undefined)?;
                }
                self.kernels.push(kernel);
            } else {
                let initial = section.data(image).and_then(|data| range(data, symbol.value, symbol.bytes));
                allowance.take(initial.map_or(0, <[u8]>::len) as u64)?;
                self.globals.push(CubinGlobal {
                    name,
                    bytes: symbol.bytes,
                    align: section.align.max(1),
                    is_constant: holds == Holds::Constants,
                    initial,
                });
            }
        }
        Ok(())
    }

    fn read_kernel(
        &self,
        image: &'a [u8],
        sections: &Sections<'a>,
        name: &'a str,
        allowance: &mut Allowance,
    ) -> Result<CubinKernel<'a>, CubinError> {
        let mut kernel = CubinKernel {
            name,
            parameters: Vec::new(),
            static_shared_bytes: 0,
            max_threads: None,
            required_threads: None,
            undefined: None,
        };
        if let Some(section) = sections.find(&format!(".nv.shared.{name}")) {
            let reserved = if self.sm.is_some_and(|sm| sm.number >= 90) { RESERVED_SHARED_BYTES } else { 0 };
            kernel.static_shared_bytes = section.bytes.saturating_sub(reserved);
        }
        let info = sections.data(&format!(".nv.info.{name}"), image).unwrap_or_default();
        allowance.take(info.len() as u64)?;
        for attribute in attributes(info) {
            let extent = || {
                let data = attribute.data;
                Some([u32_at(data, 0)?, u32_at(data, 4)?, u32_at(data, 8)?])
            };
            match attribute.number {
                INFO_PARAMETER => kernel.parameters.extend(parameter(attribute.data)),
                INFO_MAX_THREADS => kernel.max_threads = extent(),
                INFO_REQUIRED_THREADS => kernel.required_threads = extent(),
                _ => {}
            }
        }
        kernel.parameters.sort_by_key(|parameter| parameter.offset);
        Ok(kernel)
    }
}

/// The variables that a section holds, by its name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    Globals,
    Constants,
    Other,
}

impl Holds {
    fn of(section: &str) -> Self {
        let is_bank = |bank: &str| !bank.is_empty() && bank.bytes().all(|byte| byte.is_ascii_digit());
        match section {
            ".nv.global" | ".nv.global.init" => Self::Globals,
            _ if section.strip_prefix(".nv.constant").is_some_and(is_bank) => Self::Constants,
            _ => Self::Other,
        }
    }
}

/// All sections, in the table's order and by name.
pub(super) struct Sections<'a> {
    pub(super) all: Vec<(&'a str, Section)>,
    /// Of each in the table's order.
    holds: Vec<Holds>,
    /// The first of each name, by its place.
    by_name: HashMap<&'a str, u16>,
}

impl<'a> Sections<'a> {
    fn read(header: &ElfHeader, image: &'a [u8], allowance: &mut Allowance) -> Result<Self, CubinError> {
        let sections: Vec<Section> = header.sections(image).collect();
        let names = sections.get(usize::from(header.names_section)).and_then(|section| section.data(image));
        let mut all = Vec::with_capacity(sections.len());
        let mut holds = Vec::with_capacity(sections.len());
        let mut by_name = HashMap::with_capacity(sections.len());
        for (index, section) in (0..).zip(sections) {
            let name = allowance.name(names.unwrap_or_default(), section.name)?.unwrap_or_default();
            by_name.entry(name).or_insert(index);
            all.push((name, section));
            holds.push(Holds::of(name));
        }
        Ok(Self { all, holds, by_name })
    }

    fn find(&self, name: &str) -> Option<Section> {
        self.by_name.get(name).map(|&index| self.all[usize::from(index)].1)
    }

    fn data(&self, name: &str, image: &'a [u8]) -> Option<&'a [u8]> {
        self.find(name)?.data(image)
    }
}

/// What the hardware keeps for itself at the start of a block's shared memory from sm_90 on, and the section counts.
const RESERVED_SHARED_BYTES: u64 = 1024;

pub(super) const SYMBOL_BYTES: usize = 24;
const STT_OBJECT: u8 = 1;
pub(super) const STT_FUNC: u8 = 2;
/// The mark of a kernel among functions.
const STO_ENTRY: u8 = 0x10;

/// An entry of the symbol table.
pub(super) struct Symbol {
    pub(super) name: u32,
    pub(super) kind: u8,
    other: u8,
    /// Where it is defined; 0 where the file does not define it.
    pub(super) section: u16,
    value: u64,
    bytes: u64,
}

impl Symbol {
    pub(super) fn read(entry: &[u8]) -> Option<Self> {
        let [info, other] = array(entry, 4)?;
        Some(Self {
            name: u32_at(entry, 0)?,
            kind: info & 0xf,
            other,
            section: u16_at(entry, 6)?,
            value: u64_at(entry, 8)?,
            bytes: u64_at(entry, 16)?,
        })
    }
}

/// `.nv.compat`: 1 for code of this one architecture.
const COMPAT_EXACT: u8 = 9;
const INFO_MAX_THREADS: u8 = 0x05;
const INFO_REQUIRED_THREADS: u8 = 0x10;
const INFO_PARAMETER: u8 = 0x17;

/// A record of the `.nv.info` and `.nv.compat` sections.
struct Attribute<'a> {
    number: u8,
    /// The value of a record that has one of a byte or two.
    value: u16,
    /// The data of a record that has some.
    data: &'a [u8],
}

/// The records of a section: format, number, then two bytes that are the value or, in format 4, the size of data that
/// follows. Ends where the data does.
fn attributes(mut section: &[u8]) -> impl Iterator<Item = Attribute<'_>> {
    const HAS_DATA: u8 = 4;
    std::iter::from_fn(move || {
        let [format, number] = array(section, 0)?;
        let value = u16_at(section, 2)?;
        let bytes = if format == HAS_DATA { usize::from(value) } else { 0 };
        let data = section.get(4..4 + bytes)?;
        section = &section[4 + bytes..];
        Some(Attribute { number, value: if format == 2 { value & 0xff } else { value }, data })
    })
}

/// Index and ordinal, offset, then a word whose upper 14 bits are the size.
fn parameter(data: &[u8]) -> Option<CubinParameter> {
    Some(CubinParameter { offset: u64::from(u16_at(data, 6)?), bytes: u64::from(u32_at(data, 8)? >> 18) })
}
