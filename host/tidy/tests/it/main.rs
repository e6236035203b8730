//! Holds this very tree to the architecture.

use std::path::Path;

#[test]
fn the_tree_is_as_the_architecture_has_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let found = counterfoil_tidy::check(&root).expect("the tree can be read");
    let list: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert!(list.is_empty(), "{} findings:\n{}\n", list.len(), list.join("\n"));
}
