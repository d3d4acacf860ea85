// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decides once whether the driver API is built in its SCALE variant (`cfg(metrale_scale)`).

use std::env;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(metrale_scale)");
    println!("cargo::rerun-if-env-changed=METRALE_TARGET_HW");
    let by_feature = env::var_os("CARGO_FEATURE_METRALE_SCALE").is_some();
    let by_target = env::var("METRALE_TARGET_HW").is_ok_and(|hardware| hardware.starts_with("strix"));
    if by_feature || by_target {
        println!("cargo::rustc-cfg=metrale_scale");
    }
    // Only the `link` feature binds at link time; the default finds the driver when the program runs.
    if env::var_os("CARGO_FEATURE_LINK").is_some() {
        println!("cargo::rustc-link-lib=dylib=cuda");
    }
}
