// SPDX-License-Identifier: MIT OR Apache-2.0
//! The account of the device's memory: the driver's used bytes as a sum of named terms that always closes.
//!
//! Whatever the terms do not explain is the *remainder*, signed and shown like a term. So the sum is right by construction,
//! and what is not understood cannot hide.

use core::fmt;

use metrale_ledger::ByteSize;

use crate::error::causes;

/// How a term was come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum Quality {
    /// Read from the driver, or counted.
    Measured,
    /// Computed by a rule that was measured elsewhere.
    Modelled,
    /// Neither: an upper bound, a guess, or what is left over.
    Unknown,
}

causes! { AccountError: BadArgument }

impl fmt::Display for Quality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Measured => "measured",
            Self::Modelled => "modelled",
            Self::Unknown => "unknown",
        })
    }
}

/// One term of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Term {
    /// Its name; no other term of the account has it.
    pub name: String,
    /// Its bytes; negative where it takes something back, such as memory that two other terms both count.
    pub bytes: i64,
    /// How they were come by.
    pub quality: Quality,
    /// What else there is to say, such as how many allocations they are.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub note: Option<String>,
}

impl Term {
    /// A term without a note.
    pub fn new(name: impl Into<String>, bytes: i64, quality: Quality) -> Self {
        Self { name: name.into(), bytes, quality, note: None }
    }

    /// Adds a note.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }
}

/// The name of what the terms do not explain.
const REMAINDER: &str = "remainder";

/// An account that closes: the terms and the remainder make the driver's used bytes, exactly.
///
/// ```
/// use metrale_cuda_backend::memory::{Account, Quality, Term};
///
/// let account = Account::close(600 << 20, vec![
///     Term::new("context baseline", 552_402_944, Quality::Measured),
///     Term::new("ledger", 70 << 20, Quality::Measured).note("3 allocations"),
///     Term::new("slack", 2 << 20, Quality::Modelled),
/// ])?;
/// assert_eq!(account.remainder_bytes(), (600 << 20) - 552_402_944 - (72 << 20));
/// # Ok::<(), metrale_cuda_backend::memory::AccountError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "AccountForm", into = "AccountForm")
)]
pub struct Account {
    driver_used_bytes: u64,
    terms: Vec<Term>,
    remainder_bytes: i64,
}

/// Terms that make no account.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccountError {
    /// Two terms of one name, or one named as the remainder.
    #[error("the name {name:?} stands for more than one term of the account")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// What is left over does not fit 63 bits: a term is no amount of memory.
    #[error("the driver's {driver_used_bytes} bytes less the terms' {terms_bytes} is no amount of memory")]
    OutOfRange {
        /// The driver's used bytes.
        driver_used_bytes: u64,
        /// The terms' sum.
        terms_bytes: i128,
    },
    /// An account read from elsewhere whose remainder is not what is left over.
    #[error(
        "the account does not close: its remainder is {stated_bytes} bytes, and {true_bytes} are left over"
    )]
    DoesNotClose {
        /// The remainder as it is there.
        stated_bytes: i64,
        /// What is left over.
        true_bytes: i64,
    },
}

impl Account {
    /// Closes an account: what the terms do not explain of `driver_used_bytes` becomes the remainder.
    ///
    /// # Errors
    /// [`AccountError::DuplicateName`], [`AccountError::OutOfRange`].
    pub fn close(driver_used_bytes: u64, terms: Vec<Term>) -> Result<Self, AccountError> {
        for (index, term) in terms.iter().enumerate() {
            let is_taken = terms.iter().take(index).any(|before| before.name == term.name);
            if is_taken || term.name == REMAINDER {
                return Err(AccountError::DuplicateName { name: term.name.clone() });
            }
        }
        let terms_bytes: i128 = terms.iter().map(|term| i128::from(term.bytes)).sum();
        let remainder_bytes = i64::try_from(i128::from(driver_used_bytes) - terms_bytes)
            .map_err(|_| AccountError::OutOfRange { driver_used_bytes, terms_bytes })?;
        Ok(Self { driver_used_bytes, terms, remainder_bytes })
    }

    /// The device's used bytes as the driver says them: every process counts.
    #[must_use]
    pub const fn driver_used_bytes(&self) -> u64 {
        self.driver_used_bytes
    }

    /// The terms, in the order they were given.
    #[must_use]
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// The term of this name.
    #[must_use]
    pub fn term(&self, name: &str) -> Option<&Term> {
        self.terms.iter().find(|term| term.name == name)
    }

    /// What the terms do not explain; negative where they explain more than there is.
    #[must_use]
    pub const fn remainder_bytes(&self) -> i64 {
        self.remainder_bytes
    }

    /// The terms' sum of one quality, in bytes.
    #[must_use]
    pub fn bytes_of(&self, quality: Quality) -> i128 {
        self.terms.iter().filter(|term| term.quality == quality).map(|term| i128::from(term.bytes)).sum()
    }
}

/// A table: a line for the driver's figure, one for each term, one for the remainder; sizes, exact bytes, quality, note.
impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const USED: &str = "used, by the driver";
        let remainder = Term::new(REMAINDER, self.remainder_bytes, Quality::Unknown);
        let rows = || self.terms.iter().chain([&remainder]);
        let name_width =
            rows().map(|term| term.name.chars().count() + 2).chain([USED.len()]).max().unwrap_or(0);
        let bytes_width = rows()
            .map(|term| term.bytes.to_string().len())
            .chain([self.driver_used_bytes.to_string().len()])
            .max()
            .unwrap_or(0);
        let total = ByteSize(self.driver_used_bytes).to_string();
        write!(f, "{USED:<name_width$}  {total:>12}  {:>bytes_width$} B", self.driver_used_bytes)?;
        for Term { name, bytes, quality, note } in rows() {
            let sign = if *bytes < 0 { "-" } else { "" };
            let size = format!("{sign}{}", ByteSize(bytes.unsigned_abs()));
            let name_width = name_width - 2;
            write!(f, "\n  {name:<name_width$}  {size:>12}  {bytes:>bytes_width$} B  {quality}")?;
            if let Some(note) = note {
                write!(f, "  {note}")?;
            }
        }
        Ok(())
    }
}

/// The account as it is written for programs.
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
struct AccountForm {
    driver_used_bytes: u64,
    terms: Vec<Term>,
    remainder_bytes: i64,
}

impl TryFrom<AccountForm> for Account {
    type Error = AccountError;

    /// An account from elsewhere is not believed but closed again.
    fn try_from(form: AccountForm) -> Result<Self, AccountError> {
        let account = Self::close(form.driver_used_bytes, form.terms)?;
        if account.remainder_bytes == form.remainder_bytes {
            Ok(account)
        } else {
            Err(AccountError::DoesNotClose {
                stated_bytes: form.remainder_bytes,
                true_bytes: account.remainder_bytes,
            })
        }
    }
}

impl From<Account> for AccountForm {
    fn from(account: Account) -> Self {
        let Account { driver_used_bytes, terms, remainder_bytes } = account;
        Self { driver_used_bytes, terms, remainder_bytes }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn account() -> Account {
        let terms = vec![
            Term::new("context baseline", 552_402_944, Quality::Measured),
            Term::new("ledger", 4096, Quality::Measured).note("3 allocations"),
            Term::new("slack", 2_093_056, Quality::Modelled),
        ];
        Account::close(552_402_944 + (1 << 20), terms).unwrap()
    }

    #[test]
    fn what_is_not_explained_is_the_remainder_with_its_sign() {
        let account = account();
        assert_eq!(account.remainder_bytes(), (1 << 20) - 2_097_152);
        assert_eq!(account.bytes_of(Quality::Measured), 552_407_040);
        assert_eq!(account.bytes_of(Quality::Unknown), 0);
        assert_eq!(account.term("ledger").and_then(|term| term.note.as_deref()), Some("3 allocations"));
        assert_eq!(account.term("graphs"), None);
        assert_eq!(Account::close(7, vec![]).unwrap().remainder_bytes(), 7);
    }

    #[test]
    fn the_text_is_a_table() {
        let expected = "\
used, by the driver    527.81 MiB  553451520 B
  context baseline     526.81 MiB  552402944 B  measured
  ledger                 4.00 KiB       4096 B  measured  3 allocations
  slack                  2.00 MiB    2093056 B  modelled
  remainder             -1.00 MiB   -1048576 B  unknown";
        assert_eq!(account().to_string(), expected);
    }

    #[test]
    fn names_stand_once_and_terms_are_amounts_of_memory() {
        let term = |name: &str| Term::new(name, 1, Quality::Measured);
        for terms in [vec![term("ledger"), term("slack"), term("ledger")], vec![term("remainder")]] {
            assert!(matches!(Account::close(9, terms), Err(AccountError::DuplicateName { .. })));
        }
        let least =
            vec![Term::new("a", i64::MIN, Quality::Unknown), Term::new("b", i64::MIN, Quality::Unknown)];
        assert!(matches!(Account::close(0, least), Err(AccountError::OutOfRange { .. })));
        assert!(Account::close(u64::MAX, vec![]).is_err());
        assert!(Account::close(u64::MAX, vec![Term::new("a", i64::MAX, Quality::Unknown)]).is_err());
        assert!(Account::close(i64::MAX as u64, vec![]).is_ok());
    }

    #[test]
    fn an_account_from_elsewhere_is_closed_again() {
        let mut form = AccountForm::from(account());
        let same = Account::try_from(AccountForm::from(account())).unwrap();
        assert_eq!(same, account());
        form.remainder_bytes += 1;
        assert_eq!(
            Account::try_from(form),
            Err(AccountError::DoesNotClose { stated_bytes: -1_048_575, true_bytes: -1_048_576 })
        );
    }

    proptest! {
        #[test]
        fn it_always_sums(used in 0..1_u64 << 50, bytes in proptest::collection::vec(-(1_i64 << 50)..1 << 50, 0..30)) {
            let terms = (0..)
                .zip(&bytes)
                .map(|(number, &bytes): (usize, _)| Term::new(format!("term {number}"), bytes, Quality::Measured))
                .collect();
            let account = Account::close(used, terms).unwrap();
            let sum: i128 = account.terms().iter().map(|term| i128::from(term.bytes)).sum();
            prop_assert_eq!(sum + i128::from(account.remainder_bytes()), i128::from(account.driver_used_bytes()));
            prop_assert_eq!(account.to_string().lines().count(), bytes.len() + 2);
        }
    }
}
