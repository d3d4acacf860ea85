// SPDX-License-Identifier: MIT OR Apache-2.0
//! One context and one stream, ours and cudarc's.

mod common;

use std::sync::Arc;

use metrale_driver_sim::{Profile, SimDriver};
use metrale_registry::{CudaHost, CudarcError};

mod context_and_stream_are_the_same_on_both_sides {
    use super::*;

    #[test]
    #[ignore = "needs a GPU: cargo xtask gpu-test"]
    fn device() {
        let host = CudaHost::system(0).unwrap();
        let context = host.cudarc_context().unwrap();
        assert!(Arc::ptr_eq(&host, &CudaHost::of_cudarc(&context).unwrap()));
        // SAFETY: the host is held to the end of the test, behind all that is made of the stream.
        let stream = unsafe { host.cudarc_stream(&context) }.unwrap();
        assert_eq!(host.raw_stream_of_cudarc(&stream).unwrap(), host.raw_stream());

        // Written by cudarc on the shared stream, read by our side of the driver.
        let values: Vec<u32> = (0..1000).collect();
        let slice = stream.clone_htod(&values).unwrap();
        common::synchronize(&host.driver_arc(), host.raw_stream());
        let address = {
            let (address, _guard) = cudarc::driver::DevicePtr::device_ptr(&slice, &stream);
            address
        };
        assert_eq!(common::read(&host.driver_arc(), address, 1000), values);

        // A stream of cudarc's own, used by us.
        let theirs = context.new_stream().unwrap();
        let raw = host.raw_stream_of_cudarc(&theirs).unwrap();
        common::synchronize(&host.driver_arc(), raw);
        drop(slice);
        stream.synchronize().unwrap();
    }
}

mod the_context_lives_as_long_as_either_side {
    use super::*;

    #[test]
    #[ignore = "needs a GPU: cargo xtask gpu-test"]
    fn device() {
        let host = CudaHost::system(0).unwrap();
        let context = host.cudarc_context().unwrap();
        drop(host);
        let stream = context.default_stream();
        let slice = stream.clone_htod(&[1_u8, 2, 3]).unwrap();
        assert_eq!(stream.clone_dtoh(&slice).unwrap(), [1, 2, 3]);
        let host = CudaHost::of_cudarc(&context).unwrap();
        host.is_context_of(&context).unwrap();
    }
}

/// Where there is no library cudarc would panic; where there is one, the context is another.
#[test]
fn a_software_host_has_nothing_to_share() {
    let host = CudaHost::acquire(Arc::new(SimDriver::new(Profile::h200())), 0).unwrap();
    let error = host.cudarc_context().unwrap_err();
    assert!(
        matches!(
            error,
            CudarcError::NoLibrary | CudarcError::Cudarc { .. } | CudarcError::OtherContext { .. }
        ),
        "{error}"
    );
}
