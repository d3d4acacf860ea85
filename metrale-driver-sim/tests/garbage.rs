// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random calls with random handles, addresses and sizes: every one is answered by a status, none panics, and the memory
//! account is sound afterwards.

mod common;

use core::ffi::c_void;

use common::memory::on_device;
use common::{PTX, register};
use metrale_driver_sim::driver_sys::{
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ALLOCATION_TYPE_PINNED, CUmemAccessDesc, CUmemAllocationProp,
    CUmemPoolProps, DriverApi, DriverFn,
};
use metrale_driver_sim::{Profile, SimDriver};
use proptest::prelude::*;

/// Bytes behind every host pointer that is valid: more than any size that an allocation can have here.
const SCRATCH_BYTES: usize = 8 << 20;

/// What arguments are made of.
struct Source {
    state: u64,
    /// Handles and addresses that calls have answered.
    pool: Vec<u64>,
    /// Zeroed before every call, so that counts, names and images read from it are empty.
    scratch: *mut u8,
    /// Structures that something can be made from.
    prop: CUmemAllocationProp,
    pool_props: CUmemPoolProps,
    access: CUmemAccessDesc,
}

impl Source {
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^ (mixed >> 29)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[(self.next() % from.len() as u64) as usize]
    }

    /// Null, the null page, the software driver's own numbers, or the scratch memory.
    fn pointer(&mut self) -> *mut u8 {
        match self.next() % 8 {
            0 => std::ptr::null_mut(),
            1 => std::ptr::without_provenance_mut(8),
            2 => std::ptr::without_provenance_mut(self.pick(&[0x0900_0000_0010, 0x0a00_0000_0000])),
            _ => self.scratch,
        }
    }
}

/// A random argument of each type in the list.
trait Garbage {
    fn garbage(source: &mut Source, name: &str) -> Self;
}

impl Garbage for u64 {
    fn garbage(source: &mut Source, name: &str) -> Self {
        let fitting: Vec<u64> =
            source.pool.iter().copied().filter(|&value| KIND_OF.contains(&(name, kind(value)))).collect();
        if !fitting.is_empty() && !source.next().is_multiple_of(4) {
            return source.pick(&fitting);
        }
        let pool = source.pool.clone();
        match source.next() % 8 {
            0 => source.next(),
            1 => source.pick(&[0, 1, 2, 3, u64::MAX, u64::MAX - 511, 0x0a00_0000_0000, 0x0eff_ffff_ffff]),
            2 => source.pick(&pool).wrapping_add(source.pick(&[1, 256, 4096])),
            _ => source.pick(&pool),
        }
    }
}

/// The range a value lies in: the software driver's handles by kind, or everything else.
fn kind(value: u64) -> u64 {
    let (start, bytes) = (0x0900_0000_0000, 0x10_0000_0000);
    if (start..start + MEMORY * bytes).contains(&value) { (value - start) / bytes } else { MEMORY }
}

/// What is no handle.
const MEMORY: u64 = 10;

/// Which arguments take which kind.
const KIND_OF: &[(&str, u64)] = &[
    ("ctx", 0),
    ("dstContext", 0),
    ("srcContext", 0),
    ("hStream", 1),
    ("hEvent", 2),
    ("hStart", 2),
    ("hEnd", 2),
    ("hmod", 3),
    ("hfunc", 4),
    ("f", 4),
    ("hGraph", 5),
    ("hGraphExec", 6),
    ("pool", 8),
    ("memPool", 8),
    ("handle", 9),
    ("dptr", MEMORY),
    ("dstDevice", MEMORY),
    ("srcDevice", MEMORY),
    ("ptr", MEMORY),
];

impl Garbage for usize {
    fn garbage(source: &mut Source, _name: &str) -> Self {
        source.pick(&[0, 1, 7, 100, 512, 4096, 2 << 20, (2 << 20) + 1, 1 << 50, usize::MAX])
    }
}

impl Garbage for u32 {
    fn garbage(source: &mut Source, name: &str) -> Self {
        match name {
            "mode" => source.pick(&[0, 1, 2, 2, 2, 2, 2, 3]),
            "Flags" => source.pick(&[0, 0, 1, 1, 2, 4096]),
            _ => source.pick(&[0, 0, 0, 1, 1, 1, 2, 3, 8, 9, 64, 1000, 4096]),
        }
    }
}

impl Garbage for i32 {
    fn garbage(source: &mut Source, _name: &str) -> Self {
        source.pick(&[0, 0, 0, 0, 1, -1, 64, i32::MAX, i32::MIN])
    }
}

impl Garbage for u8 {
    fn garbage(source: &mut Source, _name: &str) -> Self {
        source.next() as u8
    }
}

impl<T> Garbage for *mut T {
    fn garbage(source: &mut Source, name: &str) -> Self {
        // A launch takes one list of parameters or the other.
        if name == "extra" { std::ptr::null_mut() } else { source.pointer().cast() }
    }
}

impl<T> Garbage for *const T {
    fn garbage(source: &mut Source, name: &str) -> Self {
        // Zeros ask for nothing that can be made, so most structures are filled in.
        if source.next().is_multiple_of(4) {
            return source.pointer().cast_const().cast();
        }
        match name {
            "prop" => (&raw const source.prop).cast(),
            "poolProps" => (&raw const source.pool_props).cast(),
            "desc" | "map" => (&raw const source.access).cast(),
            "location" => (&raw const source.access.location).cast(),
            _ => source.pointer().cast_const().cast(),
        }
    }
}

macro_rules! caller {
    ($($(#[$meta:meta])* $need:ident $since:literal fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        #[allow(non_snake_case, reason = "arguments keep the C spelling")]
        fn call(driver: &SimDriver, function: DriverFn, source: &mut Source) -> i32 {
            match function {
                $(DriverFn::$name => {
                    $(let $arg = <$ty as Garbage>::garbage(source, stringify!($arg));)*
                    // SAFETY: host pointers are either refused or lead to scratch memory that is larger than all they
                    // are used for, and stays; what is read through them is zeros.
                    unsafe { driver.$name($($arg),*) }
                })*
                _ => 0,
            }
        }
    };
}

metrale_driver_sim::driver_sys::for_each_driver_function!(caller);

/// Draws a function. The end of a context is rare and the end of anything rarer than its making, or there would be
/// nothing left to work on.
fn draw(source: &mut Source) -> DriverFn {
    loop {
        let function = source.pick(DriverFn::ALL);
        let name = function.name();
        let ends = ["Destroy", "Unload", "Free"].iter().any(|word| name.contains(word));
        let one_in = match function {
            DriverFn::cuDevicePrimaryCtxRelease_v2 | DriverFn::cuCtxSetCurrent => 64,
            // Kills every capture.
            DriverFn::cuCtxSynchronize => 4,
            _ if ends => 4,
            _ => 1,
        };
        if source.next().is_multiple_of(one_in) {
            return function;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_call_is_answered(seed in any::<u64>()) {
        // One per case, freed only after the driver, whose asynchronous copies may still hold it.
        let mut scratch = vec![0u64; SCRATCH_BYTES / 8];
        let scratch = scratch.as_mut_ptr();
        let driver = SimDriver::new(Profile::h200());
        register(&driver);
        let (type_, location) = (CU_MEM_ALLOCATION_TYPE_PINNED, on_device(0));
        let mut source = Source {
            state: seed,
            pool: Vec::new(),
            scratch: scratch.cast(),
            prop: CUmemAllocationProp { type_, location, ..CUmemAllocationProp::default() },
            pool_props: CUmemPoolProps { allocType: type_, location, ..CUmemPoolProps::default() },
            access: CUmemAccessDesc { location, flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE },
        };
        let mut context = 0;
        let mut module = 0;
        // SAFETY: no pointer is passed.
        prop_assert_eq!(unsafe { driver.cuInit(0) }, 0);
        // SAFETY: the result pointer is a local.
        prop_assert_eq!(unsafe { driver.cuDevicePrimaryCtxRetain(&mut context, 0) }, 0);
        // SAFETY: no pointer is passed.
        prop_assert_eq!(unsafe { driver.cuCtxSetCurrent(context) }, 0);
        let image = PTX.as_ptr().cast::<c_void>();
        // SAFETY: the result pointer is a local, the image ends in NUL.
        prop_assert_eq!(unsafe { driver.cuModuleLoadData(&mut module, image) }, 0);
        source.pool.extend([context, module]);
        for name in [c"nothing", c"poke"] {
            let mut function = 0;
            // SAFETY: the result pointer is a local, the name a C string.
            let found = unsafe { driver.cuModuleGetFunction(&mut function, module, name.as_ptr()) };
            prop_assert_eq!(found, 0);
            source.pool.push(function);
        }
        for _ in 0..600 {
            let function = draw(&mut source);
            let status = call(&driver, function, &mut source);
            prop_assert!((0..1000).contains(&status), "{function}: {status}");
            // SAFETY: the scratch memory is longer than a word.
            let answer = unsafe { scratch.read() };
            if status == 0 && answer != 0 && source.pool.len() < 200 {
                source.pool.push(answer);
            }
            // SAFETY: the scratch memory has this size. Its beginning is what results are written to and counts, names
            // and structures are read from.
            unsafe { scratch.write_bytes(0, 4096) };
        }
        // Whatever happened, nothing is counted that is not there.
        let leaks = driver.leaks();
        prop_assert!(leaks.memory_bytes() <= 150_109_880_320 || leaks.memory.iter().any(|m| m.context_ended));
    }
}
