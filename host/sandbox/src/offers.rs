//! What the host offers, by name: one list for the check of an upload and for the linker.

use wasmtime::Engine;
use wasmtime::component::{HasSelf, Linker};

use crate::bindings::counterfoil::block::{context, effects};
use crate::host::HostState;
use crate::wasi::interfaces::{cli, clocks, http, io, random};
use crate::wasi::{Refusing, Says, link_refusing};

/// One interface that a block may import.
pub(crate) struct Offer {
    pub(crate) interface: &'static str,
    versions: Versions,
    /// Its functions, those of a resource behind its name and a dot, as one text.
    functions: &'static str,
    link: Link,
}

/// Which versions of an interface are one to the host.
#[derive(Debug, Clone, Copy)]
enum Versions {
    /// The only one there is.
    Exact(&'static str),
    /// WASI 0.2: each of its releases only adds to the one before.
    Wasi,
}

enum Link {
    Bound(fn(&mut Linker<HostState>) -> wasmtime::Result<()>),
    Refusing(&'static Refusing),
}

type State = HasSelf<HostState>;

/// An interface of the block contract.
const fn own(
    interface: &'static str,
    functions: &'static str,
    link: fn(&mut Linker<HostState>) -> wasmtime::Result<()>,
) -> Offer {
    Offer { interface, versions: Versions::Exact("0.1.0"), functions, link: Link::Bound(link) }
}

/// An interface of WASI that is given in a virtual form.
const fn wasi(
    interface: &'static str,
    functions: &'static str,
    link: fn(&mut Linker<HostState>) -> wasmtime::Result<()>,
) -> Offer {
    Offer { interface, versions: Versions::Wasi, functions, link: Link::Bound(link) }
}

/// An interface of WASI that can be imported and does nothing.
const fn refusing(interface: &'static str, functions: &'static str, refusing: &'static Refusing) -> Offer {
    Offer { interface, versions: Versions::Wasi, functions, link: Link::Refusing(refusing) }
}

pub(crate) const OFFERS: &[Offer] = &[
    own("counterfoil:block/effects", "perform", |linker| {
        effects::add_to_linker::<_, State>(linker, |state| state)
    }),
    own("counterfoil:block/context", "place started-at random log", |linker| {
        context::add_to_linker::<_, State>(linker, |state| state)
    }),
    wasi("wasi:io/error", "error.to-debug-string", |linker| {
        io::error::add_to_linker::<_, State>(linker, |state| state)
    }),
    wasi("wasi:io/poll", "pollable.ready pollable.block poll", |linker| {
        io::poll::add_to_linker::<_, State>(linker, |state| state)
    }),
    wasi(
        "wasi:io/streams",
        "input-stream.read input-stream.blocking-read input-stream.skip input-stream.blocking-skip \
         input-stream.subscribe output-stream.check-write output-stream.write output-stream.blocking-write-and-flush \
         output-stream.flush output-stream.blocking-flush output-stream.subscribe output-stream.write-zeroes \
         output-stream.blocking-write-zeroes-and-flush output-stream.splice output-stream.blocking-splice",
        |linker| io::streams::add_to_linker::<_, State>(linker, |state| state),
    ),
    wasi("wasi:clocks/monotonic-clock", "now resolution subscribe-instant subscribe-duration", |linker| {
        clocks::monotonic_clock::add_to_linker::<_, State>(linker, |state| state)
    }),
    wasi("wasi:clocks/wall-clock", "now resolution", |linker| {
        clocks::wall_clock::add_to_linker::<_, State>(linker, |state| state)
    }),
    wasi("wasi:random/random", "get-random-bytes get-random-u64", |linker| {
        random::random::add_to_linker::<_, State>(linker, |state| state)
    }),
    wasi("wasi:random/insecure", "get-insecure-random-bytes get-insecure-random-u64", |linker| {
        random::insecure::add_to_linker::<_, State>(linker, |state| state)
    }),
    wasi("wasi:random/insecure-seed", "insecure-seed", |linker| {
        random::insecure_seed::add_to_linker::<_, State>(linker, |state| state)
    }),
    wasi("wasi:cli/environment", "get-environment get-arguments initial-cwd", |linker| {
        cli::environment::add_to_linker::<_, State>(linker, |state| state)
    }),
    wasi("wasi:cli/exit", "exit exit-with-code", |linker| {
        // Whether programs may know the second function is a question of their toolchain, and not of this host.
        cli::exit::add_to_linker::<_, State>(linker, |state| state)
    }),
    wasi("wasi:cli/stdin", "get-stdin", |linker| {
        cli::stdin::add_to_linker::<_, State>(linker, |state| state)
    }),
    wasi("wasi:cli/stdout", "get-stdout", |linker| {
        cli::stdout::add_to_linker::<_, State>(linker, |state| state)
    }),
    wasi("wasi:cli/stderr", "get-stderr", |linker| {
        cli::stderr::add_to_linker::<_, State>(linker, |state| state)
    }),
    wasi(
        "wasi:http/types",
        "http-error-code fields fields.from-list fields.get fields.has fields.set fields.delete fields.append \
         fields.entries fields.clone incoming-request.method incoming-request.path-with-query incoming-request.scheme \
         incoming-request.authority incoming-request.headers incoming-request.consume outgoing-request \
         outgoing-request.body outgoing-request.method outgoing-request.set-method outgoing-request.path-with-query \
         outgoing-request.set-path-with-query outgoing-request.scheme outgoing-request.set-scheme \
         outgoing-request.authority outgoing-request.set-authority outgoing-request.headers request-options \
         request-options.connect-timeout request-options.set-connect-timeout request-options.first-byte-timeout \
         request-options.set-first-byte-timeout request-options.between-bytes-timeout \
         request-options.set-between-bytes-timeout response-outparam.send-informational response-outparam.set \
         incoming-response.status incoming-response.headers incoming-response.consume incoming-body.stream \
         incoming-body.finish future-trailers.subscribe future-trailers.get outgoing-response \
         outgoing-response.status-code outgoing-response.set-status-code outgoing-response.headers \
         outgoing-response.body outgoing-body.write outgoing-body.finish future-incoming-response.subscribe \
         future-incoming-response.get",
        |linker| http::types::add_to_linker::<_, State>(linker, |state| state),
    ),
    wasi("wasi:http/outgoing-handler", "handle", |linker| {
        http::outgoing_handler::add_to_linker::<_, State>(linker, |state| state)
    }),
    refusing("wasi:cli/terminal-input", "", &Refusing { resources: "terminal-input", answers: &[] }),
    refusing("wasi:cli/terminal-output", "", &Refusing { resources: "terminal-output", answers: &[] }),
    refusing(
        "wasi:cli/terminal-stdin",
        "get-terminal-stdin",
        &Refusing { resources: "", answers: &[("get-terminal-stdin", Says::Nothing)] },
    ),
    refusing(
        "wasi:cli/terminal-stdout",
        "get-terminal-stdout",
        &Refusing { resources: "", answers: &[("get-terminal-stdout", Says::Nothing)] },
    ),
    refusing(
        "wasi:cli/terminal-stderr",
        "get-terminal-stderr",
        &Refusing { resources: "", answers: &[("get-terminal-stderr", Says::Nothing)] },
    ),
    refusing(
        "wasi:filesystem/types",
        "descriptor.read-via-stream descriptor.write-via-stream descriptor.append-via-stream descriptor.advise \
         descriptor.sync-data descriptor.get-flags descriptor.get-type descriptor.set-size descriptor.set-times \
         descriptor.read descriptor.write descriptor.read-directory descriptor.sync descriptor.create-directory-at \
         descriptor.stat descriptor.stat-at descriptor.set-times-at descriptor.link-at descriptor.open-at \
         descriptor.readlink-at descriptor.remove-directory-at descriptor.rename-at descriptor.symlink-at \
         descriptor.unlink-file-at descriptor.is-same-object descriptor.metadata-hash descriptor.metadata-hash-at \
         directory-entry-stream.read-directory-entry filesystem-error-code",
        &Refusing { resources: "descriptor directory-entry-stream", answers: &[] },
    ),
    refusing(
        "wasi:filesystem/preopens",
        "get-directories",
        &Refusing { resources: "", answers: &[("get-directories", Says::EmptyList)] },
    ),
    refusing("wasi:sockets/network", "network-error-code", &Refusing { resources: "network", answers: &[] }),
    refusing(
        "wasi:sockets/instance-network",
        "instance-network",
        &Refusing { resources: "", answers: &[("instance-network", Says::Handle)] },
    ),
    refusing(
        "wasi:sockets/ip-name-lookup",
        "resolve-addresses resolve-address-stream.resolve-next-address resolve-address-stream.subscribe",
        &Refusing { resources: "resolve-address-stream", answers: &[("resolve-addresses", Says::Denied)] },
    ),
    refusing(
        "wasi:sockets/tcp",
        "tcp-socket.start-bind tcp-socket.finish-bind tcp-socket.start-connect tcp-socket.finish-connect \
         tcp-socket.start-listen tcp-socket.finish-listen tcp-socket.accept tcp-socket.local-address \
         tcp-socket.remote-address tcp-socket.is-listening tcp-socket.address-family \
         tcp-socket.set-listen-backlog-size tcp-socket.keep-alive-enabled tcp-socket.set-keep-alive-enabled \
         tcp-socket.keep-alive-idle-time tcp-socket.set-keep-alive-idle-time tcp-socket.keep-alive-interval \
         tcp-socket.set-keep-alive-interval tcp-socket.keep-alive-count tcp-socket.set-keep-alive-count \
         tcp-socket.hop-limit tcp-socket.set-hop-limit tcp-socket.receive-buffer-size \
         tcp-socket.set-receive-buffer-size tcp-socket.send-buffer-size tcp-socket.set-send-buffer-size \
         tcp-socket.subscribe tcp-socket.shutdown",
        &Refusing { resources: "tcp-socket", answers: &[] },
    ),
    refusing(
        "wasi:sockets/tcp-create-socket",
        "create-tcp-socket",
        &Refusing { resources: "", answers: &[("create-tcp-socket", Says::Denied)] },
    ),
    refusing(
        "wasi:sockets/udp",
        "udp-socket.start-bind udp-socket.finish-bind udp-socket.stream udp-socket.local-address \
         udp-socket.remote-address udp-socket.address-family udp-socket.unicast-hop-limit \
         udp-socket.set-unicast-hop-limit udp-socket.receive-buffer-size udp-socket.set-receive-buffer-size \
         udp-socket.send-buffer-size udp-socket.set-send-buffer-size udp-socket.subscribe \
         incoming-datagram-stream.receive incoming-datagram-stream.subscribe outgoing-datagram-stream.check-send \
         outgoing-datagram-stream.send outgoing-datagram-stream.subscribe",
        &Refusing { resources: "udp-socket incoming-datagram-stream outgoing-datagram-stream", answers: &[] },
    ),
    refusing(
        "wasi:sockets/udp-create-socket",
        "create-udp-socket",
        &Refusing { resources: "", answers: &[("create-udp-socket", Says::Denied)] },
    ),
];

/// The release of WASI 0.2 by which the linker knows its interfaces; it takes every other for the same.
const WASI_VERSION: &str = "0.2.0";

impl Offer {
    /// What is offered under the name of an import, whichever version it asks for.
    pub(crate) fn of(import: &str) -> Option<&'static Self> {
        let interface = import.split_once('@').map_or(import, |(interface, _)| interface);
        OFFERS.iter().find(|offer| offer.interface == interface)
    }

    /// The version that an import may ask for, as people write it.
    pub(crate) fn version(&self) -> &'static str {
        match self.versions {
            Versions::Exact(version) => version,
            Versions::Wasi => "0.2",
        }
    }

    pub(crate) fn has_version(&self, version: &str) -> bool {
        match self.versions {
            Versions::Exact(only) => version == only,
            Versions::Wasi => version
                .strip_prefix("0.2.")
                .is_some_and(|patch| !patch.is_empty() && patch.bytes().all(|byte| byte.is_ascii_digit())),
        }
    }

    /// Whether it has this function, given as a component names it.
    pub(crate) fn has_function(&self, function: &str) -> bool {
        // A method, a constructor and the like are marked as such.
        let function = function.rsplit_once(']').map_or(function, |(_, name)| name);
        self.functions.split_whitespace().any(|offered| offered == function)
    }
}

/// The linker with everything on the list and nothing else.
///
/// # Errors
/// Only if the list names something twice.
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker<HostState>> {
    let mut linker = Linker::new(engine);
    for Offer { interface, functions, link, .. } in OFFERS {
        match link {
            Link::Bound(link) => link(&mut linker)?,
            Link::Refusing(refusing) => {
                let mut instance = linker.instance(&format!("{interface}@{WASI_VERSION}"))?;
                link_refusing(&mut instance, functions, refusing)?;
            }
        }
    }
    Ok(linker)
}

/// Whether a block may import this interface, given with its version.
pub fn is_offered(import: &str) -> bool {
    let version = import.split_once('@').map_or("", |(_, version)| version);
    Offer::of(import).is_some_and(|offer| offer.has_version(version))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use counterfoil_domain::limits::StepLimits;
    use wasmtime::component::Component;
    use wit_component::{ComponentEncoder, StringEncoding, dummy_module, embed_component_metadata};
    use wit_parser::{ManglingAndAbi, Resolve, WorldItem, WorldKey};

    use super::*;
    use crate::engine::{Allocation, engine};

    const CONTRACT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../wit");
    const WASI: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/wit");
    const WORLDS: [(&str, &str); 3] = [(CONTRACT, "verifying-block"), (WASI, "virtual"), (WASI, "refusing")];

    fn world(path: &str, name: &str) -> (Resolve, wit_parser::WorldId) {
        let mut resolve = Resolve::default();
        let (package, _) = resolve.push_path(path).expect("it parses");
        let world = resolve.select_world(&[package], Some(name)).expect("the world");
        (resolve, world)
    }

    /// The functions of each interface on a side of a world, as the list names them.
    fn interfaces(
        resolve: &Resolve,
        items: &wit_parser::IndexMap<WorldKey, WorldItem>,
    ) -> BTreeMap<String, Vec<String>> {
        items
            .iter()
            .map(|(key, item)| {
                let WorldItem::Interface { id, .. } = item else { panic!("{key:?} is no interface") };
                let names = resolve.interfaces[*id].functions.keys();
                let plain =
                    |name: &String| name.rsplit_once(']').map_or(name.as_str(), |(_, name)| name).to_owned();
                let mut names: Vec<String> = names.map(plain).collect();
                names.sort();
                (resolve.name_world_key(key), names)
            })
            .collect()
    }

    #[test]
    fn the_list_is_the_contract_and_what_is_given_of_wasi() {
        let written: BTreeMap<String, Vec<String>> = WORLDS
            .iter()
            .flat_map(|(path, name)| {
                let (resolve, world) = world(path, name);
                interfaces(&resolve, &resolve.worlds[world].imports)
            })
            .collect();
        let offered: BTreeMap<String, Vec<String>> = OFFERS
            .iter()
            .map(|offer| {
                let version = match offer.versions {
                    Versions::Exact(version) => version,
                    Versions::Wasi => WASI_VERSION,
                };
                let mut functions: Vec<String> = offer.functions.split_whitespace().map(Into::into).collect();
                functions.sort();
                (format!("{}@{version}", offer.interface), functions)
            })
            .collect();
        assert_eq!(offered, written);
        for refusing in OFFERS.iter().filter_map(|offer| match offer.link {
            Link::Refusing(refusing) => Some((offer, refusing)),
            Link::Bound(_) => None,
        }) {
            let (offer, Refusing { answers, .. }) = refusing;
            assert!(answers.iter().all(|(name, _)| offer.has_function(name)), "{}", offer.interface);
        }
    }

    /// A component that imports all of it links; nothing else that it could import would.
    #[test]
    fn what_is_on_the_list_can_be_linked_to_the_last_function() {
        let engine = engine(Allocation::OnDemand, 1, &StepLimits::DEFAULT).expect("an engine");
        let linker = linker(&engine).expect("a linker");
        for (path, name) in WORLDS {
            let (resolve, world) = world(path, name);
            let mut module = dummy_module(&resolve, world, ManglingAndAbi::Standard32);
            embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).expect("metadata");
            let mut encoder = ComponentEncoder::default().module(&module).expect("a module");
            let bytes = encoder.encode().expect("a component");
            let component = Component::new(&engine, &bytes).expect("it compiles");
            let imports = component.component_type().imports(&engine).count();
            assert_eq!(imports, resolve.worlds[world].imports.len(), "{name}");
            linker.instantiate_pre(&component).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        }
    }

    #[test]
    fn one_release_of_wasi_is_as_good_as_another() {
        for (import, offered) in [
            ("wasi:io/poll@0.2.0", true),
            ("wasi:io/poll@0.2.10", true),
            ("wasi:io/poll@0.2.0-rc-2023-11-10", false),
            ("wasi:io/poll@0.2.", false),
            ("wasi:io/poll@0.3.0", false),
            ("wasi:io/poll", false),
            ("wasi:io/network@0.2.0", false),
            ("counterfoil:block/effects@0.1.0", true),
            ("counterfoil:block/effects@0.1.1", false),
        ] {
            assert_eq!(is_offered(import), offered, "{import}");
        }
    }
}
