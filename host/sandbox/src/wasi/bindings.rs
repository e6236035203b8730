//! WASI 0.2 as Rust types and traits, made from `wit/virtual.wit`.

wasmtime::component::bindgen!({
    path: "wit",
    world: "virtual",
    imports: {
        "wasi:io/poll.[method]pollable.block": async | trappable,
        "wasi:io/poll.poll": async | trappable,
        default: trappable,
    },
    with: {
        "wasi:io/poll.pollable": super::poll::Pollable,
        "wasi:io/streams.input-stream": super::streams::InputStream,
        "wasi:io/streams.output-stream": super::streams::OutputStream,
    },
});
