// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modules and kernels as owners, and launches with arguments of every size.

mod common;

use std::sync::Arc;

use common::{KERNELS, backend_with_kernels, sim_with_kernels};
use half::{bf16, f16};
use metrale_cuda_backend::{
    BadArgument, DeviceBuffer, DriverApi, GpuBackend, Kernel, KernelLaunch, MetraleCudaBackend, Module,
    Stream,
};
use metrale_driver_sim::{MissingKernel, Profile, SimDriver, on_both_drivers};

fn shared(driver: Arc<dyn DriverApi>) -> Arc<dyn GpuBackend> {
    Arc::new(backend_with_kernels(driver))
}

fn stays_beside<T: Send + Sync + Clone + 'static>() {}

#[test]
fn modules_and_kernels_are_kept_beside_their_backend_and_go_to_any_thread() {
    stays_beside::<Module>();
    stays_beside::<Kernel>();
}

on_both_drivers! {
    a_kernel_is_launched_by_its_owner_on_buffers(driver; sim: sim_with_kernels()) {
        let gpu = shared(driver);
        let module = Module::of(&gpu, "kernels").unwrap();
        let fill = module.kernel("fill").unwrap();
        assert_eq!((module.name(), fill.name(), fill.module().name()), ("kernels", "fill", "kernels"));
        assert!(module.optional_kernel("no such kernel").unwrap().is_none());
        assert!(module.kernel("no such kernel").is_err());
        let error = Module::of(&gpu, "kernel").unwrap_err();
        assert!(error.is::<BadArgument>() && error.to_string().contains("\"kernels\""), "{error}");

        let stream = Stream::new(&gpu).unwrap();
        let mut out = DeviceBuffer::<u32>::zeroed(&gpu, 512).unwrap();
        let mut launch = fill.launch().grid([2, 1, 1]).block([256, 1, 1]).buffer_mut(&mut out).u32(7).u32(512);
        // SAFETY: the kernel takes a pointer, a value and a count, and writes that many words, which the buffer has.
        unsafe { stream.launch(&mut launch) }.unwrap();
        let mut low = out.slice_mut(..4).unwrap();
        let mut launch = fill.launch().slice_mut(&mut low).u32(9).u32(1);
        // SAFETY: as above; one word is written.
        unsafe { stream.launch(&mut launch) }.unwrap();
        stream.synchronize().unwrap();
        drop((module, fill));
        let words = out.to_vec().unwrap();
        assert_eq!((words[0], words[1], words[511]), (9, 7, 7));
    }
}

/// What a kernel gets of arguments of these types, by their sizes in its image.
#[test]
fn arguments_have_the_sizes_of_their_types() {
    static PTX: &[u8] = b".version 6.0
.target sm_70
.address_size 64
.visible .entry takes(.param .b16 h, .param .b16 b, .param .s64 i, .param .f64 d, .param .u8 c,
 .param .align 4 .b8 s[12], .param .u64 p) { ret; }
";
    let driver = Arc::new(SimDriver::new(Profile::h200().with_missing_kernel(MissingKernel::Ignore)));
    let builder =
        MetraleCudaBackend::builder().driver(driver).modules(&[("types", PTX), ("kernels", KERNELS)]);
    let gpu: Arc<dyn GpuBackend> = Arc::new(builder.build().unwrap());
    let takes = Module::of(&gpu, "types").unwrap().kernel("takes").unwrap();
    let stream = Stream::of_backend(&gpu);
    let buffer = DeviceBuffer::<u8>::new(&gpu, 4).unwrap();
    let most = |launch: KernelLaunch| launch.f16(f16::ONE).bf16(bf16::ONE).i64(-1).f64(0.5).value(3_u8);
    let mut launch = most(takes.launch()).value([1_u32, 2, 3]).buffer(&buffer);
    assert_eq!(launch.argument_count(), 7);
    // SAFETY: the kernel does nothing.
    unsafe { stream.launch(&mut launch) }.unwrap();
    for wrong in [
        most(takes.launch()).value([1_u32, 2]).buffer(&buffer),
        most(takes.launch()).value([1_u32, 2, 3]).u32(1),
        takes
            .launch()
            .f32(1.0)
            .bf16(bf16::ONE)
            .i64(-1)
            .f64(0.5)
            .value(3_u8)
            .value([0_u8; 12])
            .buffer(&buffer),
        most(takes.launch()).value([1_u32, 2, 3]),
    ] {
        let mut wrong = wrong;
        // SAFETY: the kernel does nothing.
        let refused = unsafe { stream.launch(&mut wrong) }.unwrap_err();
        assert!(refused.is::<BadArgument>(), "{refused}");
    }
}
