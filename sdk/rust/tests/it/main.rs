//! What an author is told when a block is written wrongly.

#[test]
fn each_wrong_use_is_one_error_at_its_place() {
    trybuild::TestCases::new().compile_fail("tests/wrong/*.rs");
}
