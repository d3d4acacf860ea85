// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the types refuse: each program of compile_fail/ does not compile, for the reason in the file beside it.

#[test]
fn what_the_types_refuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
