// SPDX-License-Identifier: MIT OR Apache-2.0
//! `metrale doctor`: what it finds, and the exit code that says whether a GPU is usable.

use metrale_cli::{Console, Exit, run};
use serde_json::Value;

fn doctor(args: &[&str]) -> (Exit, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let all = ["metrale", "doctor"].into_iter().chain(args.iter().copied());
    let exit = run(all.map(Into::into), &mut Console::new(&mut out, &mut err, false));
    (exit, String::from_utf8(out).unwrap())
}

fn doctor_json(driver: &str) -> (Exit, Value) {
    let (exit, out) = doctor(&["--driver", driver, "--json"]);
    (exit, serde_json::from_str(&out).unwrap())
}

#[test]
fn a_software_device_asked_for_by_name_is_examined() {
    for (driver, cc, integrated) in
        [("sim", "9.0", false), ("sim:gb10", "12.1", true), ("sim:rtx", "8.9", false)]
    {
        let (exit, json) = doctor_json(driver);
        assert_eq!(exit, Exit::Done, "{json}");
        assert_eq!(json["devices"][0]["compute_capability"], cc);
        assert_eq!(json["devices"][0]["integrated"], integrated);
        assert_eq!(json["usable"], true);
    }
    let (_, json) = doctor_json("sim");
    assert_eq!(json["devices"][0]["total_bytes"], 150_109_880_320_u64);
    assert!(json["devices"][0]["free_bytes"].as_u64().unwrap() <= 149_557_477_376);
    assert_eq!(json["cuda_version"], "13.0");
}

#[test]
fn a_driver_without_a_function_is_told() {
    let (exit, json) = doctor_json("sim:scale");
    assert_eq!(exit, Exit::Done);
    let lacking = json["lacking"].as_array().unwrap();
    assert_eq!(lacking.is_empty(), metrale_driver_sys::SCALE, "{lacking:?}");
}

#[test]
fn auto_never_counts_the_software_device_as_a_gpu() {
    let (exit, out) = doctor(&["--json"]);
    let json: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(exit == Exit::Done, json["usable"] == true);
    assert!(!json["driver"].as_str().unwrap_or_default().starts_with("software"), "{json}");
    if json["usable"] == false {
        assert!(
            !json["problems"].as_array().unwrap().is_empty()
                || !json["devices"].as_array().unwrap().is_empty()
        );
        let (_, text) = doctor(&[]);
        assert!(text.contains("--driver sim"), "{text}");
    }
}

mod the_gpu_is_found {
    #[test]
    #[ignore = "needs a GPU: cargo xtask gpu-test"]
    fn device() {
        let (exit, json) = super::doctor_json("auto");
        assert_eq!(exit, super::Exit::Done, "{json}");
        let device = &json["devices"][0];
        assert!(device["free_bytes"].as_u64().unwrap() <= device["total_bytes"].as_u64().unwrap());
        assert!(json["driver"].as_str().unwrap().contains("libcuda"), "{json}");
    }
}
