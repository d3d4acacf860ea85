// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program's entry: names a model's tensors count and size, from files, an index or `--model NAME`.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use metrale_cli::model::{InputError, ModelInput};

fn main() -> ExitCode {
    match describe(std::env::args_os().skip(1).collect()) {
        Ok(text) => match io::stdout().write_all(text.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        Err(error) => {
            // Nothing is left to say where stderr is closed.
            let _ = writeln!(io::stderr(), "metrale: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn describe(args: Vec<OsString>) -> Result<String, InputError> {
    let input = match &args[..] {
        [flag, name] if flag == "--model" => ModelInput::open(&[], Some(&name.to_string_lossy()))?,
        paths => ModelInput::open(&paths.iter().map(PathBuf::from).collect::<Vec<_>>(), None)?,
    };
    let mut text = format!(
        "{}: {} tensors, {} of them empty, {} bytes\n",
        input.title(),
        input.tensors().len(),
        input.empty_tensors(),
        input.total_bytes()
    );
    for remark in input.remarks() {
        text.push_str(&format!("{remark}\n"));
    }
    Ok(text)
}
