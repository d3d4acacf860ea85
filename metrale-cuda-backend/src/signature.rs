// SPDX-License-Identifier: MIT OR Apache-2.0
//! What parameters a kernel takes, read out of its image, so that a launch with the wrong ones is refused: the driver
//! reads as many values as the kernel has, wherever they may lie.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use metrale_driver_sys::image::Code;
use metrale_driver_sys::image::cubin::Cubin;
use metrale_driver_sys::image::ptx::Ptx;

use crate::error::BadArgument;

/// The sizes of a kernel's parameters in bytes, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Signature(Arc<[u64]>);

impl Signature {
    /// Refuses typed arguments that are not the parameters in number and size.
    #[inline]
    pub(crate) fn check(
        &self,
        kernel: &str,
        given: impl ExactSizeIterator<Item = u64> + Clone,
    ) -> Result<(), BadArgument> {
        let is_it = given.len() == self.0.len()
            && self.0.iter().zip(given.clone()).all(|(&size, given)| size == given);
        if is_it { Ok(()) } else { Err(self.other(kernel, given.collect())) }
    }

    #[cold]
    fn other(&self, kernel: &str, given: Vec<u64>) -> BadArgument {
        BadArgument::new(format!(
            "launching {kernel}: it takes {}, and was given {}",
            List(&self.0, "parameter"),
            List(&given, "argument")
        ))
    }

    /// Refuses fewer untyped parameters than the kernel has; what more there are, the driver does not look at.
    pub(crate) fn check_count(&self, kernel: &str, given: usize) -> Result<(), BadArgument> {
        if given >= self.0.len() {
            return Ok(());
        }
        let takes = List(&self.0, "parameter");
        Err(BadArgument::new(format!(
            "launching {kernel}: it takes {takes}, and was given {given} pointers to such"
        )))
    }
}

/// `2 parameters (8, 4 bytes)`.
struct List<'a>(&'a [u64], &'static str);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(sizes, noun) = self;
        match sizes {
            [] => write!(f, "no {noun}s"),
            [size] => write!(f, "1 {noun} ({size} bytes)"),
            [first, rest @ ..] => {
                write!(f, "{} {noun}s ({first}", sizes.len())?;
                rest.iter().try_for_each(|size| write!(f, ", {size}"))?;
                f.write_str(" bytes)")
            }
        }
    }
}

/// The signatures of a set of modules; an image is read when it is first asked about.
pub(crate) struct Signatures {
    modules: Vec<Module>,
}

struct Module {
    name: &'static str,
    image: &'static [u8],
    kernels: OnceLock<HashMap<Box<str>, Signature>>,
}

impl Signatures {
    pub(crate) fn new(modules: &[(&'static str, &'static [u8])]) -> Self {
        let unread = |&(name, image)| Module { name, image, kernels: OnceLock::new() };
        Self { modules: modules.iter().map(unread).collect() }
    }

    /// What a kernel takes; `None` where its image does not say so plainly.
    pub(crate) fn of(&self, module: &str, function: &str) -> Option<Signature> {
        let module = self.modules.iter().find(|known| known.name == module)?;
        module.kernels.get_or_init(|| read(module.image)).get(function).cloned()
    }
}

/// The signatures in an image. Variants of one kernel in a fatbin take the same parameters, so the first will do.
fn read(image: &[u8]) -> HashMap<Box<str>, Signature> {
    let mut kernels = HashMap::new();
    Code::each_in(image, |code| match code {
        Code::Ptx(text) => read_ptx(text, &mut kernels),
        Code::Cubin(cubin) => read_cubin(cubin, &mut kernels),
    });
    kernels
}

fn read_ptx(text: &[u8], kernels: &mut HashMap<Box<str>, Signature>) {
    let ptx = Ptx::read(text);
    // A text that reads as wrong and loads anyway was not understood: then nothing is refused for it.
    if !ptx.flaws.is_empty() {
        return;
    }
    for entry in ptx.entries() {
        let sizes = entry.parameters.iter().map(|parameter| parameter.bytes).collect();
        kernels.entry(entry.name.into()).or_insert(Signature(sizes));
    }
}

fn read_cubin(cubin: &[u8], kernels: &mut HashMap<Box<str>, Signature>) {
    for kernel in Cubin::read(cubin).iter().flat_map(|cubin| &cubin.kernels) {
        // None may also mean that the compiler did not write them down.
        if !kernel.parameters.is_empty() {
            let sizes = kernel.parameters.iter().map(|parameter| parameter.bytes).collect();
            kernels.entry(kernel.name.into()).or_insert(Signature(sizes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static PTX: &[u8] = b".version 6.0\n.target sm_70\n.address_size 64\n.visible .entry idle() { ret; }\n\
        .visible .entry copy(.param .u64 to, .param .u32 n, .param .align 64 .b8 map[128]) { ret; }\n";

    fn signature(function: &str) -> Option<Signature> {
        Signatures::new(&[("m", PTX)]).of("m", function)
    }

    #[test]
    fn sizes_come_from_the_text() {
        assert_eq!(signature("copy"), Some(Signature([8, 4, 128].into())));
        assert_eq!(signature("idle"), Some(Signature([].into())));
        assert_eq!(signature("none"), None);
        assert_eq!(Signatures::new(&[("m", PTX)]).of("other", "copy"), None);
        let marked: &'static [u8] = Box::leak([b"\xEF\xBB\xBF", PTX].concat().into_boxed_slice());
        assert_eq!(Signatures::new(&[("m", marked)]).of("m", "copy"), signature("copy"));
    }

    #[test]
    fn a_packed_fatbin_is_unpacked_for_them() {
        static PACKED: &[u8] = include_bytes!("../tests/data/all_packed.fatbin");
        let kernels = read(PACKED);
        let [(name, signature)] = &kernels.iter().collect::<Vec<_>>()[..] else { panic!("{kernels:?}") };
        assert!(!signature.0.is_empty(), "{signature:?}");
        let text = signature.check(name, [].into_iter()).unwrap_err().what;
        assert!(text.ends_with("was given no arguments"), "{text}");
    }

    #[test]
    fn what_is_not_understood_refuses_nothing() {
        for image in
            [b"".as_slice(), b"<html>", b".version 6.0\n.target sm_70\n.visible .entry broken(.param"]
        {
            assert_eq!(Signatures::new(&[("m", image)]).of("m", "broken"), None);
        }
    }

    #[test]
    fn both_sides_of_a_mismatch_are_listed() {
        let copy = signature("copy").unwrap();
        copy.check("m::copy", [8, 4, 128].into_iter()).unwrap();
        let text = copy.check("m::copy", [8, 8].into_iter()).unwrap_err().what;
        let expected = "launching m::copy: it takes 3 parameters (8, 4, 128 bytes), and was given 2 arguments (8, 8 bytes)";
        assert_eq!(text, expected);
        assert!(copy.check("m::copy", [].into_iter()).unwrap_err().what.ends_with("given no arguments"));
        assert!(copy.check("m::copy", [8, 4, 128, 4].into_iter()).is_err());

        copy.check_count("m::copy", 4).unwrap();
        assert!(copy.check_count("m::copy", 2).unwrap_err().what.ends_with("given 2 pointers to such"));
    }
}
