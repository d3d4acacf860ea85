// SPDX-License-Identifier: MIT OR Apache-2.0
//! The account of the device closes over everything that takes memory at once.

use metrale_cli::model::Catalogue;
use metrale_cuda_backend::MetraleCudaBackend;
use metrale_cuda_backend::memory::Quality;
use metrale_driver_sim::on_both_drivers;

/// The figures of the H200 for bert-base: what is asked for, and what the driver keeps for it.
const LIVE_BYTES: i64 = 219_030_644;
const RESIDENT_BYTES: i64 = 301_989_888;

/// A kernel that does nothing, beside a variable of a mebibyte.
const MODULE: &[u8] =
    b".version 6.0\n.target sm_70\n.address_size 64\n.visible .global .align 4 .b8 table[1048576];\n\
    .visible .entry nothing() { ret; }\n\0";

on_both_drivers! {
    it_closes_over_a_model_three_modules_two_streams_and_a_graph(driver) {
        let backend = MetraleCudaBackend::builder()
            .driver(driver)
            .modules(&[("a", MODULE), ("b", MODULE), ("c", MODULE)])
            .build()
            .unwrap();
        let tensors = Catalogue::embedded().unwrap().tensors("bert-base").unwrap();
        let held: Vec<_> = tensors.iter().map(|tensor| backend.alloc(tensor.bytes as usize).unwrap()).collect();
        let streams = [(); 2].map(|()| backend.create_stream().unwrap());
        let capture = backend.capture(streams[0]).unwrap();
        for (&ptr, tensor) in held.iter().zip(&tensors) {
            backend.memset_async(ptr, 1, tensor.bytes as usize, streams[0]).unwrap();
        }
        let graph = capture.finish("fill").unwrap();
        backend.launch_graph(graph, streams[0]).unwrap();
        backend.synchronize_stream(streams[0]).unwrap();

        let account = backend.account().unwrap();
        assert_eq!(account.remainder_bytes(), 0, "{account}");
        let term = |name: &str| account.term(name).unwrap_or_else(|| panic!("no {name}: {account}"));
        assert_eq!(term("ledger").bytes, LIVE_BYTES);
        assert_eq!(term("slack").bytes, RESIDENT_BYTES - LIVE_BYTES);
        for (name, note) in [
            ("context baseline", "the context"),
            ("modules", "3 modules"),
            ("streams", "2 alive, 2 made"),
            ("graphs", "1 instantiated"),
        ] {
            let term = term(name);
            assert!(term.quality == Quality::Measured && term.bytes >= 0, "{name}: {account}");
            assert!(term.note.as_deref().is_some_and(|text| text.contains(note)), "{name}: {account}");
        }
        assert!(term("modules").bytes > 0 && term("context baseline").bytes > 0, "{account}");
        assert_eq!(account.driver_used_bytes(), backend.memory_info().unwrap().used_bytes());

        backend.destroy_graph(graph).unwrap();
        streams.into_iter().for_each(|stream| backend.destroy_stream(stream).unwrap());
        held.into_iter().for_each(|ptr| backend.free(ptr).unwrap());
        assert_eq!(backend.account().unwrap().remainder_bytes(), 0);
    }
}
