// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is read of the environment: numbers, and the error for what is not understood.

use crate::error::causes;

/// A variable whose value the backend cannot use. Fix the variable and start again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}={value:?} is not understood: {expected}")]
#[non_exhaustive]
pub struct ConfigError {
    /// The variable's name.
    pub variable: &'static str,
    /// Its value; bytes that are not text are shown replaced.
    pub value: String,
    /// What would be understood.
    pub expected: &'static str,
}

causes! { ConfigError: Config }

/// A number that is 0 where nothing is written.
pub(crate) fn number(value: &str) -> Option<usize> {
    match value.trim() {
        "" => Some(0),
        digits => usize::try_from(decimal(digits)?).ok(),
    }
}

/// A number of decimal digits and nothing else; `parse` alone would take a sign.
pub(crate) fn decimal(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}
