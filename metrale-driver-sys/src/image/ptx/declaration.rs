// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a PTX text declares: kernels, functions, variables, parameters, and how large they are.

use super::cursor::Cursor;
use super::flaw::FlawKind;
use super::initial::{self, Initial};
use super::lexer::{Token, TokenKind};

/// How a name is seen from outside its text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Linkage {
    /// No word: not seen. (A driver finds a kernel without a word all the same.)
    #[default]
    Internal,
    /// `.visible`.
    Visible,
    /// `.extern`: defined elsewhere.
    Extern,
    /// `.weak`.
    Weak,
    /// `.common`.
    Common,
}

impl Linkage {
    /// The linkage a directive names.
    pub(super) fn of(token: &Token<'_>) -> Option<Self> {
        if token.kind != TokenKind::Directive {
            return None;
        }
        match token.text {
            b".visible" => Some(Self::Visible),
            b".extern" => Some(Self::Extern),
            b".weak" => Some(Self::Weak),
            b".common" => Some(Self::Common),
            _ => None,
        }
    }
}

/// Kernel or function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FunctionKind {
    /// `.entry`: can be launched.
    Entry,
    /// `.func`: can only be called.
    Func,
}

/// A kernel or a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function<'a> {
    /// Its name.
    pub name: &'a str,
    /// Kernel or function.
    pub kind: FunctionKind,
    /// How it is seen from outside.
    pub linkage: Linkage,
    /// The line its name stands on.
    pub line: u32,
    /// Whether its body is here too; else this is a declaration only.
    pub is_defined: bool,
    /// The parameters, in order, placed one behind the other by size and alignment.
    pub parameters: Vec<Parameter<'a>>,
    /// `.maxntid`: the most threads a block may have along x, y, z; 1 where the text is silent.
    pub max_threads: Option<[u32; 3]>,
    /// `.reqntid`: the threads a block must have along x, y, z.
    pub required_threads: Option<[u32; 3]>,
    /// Shared memory a kernel declares or uses, also through functions it names, in bytes. Without the dynamic part, which
    /// has no size in the text; 0 for functions that are no kernels.
    pub static_shared_bytes: u64,
}

/// One parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter<'a> {
    /// Its name.
    pub name: &'a str,
    /// Where it begins in the parameter block, in bytes, if the block's own start is aligned. Machine code may put
    /// a parameter of large alignment elsewhere, since its block begins where the architecture says.
    pub offset: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its alignment in bytes, a power of two.
    pub align: u64,
}

/// Which memory a variable lives in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StateSpace {
    /// `.global`.
    Global,
    /// `.const`.
    Const,
    /// `.shared`.
    Shared,
    /// `.local`.
    Local,
    /// `.param`.
    Param,
    /// `.reg`.
    Reg,
    /// `.tex`, the textures of old texts.
    Tex,
}

impl StateSpace {
    /// The space a directive names.
    pub(super) fn of(token: &Token<'_>) -> Option<Self> {
        if token.kind != TokenKind::Directive {
            return None;
        }
        match token.text {
            b".global" => Some(Self::Global),
            b".const" => Some(Self::Const),
            b".shared" => Some(Self::Shared),
            b".local" => Some(Self::Local),
            b".param" => Some(Self::Param),
            b".reg" | b".sreg" => Some(Self::Reg),
            b".tex" => Some(Self::Tex),
            _ => None,
        }
    }
}

/// A variable declared outside functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable<'a> {
    /// Its name.
    pub name: &'a str,
    /// Which memory it lives in.
    pub space: StateSpace,
    /// How it is seen from outside.
    pub linkage: Linkage,
    /// The line its name stands on.
    pub line: u32,
    /// Its size in bytes; 0 where the declaration has none.
    pub bytes: u64,
    /// Its alignment in bytes, a power of two.
    pub align: u64,
    /// Whether it is `.attribute(.managed)`.
    pub is_managed: bool,
    /// Whether it is a texture, sampler or surface rather than data.
    pub is_opaque: bool,
    /// What it holds at first.
    pub initial: Initial<'a>,
}

/// A type as the declarations name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scalar {
    pub(super) bytes: u64,
    pub(super) number: Number,
    /// Elements of the vector; 1 for a scalar.
    pub(super) width: u64,
}

/// How a type reads a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    Integer,
    Float,
    /// Textures, samplers, surfaces, and what takes no initial value.
    Opaque,
}

fn scalar(token: &Token<'_>) -> Option<(u64, Number)> {
    if token.kind != TokenKind::Directive {
        return None;
    }
    Some(match token.text {
        b".b8" | b".u8" | b".s8" => (1, Number::Integer),
        b".pred" => (1, Number::Opaque),
        b".b16" | b".u16" | b".s16" => (2, Number::Integer),
        b".f16" | b".bf16" => (2, Number::Opaque),
        b".b32" | b".u32" | b".s32" => (4, Number::Integer),
        b".f32" => (4, Number::Float),
        b".f16x2" | b".bf16x2" => (4, Number::Opaque),
        b".b64" | b".u64" | b".s64" => (8, Number::Integer),
        b".f64" => (8, Number::Float),
        b".texref" | b".samplerref" | b".surfref" => (8, Number::Opaque),
        b".b128" => (16, Number::Integer),
        _ => return None,
    })
}

/// What stands between a state space and the names: alignment, type, attributes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Declarator {
    pub(super) scalar: Scalar,
    pub(super) align: u64,
    pub(super) is_managed: bool,
    pub(super) is_opaque: bool,
}

impl Declarator {
    /// Reads up to the name. `None` where there is no type: then nothing sensible follows.
    pub(super) fn read(cursor: &mut Cursor<'_>) -> Option<Self> {
        let mut found: Option<(u64, Number)> = None;
        let (mut width, mut align, mut is_managed, mut is_opaque, mut behind_ptr) =
            (1, None, false, false, false);
        while let Some(token) = cursor.next_if(|token| token.kind == TokenKind::Directive) {
            match token.text {
                b".align" => {
                    let value = cursor.next_if(|token| token.kind == TokenKind::Number);
                    // Behind `.ptr` stands the alignment of what is pointed to.
                    if !behind_ptr {
                        align = value.and_then(|token| initial::integer(token.as_str())).filter(is_alignment);
                    }
                }
                b".ptr" => behind_ptr = true,
                b".v2" => width = 2,
                b".v4" => width = 4,
                b".v8" => width = 8,
                b".attribute" => is_managed |= read_attribute(cursor),
                _ if found.is_none() => {
                    found = scalar(&token);
                    is_opaque = matches!(token.text, b".texref" | b".samplerref" | b".surfref");
                }
                _ => {}
            }
        }
        let (bytes, number) = found?;
        let scalar = Scalar { bytes, number, width };
        Some(Self { scalar, align: align.unwrap_or(bytes * width), is_managed, is_opaque })
    }

    /// Reads what stands behind the name between brackets: the lengths, outermost first, `None` for `[]`.
    pub(super) fn read_dimensions(cursor: &mut Cursor<'_>, name: &str) -> Vec<Option<u64>> {
        let mut dimensions = Vec::new();
        while let Some(open) = cursor.next_if(|token| token.is_punct(b'[')) {
            let value = cursor.next_if(|token| token.kind == TokenKind::Number);
            let length = value.and_then(|token| initial::integer(token.as_str()));
            if value.is_some() && length.is_none() {
                cursor.flaw(open.line, FlawKind::SizeOverflow { name: name.to_owned() });
            }
            if !cursor.next_if_punct(b']') {
                cursor.flaw(open.line, FlawKind::UnreadSize { name: name.to_owned() });
                cursor.skip_group(b'[', b']', open.line);
                dimensions.push(Some(0));
                continue;
            }
            dimensions.push(if value.is_some() { Some(length.unwrap_or(0)) } else { None });
        }
        dimensions
    }

    /// The size of a variable of this type and these lengths; `None` for one beyond 64 bits.
    pub(super) fn bytes(&self, dimensions: &[Option<u64>]) -> Option<u64> {
        let element = self.scalar.bytes * self.scalar.width;
        dimensions.iter().try_fold(element, |bytes, length| bytes.checked_mul(length.unwrap_or(0)))
    }
}

fn is_alignment(align: &u64) -> bool {
    align.is_power_of_two()
}

/// Reads `(.managed)` and the like behind `.attribute`; whether it says managed.
fn read_attribute(cursor: &mut Cursor<'_>) -> bool {
    let mut is_managed = false;
    if let Some(open) = cursor.next_if(|token| token.is_punct(b'(')) {
        is_managed = cursor.peek().is_some_and(|token| token.is_directive(".managed"));
        cursor.skip_group(b'(', b')', open.line);
    }
    is_managed
}

/// Reads one parameter, from behind `.param` (or `.reg`) to its end, and places it behind the others.
pub(super) fn read_parameter<'a>(cursor: &mut Cursor<'a>, parameters: &mut Vec<Parameter<'a>>) -> Option<()> {
    let declarator = Declarator::read(cursor)?;
    let word = cursor.next_if(|token| token.kind == TokenKind::Word)?;
    let name = word.as_str();
    let dimensions = Declarator::read_dimensions(cursor, name);
    let behind = parameters.last().map_or(0, |last| last.offset + last.bytes);
    let placed = declarator.bytes(&dimensions).and_then(|bytes| {
        let offset = behind.checked_next_multiple_of(declarator.align)?;
        offset.checked_add(bytes)?;
        Some(Parameter { name, offset, bytes, align: declarator.align })
    });
    match placed {
        Some(parameter) if cursor.counts() => parameters.push(parameter),
        Some(_) => {}
        None => cursor.flaw(word.line, FlawKind::SizeOverflow { name: name.to_owned() }),
    }
    Some(())
}

/// Reads the variables of one statement, from behind their state space to the `;`.
pub(super) fn read_variables<'a>(
    cursor: &mut Cursor<'a>,
    space: StateSpace,
    linkage: Linkage,
    mut take: impl FnMut(&mut Cursor<'a>, Variable<'a>),
) {
    // Old texts number their constant banks: `.const[2]`.
    if let Some(open) = cursor.next_if(|token| token.is_punct(b'[')) {
        cursor.skip_group(b'[', b']', open.line);
    }
    let Some(declarator) = Declarator::read(cursor) else {
        cursor.unexpected();
        cursor.skip_statement();
        return;
    };
    loop {
        let Some(word) = cursor.next_if(|token| token.kind == TokenKind::Word) else {
            cursor.unexpected();
            break;
        };
        let name = word.as_str();
        // `%r<17>` declares a range of registers.
        if let Some(open) = cursor.next_if(|token| token.is_punct(b'<')) {
            cursor.skip_group(b'<', b'>', open.line);
        }
        let mut dimensions = Declarator::read_dimensions(cursor, name);
        let mut initial = Initial::Zero;
        if cursor.next_if_punct(b'=') {
            initial = initial::read(cursor, &declarator, &mut dimensions);
        }
        let has_size = dimensions.iter().all(|length| length.is_some_and(|length| length > 0));
        let bytes = declarator.bytes(&dimensions).unwrap_or_else(|| {
            cursor.flaw(word.line, FlawKind::SizeOverflow { name: name.to_owned() });
            0
        });
        if !has_size && linkage != Linkage::Extern && space != StateSpace::Reg {
            cursor.flaw(word.line, FlawKind::IncompleteType { name: name.to_owned() });
        }
        let variable = Variable {
            name,
            space,
            linkage,
            line: word.line,
            bytes,
            align: declarator.align,
            is_managed: declarator.is_managed,
            is_opaque: declarator.is_opaque || space == StateSpace::Tex,
            initial,
        };
        take(cursor, variable);
        if !cursor.next_if_punct(b',') {
            break;
        }
    }
    if !cursor.next_if_punct(b';') {
        cursor.unexpected();
        cursor.skip_statement();
    }
}
