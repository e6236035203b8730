//! The block contract as Rust types and traits, made from `wit/block.wit`.

wasmtime::component::bindgen!({
    path: "../../wit",
    // With every export that a block may have; which of them one has is looked up one by one.
    world: "verifying-block",
    imports: {
        "counterfoil:block/effects.perform": async | trappable,
        default: trappable,
    },
    exports: { default: async },
});
