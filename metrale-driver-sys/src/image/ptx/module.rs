// SPDX-License-Identifier: MIT OR Apache-2.0
//! A whole PTX text, read from its header to its end.

use std::collections::HashMap;

use super::cursor::Cursor;
use super::declaration::{
    Function, FunctionKind, Linkage, StateSpace, Variable, read_parameter, read_variables,
};
use super::flaw::{Flaw, FlawKind, MAX_CALL_STEPS, shown};
use super::header::{self, Header};
use super::initial::{self, Initial};
use super::lexer::{Lexer, Token, TokenKind};
use super::shared::{SharedMemory, TooManySteps};
use super::text::Text;

/// What a PTX text says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ptx<'a> {
    /// The first directives.
    pub header: Header<'a>,
    /// Kernels and functions in the order of their first mention, declarations included.
    pub functions: Vec<Function<'a>>,
    /// Variables outside functions in the order of their first mention, declarations included.
    pub variables: Vec<Variable<'a>>,
    /// The line of a `.version` behind the first declaration: another text begins there, which no driver takes.
    pub second_version_line: Option<u32>,
    /// Whether there is any `.section`, as debug information has.
    pub has_sections: bool,
    /// Functions that are declared but not defined here, and not the driver's own, where a body uses them or they are
    /// not even `.extern`: no driver can complete this text alone.
    pub undefined_functions: Vec<&'a str>,
    /// What is wrong, by line; at most [`MAX_FLAWS`](super::MAX_FLAWS) of them, two from comments and two limits.
    pub flaws: Vec<Flaw>,
    /// What stands behind the text's NUL and is therefore not part of it, without the NULs at its end.
    pub after_nul: &'a [u8],
}

/// Functions a driver brings along.
const DRIVER_FUNCTIONS: [&str; 5] = ["vprintf", "malloc", "free", "__assertfail", "__assert_fail"];

impl<'a> Ptx<'a> {
    /// Reads a text. A byte order mark, bytes in front of the text and a missing NUL do not keep it from being read.
    #[must_use]
    pub fn read(image: &'a [u8]) -> Self {
        let text = Text::of(image);
        let mut reader = Reader::new(text.code);
        if text.has_bom {
            reader.cursor.flaw(1, FlawKind::ByteOrderMark);
        }
        if !text.leading_bytes.is_empty() {
            reader.cursor.flaw(1, FlawKind::LeadingBytes(text.leading_bytes.len()));
        }
        reader.ptx.header = header::read(&mut reader.cursor);
        reader.ptx.after_nul = text.after_nul;
        reader.read_module();
        reader.finish()
    }

    /// The kernels that can be launched, in their order.
    pub fn entries(&self) -> impl Iterator<Item = &Function<'a>> {
        self.functions.iter().filter(|function| function.kind == FunctionKind::Entry && function.is_defined)
    }

    /// The kernel of a name.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&Function<'a>> {
        self.entries().find(|entry| entry.name == name)
    }

    /// The variables in global and constant memory that the text defines, in their order.
    pub fn globals(&self) -> impl Iterator<Item = &Variable<'a>> {
        self.variables.iter().filter(|variable| {
            matches!(variable.space, StateSpace::Global | StateSpace::Const)
                && variable.linkage != Linkage::Extern
                && !variable.is_opaque
        })
    }

    /// The names of kernels behind the text's NUL, which the driver will not find.
    #[must_use]
    pub fn entries_after_nul(&self) -> Vec<&'a str> {
        let mut is_behind_entry = false;
        let names = Lexer::new(self.after_nul).filter(|token| {
            let is_name = is_behind_entry && token.kind == TokenKind::Word;
            is_behind_entry = token.is_directive(".entry");
            is_name
        });
        names.map(|name| name.as_str()).collect()
    }
}

/// What a name stands for, by its place among its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Symbol {
    Function(u32),
    Variable(u32),
}

/// What a body declares and mentions, beside its [`Function`].
#[derive(Clone, Debug, Default)]
pub(super) struct Body {
    /// Size and alignment of each of its own variables in shared memory.
    pub(super) shared: Vec<(u64, u64)>,
    /// Each symbol once.
    pub(super) mentions: Vec<Symbol>,
    /// Whether it names another function.
    pub(super) calls: bool,
}

/// A name's entry.
struct Named {
    symbol: Symbol,
    /// The number of the body that mentioned it last.
    mentioned_by: u32,
}

struct Reader<'a> {
    cursor: Cursor<'a>,
    ptx: Ptx<'a>,
    /// One a function, at the same index.
    bodies: Vec<Body>,
    symbols: HashMap<&'a str, Named>,
    /// How many bodies were begun.
    bodies_begun: u32,
    /// Functions whose address a variable holds at first.
    initial_mentions: Vec<Symbol>,
}

impl<'a> Reader<'a> {
    fn new(code: &'a [u8]) -> Self {
        Self {
            cursor: Cursor::new(code),
            ptx: Ptx::default(),
            bodies: Vec::new(),
            symbols: HashMap::new(),
            bodies_begun: 0,
            initial_mentions: Vec::new(),
        }
    }

    fn read_module(&mut self) {
        let mut linkage = Linkage::Internal;
        while let Some(token) = self.cursor.peek() {
            if let Some(word) = Linkage::of(&token) {
                linkage = word;
                self.cursor.next();
                continue;
            }
            let linkage = std::mem::take(&mut linkage);
            if token.kind != TokenKind::Directive {
                self.cursor.unexpected();
                self.cursor.skip_line(token.line);
                continue;
            }
            self.cursor.next();
            match token.text {
                b".entry" => self.read_function(FunctionKind::Entry, linkage),
                b".func" => self.read_function(FunctionKind::Func, linkage),
                b".file" | b".loc" => self.cursor.skip_line(token.line),
                b".pragma" => self.cursor.skip_statement(),
                b".alias" => self.read_alias(),
                b".section" => self.read_section(),
                b".version" | b".target" | b".address_size" => {
                    let directive = shown(Some(&token));
                    let is_behind = !self.ptx.functions.is_empty() || !self.ptx.variables.is_empty();
                    if token.text == b".version" && is_behind {
                        self.ptx.second_version_line.get_or_insert(token.line);
                    }
                    self.cursor.flaw(token.line, FlawKind::MisplacedHeader { directive });
                    self.cursor.skip_line(token.line);
                }
                _ => match StateSpace::of(&token) {
                    Some(space) => self.read_module_variables(space, linkage),
                    None => {
                        let directive = shown(Some(&token));
                        self.cursor.flaw(token.line, FlawKind::UnknownDirective { directive });
                        self.cursor.skip_line(token.line);
                    }
                },
            }
        }
    }

    fn read_section(&mut self) {
        self.ptx.has_sections = true;
        // The section's name is a directive or a word.
        self.cursor.next_if(|token| matches!(token.kind, TokenKind::Directive | TokenKind::Word));
        match self.cursor.next_if(|token| token.is_punct(b'{')) {
            Some(open) => self.cursor.skip_group(b'{', b'}', open.line),
            None => self.cursor.unexpected(),
        }
    }

    /// `.alias new, defined;`: the declared function `new` is complete where `defined` is.
    fn read_alias(&mut self) {
        let new = self.cursor.next_if(|token| token.kind == TokenKind::Word);
        self.cursor.next_if_punct(b',');
        let defined = self.cursor.next_if(|token| token.kind == TokenKind::Word);
        if let (Some(new), Some(defined)) = (new, defined)
            && let Some(&Named { symbol: Symbol::Function(index), .. }) = self.symbols.get(new.as_str())
        {
            self.ptx.functions[index as usize].is_defined = true;
            let mention = self.symbols.get(defined.as_str()).map(|named| named.symbol);
            self.bodies[index as usize].mentions.extend(mention);
        }
        self.cursor.skip_statement();
    }

    fn read_module_variables(&mut self, space: StateSpace, linkage: Linkage) {
        let (variables, symbols, mentions) =
            (&mut self.ptx.variables, &mut self.symbols, &mut self.initial_mentions);
        read_variables(&mut self.cursor, space, linkage, |cursor, variable| {
            if let Initial::Symbolic(symbol) = &variable.initial {
                mentions.extend(symbols.get(symbol.as_ref()).map(|named| named.symbol));
            }
            let earlier = symbols.get(variable.name).map(|named| named.symbol);
            match earlier {
                None if cursor.counts() => {
                    let symbol = Symbol::Variable(variables.len() as u32);
                    symbols.insert(variable.name, Named { symbol, mentioned_by: 0 });
                    variables.push(variable);
                }
                None => {}
                Some(Symbol::Variable(index)) if variables[index as usize].linkage == Linkage::Extern => {
                    variables[index as usize] = variable;
                }
                Some(Symbol::Variable(_)) if variable.linkage == Linkage::Extern => {}
                Some(symbol) => {
                    let first_line = match symbol {
                        Symbol::Variable(index) => variables[index as usize].line,
                        Symbol::Function(_) => 0,
                    };
                    let kind = FlawKind::Duplicate { name: variable.name.to_owned(), first_line };
                    cursor.flaw(variable.line, kind);
                }
            }
        });
    }

    fn read_function(&mut self, kind: FunctionKind, linkage: Linkage) {
        // `.func .attribute(.unified(..)) (.param .b32 result) name`.
        while self.cursor.next_if(|token| token.kind == TokenKind::Directive).is_some() {
            self.skip_parentheses();
        }
        if kind == FunctionKind::Func {
            self.skip_parentheses();
        }
        let Some(word) = self.cursor.next_if(|token| token.kind == TokenKind::Word) else {
            self.cursor.unexpected();
            return;
        };
        let mut function = Function {
            name: word.as_str(),
            kind,
            linkage,
            line: word.line,
            is_defined: false,
            parameters: Vec::new(),
            max_threads: None,
            required_threads: None,
            static_shared_bytes: 0,
        };
        let mut body = Body::default();
        if let Some(open) = self.cursor.next_if(|token| token.is_punct(b'(')) {
            self.read_parameters(open.line, &mut function);
        }
        self.read_tuning(&mut function);
        if let Some(open) = self.cursor.next_if(|token| token.is_punct(b'{')) {
            function.is_defined = true;
            self.read_body(open.line, &mut function, &mut body);
        } else if !self.cursor.next_if_punct(b';') && !self.ends_without_semicolon(kind) {
            self.cursor.unexpected();
        }
        self.declare(function, body);
    }

    /// Whether a declaration may end where it stands: a function's before any directive and at the end of the text, as in
    /// texts of the versions 2.x and by assemblers to this day. A kernel's may not.
    fn ends_without_semicolon(&self, kind: FunctionKind) -> bool {
        kind == FunctionKind::Func
            && self.cursor.peek().is_none_or(|token| token.kind == TokenKind::Directive)
    }

    fn skip_parentheses(&mut self) {
        if let Some(open) = self.cursor.next_if(|token| token.is_punct(b'(')) {
            self.cursor.skip_group(b'(', b')', open.line);
        }
    }

    /// Reads a list of parameters to its closing parenthesis.
    fn read_parameters(&mut self, line: u32, function: &mut Function<'a>) {
        while let Some(token) = self.cursor.next() {
            if token.is_punct(b')') {
                return;
            }
            if token.is_punct(b',') {
                continue;
            }
            let is_parameter = token.is_directive(".param") || token.is_directive(".reg");
            if !is_parameter || read_parameter(&mut self.cursor, &mut function.parameters).is_none() {
                if self.cursor.peek().is_none() {
                    break;
                }
                let found = shown(Some(&token));
                self.cursor.flaw(token.line, FlawKind::Unexpected { found });
                self.cursor.skip_group(b'(', b')', line);
                return;
            }
        }
        self.cursor.flaw(line, FlawKind::OpenBrace);
    }

    /// Reads what stands between the parameters and the body.
    fn read_tuning(&mut self, function: &mut Function<'a>) {
        loop {
            // A declaration may end without a semicolon, and then another directive of the module follows.
            let starts_another = |token: &Token<'a>| {
                let of_module: [&[u8]; 9] = [
                    b".entry",
                    b".func",
                    b".section",
                    b".file",
                    b".loc",
                    b".alias",
                    b".version",
                    b".target",
                    b".address_size",
                ];
                Linkage::of(token).is_some()
                    || StateSpace::of(token).is_some()
                    || of_module.contains(&token.text)
            };
            let directive =
                self.cursor.next_if(|token| token.kind == TokenKind::Directive && !starts_another(token));
            let Some(directive) = directive else { return };
            match directive.text {
                b".pragma" => self.cursor.skip_statement(),
                b".maxntid" => function.max_threads = self.read_extent(),
                b".reqntid" => function.required_threads = self.read_extent(),
                _ => {
                    self.skip_parentheses();
                    self.read_extent();
                }
            }
        }
    }

    /// Reads up to three numbers with commas between; 1 for those that are missing.
    fn read_extent(&mut self) -> Option<[u32; 3]> {
        let mut extent = [1; 3];
        let mut count = 0;
        while let Some(token) = self.cursor.next_if(|token| token.kind == TokenKind::Number) {
            if let Some(place) = extent.get_mut(count) {
                *place = initial::integer(token.as_str()).and_then(|value| u32::try_from(value).ok())?;
            }
            count += 1;
            if !self.cursor.next_if_punct(b',') {
                break;
            }
        }
        (count > 0).then_some(extent)
    }

    /// Reads a body for the shared memory it declares, the parameters that the oldest texts declare
    /// there, and which symbols it mentions.
    fn read_body(&mut self, line: u32, function: &mut Function<'a>, body: &mut Body) {
        let declares_parameters = function.kind == FunctionKind::Entry
            && function.parameters.is_empty()
            && self.ptx.header.version.is_some_and(|version| version.major < 2);
        self.bodies_begun += 1;
        let mut depth = 1_usize;
        let mut at_statement = true;
        while let Some(token) = self.cursor.next() {
            match (token.kind, token.text) {
                (TokenKind::Punct, b"{") => depth += 1,
                (TokenKind::Punct, b"}") => {
                    depth -= 1;
                    if depth == 0 {
                        return;
                    }
                }
                // The one directive in a body that no semicolon ends.
                (TokenKind::Directive, b".loc") if at_statement => {
                    self.cursor.skip_line(token.line);
                    continue;
                }
                (TokenKind::Directive, b".shared") if at_statement => {
                    read_variables(
                        &mut self.cursor,
                        StateSpace::Shared,
                        Linkage::Internal,
                        |cursor, variable| {
                            if cursor.counts() {
                                body.shared.push((variable.bytes, variable.align));
                            }
                        },
                    );
                    continue;
                }
                (TokenKind::Directive, b".param") if at_statement && depth == 1 && declares_parameters => {
                    // What is not read as a parameter is an instruction's affair.
                    let _ = read_parameter(&mut self.cursor, &mut function.parameters);
                }
                (TokenKind::Word, text) if text[0] != b'%' => {
                    if let Some(named) = self.symbols.get_mut(token.as_str())
                        && std::mem::replace(&mut named.mentioned_by, self.bodies_begun) != self.bodies_begun
                    {
                        body.mentions.push(named.symbol);
                    }
                }
                _ => {}
            }
            at_statement = token.kind == TokenKind::Punct && matches!(token.text, b";" | b"{" | b"}" | b":");
        }
        self.cursor.flaw(line, FlawKind::OpenBrace);
    }

    /// Files a function under its name, or completes the declaration that is there.
    fn declare(&mut self, function: Function<'a>, body: Body) {
        match self.symbols.get(function.name).map(|named| named.symbol) {
            None if self.cursor.counts() => {
                let symbol = Symbol::Function(self.ptx.functions.len() as u32);
                self.symbols.insert(function.name, Named { symbol, mentioned_by: 0 });
                self.ptx.functions.push(function);
                self.bodies.push(body);
            }
            None => {}
            Some(Symbol::Function(index)) => {
                let index = index as usize;
                let earlier = &mut self.ptx.functions[index];
                if earlier.is_defined && function.is_defined {
                    let first_line = earlier.line;
                    let kind = FlawKind::Duplicate { name: function.name.to_owned(), first_line };
                    self.cursor.flaw(function.line, kind);
                } else if function.is_defined {
                    *earlier = function;
                    self.bodies[index] = body;
                }
            }
            Some(Symbol::Variable(index)) => {
                let first_line = self.ptx.variables[index as usize].line;
                let kind = FlawKind::Duplicate { name: function.name.to_owned(), first_line };
                self.cursor.flaw(function.line, kind);
            }
        }
    }

    fn finish(mut self) -> Ptx<'a> {
        for body in &mut self.bodies {
            body.mentions.sort_unstable();
            body.mentions.dedup();
        }
        self.ptx.undefined_functions = self.undefined_functions();
        self.symbols = HashMap::new();
        self.find_shared_bytes();
        self.ptx.flaws = self.cursor.into_flaws();
        self.ptx
    }

    fn find_shared_bytes(&mut self) {
        let mut shared = SharedMemory::new(&self.ptx.variables, &mut self.bodies, MAX_CALL_STEPS);
        for (index, function) in self.ptx.functions.iter_mut().enumerate() {
            if function.kind != FunctionKind::Entry || !function.is_defined {
                continue;
            }
            match shared.of(index) {
                Ok(bytes) => function.static_shared_bytes = bytes,
                Err(TooManySteps) => {
                    self.cursor.limit(function.line, "steps from kernels to shared memory", MAX_CALL_STEPS);
                    return;
                }
            }
        }
    }

    fn undefined_functions(&self) -> Vec<&'a str> {
        let mut is_mentioned = vec![false; self.ptx.functions.len()];
        let mentions = self.bodies.iter().flat_map(|body| &body.mentions).chain(&self.initial_mentions);
        for mention in mentions {
            if let Symbol::Function(index) = *mention {
                is_mentioned[index as usize] = true;
            }
        }
        let undefined = self.ptx.functions.iter().zip(is_mentioned).filter(|(function, is_mentioned)| {
            !function.is_defined
                && !DRIVER_FUNCTIONS.contains(&function.name)
                && (*is_mentioned || function.linkage != Linkage::Extern)
        });
        undefined.map(|(function, _)| function.name).collect()
    }
}
