// SPDX-License-Identifier: MIT OR Apache-2.0
//! The account as programs read it.

#![cfg(feature = "serde")]

use metrale_cuda_backend::memory::{Account, Quality, Term};

fn account() -> Account {
    let terms = vec![
        Term::new("context baseline", 552_402_944, Quality::Measured),
        Term::new("slack", -4096, Quality::Modelled).note("3 chunks"),
    ];
    Account::close(552_402_944, terms).unwrap()
}

#[test]
fn it_is_plain_data_and_comes_back_the_same() {
    let json = serde_json::to_value(account()).unwrap();
    let expected = serde_json::json!({
        "driver_used_bytes": 552_402_944,
        "terms": [
            { "name": "context baseline", "bytes": 552_402_944, "quality": "measured" },
            { "name": "slack", "bytes": -4096, "quality": "modelled", "note": "3 chunks" },
        ],
        "remainder_bytes": 4096,
    });
    assert_eq!(json, expected);
    assert_eq!(serde_json::from_value::<Account>(json).unwrap(), account());
}

#[test]
fn one_that_does_not_close_is_not_read() {
    let mut json = serde_json::to_value(account()).unwrap();
    json["remainder_bytes"] = 4095.into();
    let error = serde_json::from_value::<Account>(json).unwrap_err();
    assert!(error.to_string().contains("does not close"), "{error}");
}
