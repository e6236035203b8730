//! The block contract as Rust types and traits, made from `wit/block.wit`.

wasmtime::component::bindgen!({
    path: "../../wit",
    world: "block",
    imports: {
        "counterfoil:block/effects.perform": async | trappable,
        default: trappable,
    },
    exports: { default: async },
});
