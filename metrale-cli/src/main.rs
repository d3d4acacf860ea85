// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program's entry: real arguments, real outputs, the log on standard error.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use metrale_cli::{Console, run};
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    // RUST_LOG chooses what is logged; without it, warnings of the backend are shown.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).without_time().init();
    let (mut out, mut err) = (io::stdout(), io::stderr());
    let watched = err.is_terminal();
    run(std::env::args_os(), &mut Console::new(&mut out, &mut err, watched)).into()
}
