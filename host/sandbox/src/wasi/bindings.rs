//! WASI 0.2 as Rust types and traits, made from `wit/virtual.wit`.

wasmtime::component::bindgen!({
    path: "wit",
    world: "virtual",
    imports: {
        "wasi:io/poll.[method]pollable.block": async | trappable,
        "wasi:io/poll.poll": async | trappable,
        "wasi:http/types.[static]outgoing-body.finish": async | trappable,
        "wasi:http/outgoing-handler.handle": async | trappable,
        default: trappable,
    },
    exports: { default: async },
    with: {
        "wasi:io/poll.pollable": super::poll::Pollable,
        "wasi:io/streams.input-stream": super::streams::InputStream,
        "wasi:io/streams.output-stream": super::streams::OutputStream,
        "wasi:http/types.fields": super::http::Fields,
        "wasi:http/types.future-incoming-response": super::http::Exchange,
        "wasi:http/types.future-trailers": super::http::FutureTrailers,
        "wasi:http/types.incoming-body": super::http::IncomingBody,
        "wasi:http/types.incoming-response": super::http::IncomingResponse,
        "wasi:http/types.outgoing-body": super::http::OutgoingBody,
        "wasi:http/types.outgoing-request": super::http::OutgoingRequest,
        "wasi:http/types.request-options": super::http::RequestOptions,
    },
});
