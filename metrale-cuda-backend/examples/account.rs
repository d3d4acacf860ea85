// SPDX-License-Identifier: MIT OR Apache-2.0
//! A small model on a device in software: who holds what, what a mistake is answered with, and what a drop says.
//!
//! `cargo run -p metrale-cuda-backend --example account`

use std::sync::Arc;

use metrale_cuda_backend::{GpuBackend, MetraleCudaBackend, Uploader};
use metrale_driver_sim::{Profile, SimDriver};

#[expect(clippy::print_stdout, reason = "an example shows what it does")]
fn main() -> metrale_cuda_backend::Result<()> {
    // The backend's warnings come out as `tracing` events; this prints them.
    tracing_subscriber::fmt().with_target(false).without_time().with_ansi(false).init();

    let driver = Arc::new(SimDriver::new(Profile::rtx()));
    let backend = Arc::new(MetraleCudaBackend::builder().driver(driver).build()?);
    println!("on {} ({})\n", backend.facts().name, backend.memory_info()?);

    let mut weights = Vec::new();
    let mut uploader = Uploader::new(&backend, 1 << 20)?;
    for layer in 0..4 {
        let _layer = backend.scope(&format!("layers.{layer}"));
        for (part, bytes) in [("attn", 6_000_000), ("mlp", 16_000_000), ("norm", 16_384)] {
            let _part = backend.scope(part);
            let at = backend.alloc(bytes)?;
            uploader.upload(&vec![layer; bytes], at)?;
            weights.push(at);
        }
    }
    println!("uploaded {} bytes\n", uploader.finish()?);
    drop(uploader);
    println!("{}", backend.alloc_report(10, 0));

    // An engine sees the trait only.
    let engine: Arc<dyn GpuBackend> = backend;
    engine.free(weights[0])?;
    println!("a second free:\n  {:#}\n", engine.free(weights[0]).unwrap_err());
    println!("a copy past the end:\n  {:#}\n", engine.copy_h2d(&[0; 20_000], weights[2]).unwrap_err());
    println!("too much:\n  {:#}\n", engine.alloc(25 << 30).unwrap_err());

    // The rest is never freed: the drop does it, and says whose it was.
    Ok(())
}
