// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies and fills: the bytes arrive, in order, and nothing passes an end the ledger knows.

mod common;

use std::sync::Arc;

use common::pinned::PinnedGuard;
use common::{KIB, MIB, address, backend};
use metrale_cuda_backend::{
    BadArgument, CallFailed, Copy2d, CopyOutOfBounds, DevicePtr, DriverApi, End, LEGACY_STREAM,
    MetraleCudaBackend, NotDeviceMemory, Side,
};
use metrale_driver_sim::{PageableCopies, Profile, SimDriver, on_both_drivers};

/// Bytes that repeat only after 251, so that no power of two hides a shift.
fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|index| ((index + seed) % 251) as u8).collect()
}

fn read(backend: &MetraleCudaBackend, at: DevicePtr, bytes: usize) -> Vec<u8> {
    let mut back = vec![0xAA; bytes];
    backend.copy_d2h(at, &mut back).unwrap();
    back
}

fn out_of_bounds(result: metrale_cuda_backend::Result<()>) -> CopyOutOfBounds {
    result.unwrap_err().downcast::<CopyOutOfBounds>().expect("typed")
}

/// The body of two tests.
fn blocking_copies_reach_every_stream(driver: Arc<dyn DriverApi>) {
    let backend = backend(driver);
    let bytes = 16 * MIB;
    let (a, b) = (backend.alloc(bytes).unwrap(), backend.alloc(bytes).unwrap());
    let stream = backend.create_stream().unwrap();
    for seed in 0..4 {
        let data = pattern(bytes, seed);
        backend.copy_h2d(&data, a).unwrap();
        backend.copy_d2d_async(a, b, bytes, stream).unwrap();
        let mut back = vec![0; bytes];
        backend.copy_d2h_on_stream(b, &mut back, stream).unwrap();
        assert_eq!(back, data, "seed {seed}");
    }
    backend.destroy_stream(stream).unwrap();
    backend.free(a).unwrap();
    backend.free(b).unwrap();
}

/// A driver may leave a blocking copy to the device on its way in the legacy stream, where other streams miss it.
#[test]
fn a_blocking_copy_is_there_for_every_stream_even_on_the_laziest_driver() {
    let lazy = Profile::h200().with_pageable_copies(PageableCopies::Late);
    blocking_copies_reach_every_stream(Arc::new(SimDriver::new(lazy)));
}

on_both_drivers! {
    blocking_copies_round_trip_at_every_size_and_offset(driver) {
        let backend = backend(driver);
        let (a, b) = (backend.alloc(3 * MIB).unwrap(), backend.alloc(3 * MIB).unwrap());
        for (bytes, offset) in [(1, 0), (1, 3 * MIB - 1), (4097, 513), (64 * KIB, 7), (64 * KIB + 1, 0), (3 * MIB, 0)] {
            let data = pattern(bytes, offset);
            let (from, to) = (a.offset(offset as u64), b.offset(offset as u64));
            backend.copy_h2d(&data, from).unwrap();
            backend.memset(to, 0, bytes).unwrap();
            backend.copy_d2d(from, to, bytes).unwrap();
            assert_eq!(read(&backend, to, bytes), data, "{bytes} bytes at {offset}");
        }
        backend.free(a).unwrap();
        backend.free(b).unwrap();
    }

    a_blocking_copy_is_there_for_every_stream(driver) {
        blocking_copies_reach_every_stream(driver);
    }

    a_blocking_copy_waits_for_the_backends_stream_and_the_legacy_stream(driver) {
        let backend = backend(driver);
        let at = backend.alloc(MIB).unwrap();
        for stream in [backend.stream(), metrale_cuda_backend::LEGACY_STREAM] {
            backend.memset(at, 1, MIB).unwrap();
            backend.memset_async(at, 2, MIB, stream).unwrap();
            assert!(read(&backend, at, MIB).iter().all(|&byte| byte == 2), "read after write, stream {stream:#x}");
            backend.memset_async(at, 3, MIB, stream).unwrap();
            backend.copy_h2d(&[4; 16], at).unwrap();
            assert_eq!(read(&backend, at, 17), [[4; 16].as_slice(), &[3]].concat(), "write after write, {stream:#x}");
        }
        backend.free(at).unwrap();
    }

    an_asynchronous_copy_needs_its_source_only_until_it_returns(driver) {
        let backend = backend(driver);
        let bytes = MIB;
        let at = backend.alloc(bytes).unwrap();
        let stream = backend.create_stream().unwrap();

        let mut pageable = pattern(bytes, 1);
        backend.copy_h2d_async(&pageable, at, stream).unwrap();
        pageable.fill(0xEE);
        backend.synchronize_stream(stream).unwrap();
        assert_eq!(read(&backend, at, bytes), pattern(bytes, 1), "pageable");

        let mut pinned = PinnedGuard::new(&backend, bytes).unwrap();
        pinned.copy_from_slice(&pattern(bytes, 2));
        backend.copy_h2d_async(&pinned, at, stream).unwrap();
        pinned.fill(0xEE);
        backend.synchronize_stream(stream).unwrap();
        assert_eq!(read(&backend, at, bytes), pattern(bytes, 2), "pinned");

        drop(pinned);
        backend.destroy_stream(stream).unwrap();
        backend.free(at).unwrap();
    }

    retained_copies_are_in_stream_order(driver) {
        let backend = backend(driver);
        let bytes = 256 * KIB;
        let at = backend.alloc(bytes).unwrap();
        let stream = backend.create_stream().unwrap();
        let mut source = PinnedGuard::new(&backend, bytes).unwrap();
        let mut back = PinnedGuard::new(&backend, bytes).unwrap();
        source.copy_from_slice(&pattern(bytes, 3));
        // SAFETY: the source is neither changed nor freed before the stream is synchronized below.
        unsafe { backend.copy_h2d_async_retained(source.as_ptr(), bytes, at, stream) }.unwrap();
        // SAFETY: the destination is not looked at, and not freed, before the stream is synchronized below.
        unsafe { backend.copy_d2h_async_retained(at, back.as_mut_ptr(), bytes, stream) }.unwrap();
        backend.synchronize_stream(stream).unwrap();
        assert_eq!(back[..], source[..]);
        drop((source, back));
        backend.destroy_stream(stream).unwrap();
        backend.free(at).unwrap();
    }

    pitched_copies_move_the_rectangle_and_nothing_else(driver) {
        let backend = backend(driver);
        let (src_pitch, dst_pitch, width, rows) = (40, 24, 17, 9);
        let stream = backend.stream();
        let src = backend.alloc(src_pitch * rows).unwrap();
        let dst = backend.alloc(dst_pitch * (rows - 1) + width).unwrap();
        let data = pattern(src_pitch * rows, 5);
        backend.copy_h2d(&data, src).unwrap();
        backend.memset(dst, 0xCC, dst_pitch * (rows - 1) + width).unwrap();
        let inside = Copy2d::device(src, src_pitch, dst, dst_pitch, width, rows);
        // SAFETY: both sides are on the device.
        unsafe { backend.copy_2d_async(&inside, stream) }.unwrap();
        let back = read(&backend, dst, dst_pitch * (rows - 1) + width);
        for (index, &byte) in back.iter().enumerate() {
            let (row, column) = (index / dst_pitch, index % dst_pitch);
            let expected = if column < width { data[row * src_pitch + column] } else { 0xCC };
            assert_eq!(byte, expected, "row {row}, column {column}");
        }

        let mut host = vec![0_u8; width * rows];
        let out = Copy2d {
            src: Side::Device(src),
            src_pitch_bytes: src_pitch,
            dst: Side::Host(host.as_mut_ptr()),
            dst_pitch_bytes: width,
            width_bytes: width,
            rows,
        };
        // SAFETY: the host side has all its rows, and is not looked at before the stream is synchronized.
        unsafe { backend.copy_2d_async(&out, stream) }.unwrap();
        backend.synchronize_stream(stream).unwrap();
        for row in 0..rows {
            assert_eq!(host[row * width..][..width], data[row * src_pitch..][..width], "row {row}");
        }
        backend.free(src).unwrap();
        backend.free(dst).unwrap();
    }

    pitched_copies_are_checked_on_both_sides(driver) {
        let backend = backend(driver);
        let (small, large) = (backend.alloc(100).unwrap(), backend.alloc(1000).unwrap());
        backend.memset(large, 0, 1000).unwrap();
        let stream = backend.stream();
        let copy = |src, src_pitch, dst, dst_pitch, width, rows| {
            let copy = Copy2d::device(src, src_pitch, dst, dst_pitch, width, rows);
            // SAFETY: both sides are on the device.
            unsafe { backend.copy_2d_async(&copy, stream) }
        };
        copy(large, 100, small, 10, 10, 10).unwrap();
        let error = out_of_bounds(copy(large, 111, small, 10, 10, 10));
        assert_eq!((error.end, error.addr, error.bytes), (End::Source, large.addr(), 9 * 111 + 10), "{error}");
        let error = out_of_bounds(copy(large, 100, small, 11, 10, 10));
        assert_eq!((error.end, error.addr, error.bytes), (End::Destination, small.addr(), 9 * 11 + 10), "{error}");
        assert!(copy(large, 9, small, 10, 10, 2).unwrap_err().is::<BadArgument>());
        assert!(copy(large, usize::MAX, small, 10, 10, 3).unwrap_err().is::<BadArgument>());
        copy(large, 0, small, 0, 0, 10).unwrap();
        backend.free(small).unwrap();
        backend.free(large).unwrap();
    }

    words_are_filled_in_order(driver) {
        let backend = backend(driver);
        let at = backend.alloc(64).unwrap();
        backend.memset(at, 0xCC, 64).unwrap();
        backend.memset_d32_async(at.offset(4), 0x0403_0201, 3, backend.stream()).unwrap();
        let back = read(&backend, at, 64);
        assert_eq!(back[..20], [204, 204, 204, 204, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 204, 204, 204, 204]);
        let odd = backend.memset_d32_async(at.offset(2), 0, 1, LEGACY_STREAM).unwrap_err();
        assert!(odd.downcast::<BadArgument>().unwrap().what.contains("multiple of 4"));
        assert!(backend.memset_d32_async(at, 0, usize::MAX, LEGACY_STREAM).unwrap_err().is::<BadArgument>());
        backend.free(at).unwrap();
    }

    no_bytes_are_no_copy(driver) {
        let backend = backend(driver);
        let (null, stream) = (DevicePtr::NULL, backend.stream());
        backend.copy_h2d(&[], null).unwrap();
        backend.copy_d2h(null, &mut []).unwrap();
        backend.copy_d2d(null, null, 0).unwrap();
        backend.copy_h2d_async(&[], null, stream).unwrap();
        backend.copy_d2h_on_stream(null, &mut [], stream).unwrap();
        backend.copy_d2d_async(null, null, 0, stream).unwrap();
        backend.memset(null, 1, 0).unwrap();
        backend.memset_async(null, 1, 0, stream).unwrap();
        backend.memset_d32_async(null, 1, 0, stream).unwrap();
    }

    a_copy_past_the_end_names_the_owner_and_does_nothing(driver) {
        let backend = backend(driver);
        let (at, line) = (backend.alloc(1000).unwrap(), line!());
        let other = backend.alloc(1000).unwrap();
        backend.memset(at, 7, 1000).unwrap();
        backend.memset(other, 7, 1000).unwrap();

        let error = out_of_bounds(backend.copy_h2d(&[0; 10], at.offset(991)));
        assert_eq!((error.end, error.offset_bytes(), error.bytes, error.excess_bytes()), (End::Destination, 991, 10, 1));
        assert_eq!((error.owner.addr, error.owner.record.bytes, error.owner.record.site.line()), (at.addr(), 1000, line));
        let text = error.to_string();
        assert!(text.contains(&format!("{}:{line}", file!())), "{text}");

        let stream = backend.stream();
        let mut back = [0; 1001];
        assert_eq!(out_of_bounds(backend.copy_d2h(at, &mut back)).end, End::Source);
        assert_eq!(out_of_bounds(backend.copy_d2h_on_stream(at, &mut back, stream)).end, End::Source);
        assert_eq!(out_of_bounds(backend.copy_d2d(at.offset(1), other, 1000)).end, End::Source);
        assert_eq!(out_of_bounds(backend.copy_d2d(at, other.offset(1), 1000)).end, End::Destination);
        assert_eq!(out_of_bounds(backend.copy_d2d_async(at, other, 1001, stream)).end, End::Source);
        assert_eq!(out_of_bounds(backend.copy_h2d_async(&back, at, stream)).end, End::Destination);
        out_of_bounds(backend.memset(at, 0, 1001));
        out_of_bounds(backend.memset_async(at, 0, 1001, stream));
        out_of_bounds(backend.memset_d32_async(at, 0, 251, stream));
        out_of_bounds(backend.copy_h2d(&[0; 2], address(at.addr() + 999)));

        assert_eq!(read(&backend, at, 1000), [7; 1000]);
        assert_eq!(read(&backend, other, 1000), [7; 1000]);
        backend.free(at).unwrap();
        backend.free(other).unwrap();
    }

    a_copy_from_freed_memory_says_who_freed_it(driver) {
        let backend = backend(driver);
        // Whole pages of their own, so that nothing else keeps the address mapped.
        let at = backend.alloc(4 * MIB).unwrap();
        let line = line!() + 1;
        backend.free(at).unwrap();
        let error = backend.copy_d2h(at, &mut [0; 16]).unwrap_err();
        let text = error.to_string();
        // A device that would take it for the host's is not asked.
        if let Some(error) = error.downcast_ref::<CallFailed>() {
            assert_eq!(error.driver.status, 1);
            assert!(text.contains("the source is freed"), "{text}");
        } else {
            assert!(error.is::<NotDeviceMemory>() && text.contains("it is freed"), "{text}");
        }
        assert!(text.contains(&format!("{}:{line}", file!())), "{text}");
    }

    memory_of_others_is_the_drivers_to_judge(driver) {
        let backend = backend(driver);
        let mut at = 0;
        // SAFETY: the result pointer is a local.
        assert_eq!(unsafe { backend.driver().cuMemAlloc_v2(&mut at, 4096) }, 0);
        backend.copy_h2d(&[9; 4096], address(at)).unwrap();
        assert_eq!(read(&backend, address(at), 4096), [9; 4096]);
        // SAFETY: the driver returned the address above.
        assert_eq!(unsafe { backend.driver().cuMemFree_v2(at) }, 0);
    }

    an_uploader_brings_every_byte_whatever_the_sizes(driver) {
        let backend = std::sync::Arc::new(backend(driver));
        let mut uploader = metrale_cuda_backend::Uploader::new(&backend, 4096).unwrap();
        let sizes = [1, 4095, 4096, 4097, 0, 7, 20_000, 4096, 12_289, 3];
        let held: Vec<_> = sizes
            .iter()
            .enumerate()
            .map(|(seed, &bytes)| {
                let at = backend.alloc(bytes.max(1)).unwrap();
                let mut data = pattern(bytes, seed);
                uploader.upload(&data, at).unwrap();
                data.fill(0xEE);
                (at, bytes, seed)
            })
            .collect();
        assert_eq!(uploader.finish().unwrap(), sizes.iter().sum::<usize>() as u64);
        for (at, bytes, seed) in held {
            assert_eq!(read(&backend, at, bytes), pattern(bytes, seed), "{bytes} bytes");
            backend.free(at).unwrap();
        }
        let error = uploader.upload(&[0; 8], DevicePtr::NULL).and_then(|()| uploader.finish());
        assert!(error.is_err(), "null is no destination");
        drop(uploader);
        backend.ledger_probe().assert_nothing_live();
    }
}
