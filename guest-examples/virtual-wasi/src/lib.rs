//! Uses what WASI offers, for good and for ill.

mod client;

use counterfoil_sdk::context::Level;
use counterfoil_sdk::prelude::*;
use wasip2::cli::{environment, exit, stderr, stdin, stdout, terminal_stdout};
use wasip2::clocks::{monotonic_clock, wall_clock};
use wasip2::filesystem::preopens;
use wasip2::io::poll;
use wasip2::random::{insecure, insecure_seed, random};
use wasip2::sockets::network::IpAddressFamily;
use wasip2::sockets::{instance_network, ip_name_lookup, tcp_create_socket, udp_create_socket};

use client::Wanted;

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Deed {
    /// Looks at everything, and sends what it saw.
    Look,
    /// Writes to both streams.
    Print,
    Sleep {
        ms: u64,
    },
    /// Looks at the clock until so much of its time is over.
    Spin {
        ms: u64,
    },
    Exit {
        code: u8,
    },
    ExitWell,
    Random {
        bytes: u64,
    },
    Zeroes {
        bytes: u64,
    },
    WaitForNothing,
    /// Makes a request, and says what came of it.
    Request(Wanted),
    /// Waits for the answer to a request whose body it does not finish.
    WaitForMyself,
    /// Holds on to the bodies of so many requests of 1 MiB.
    HoldBodies {
        count: u32,
    },
    /// As if it had been asked.
    Answer,
    FloodOutput,
    FloodLines,
    FloodHandles,
    FloodPollables,
    FloodPolls,
    FloodNaps,
}

/// Does what it is told with WASI's interfaces.
#[block(effects(http(hosts = ["mirror.example"])))]
fn virtual_wasi(deed: Deed) -> Result<Value, Failure> {
    Ok(match deed {
        Deed::Look => {
            let seen = seen();
            http::post("https://mirror.example/seen").json(&seen)?.send()?;
            seen
        }
        Deed::Print => {
            let (out, err) = (stdout::get_stdout(), stderr::get_stderr());
            let print = |stream: &stdout::OutputStream, text: &str| {
                stream.blocking_write_and_flush(text.as_bytes()).expect("it takes everything");
            };
            print(&out, "one\ntw");
            print(&err, "careful\n");
            context::log(Level::Debug, "from the contract");
            print(&out, "o\nthree");
            Value::Null
        }
        Deed::Sleep { ms } => {
            let before = monotonic_clock::now();
            monotonic_clock::subscribe_duration(ms.saturating_mul(1_000_000)).block();
            json!(monotonic_clock::now() - before)
        }
        Deed::Spin { ms } => {
            let before = monotonic_clock::now();
            let mut looks = 0;
            while monotonic_clock::now() - before < ms * 1_000_000 {
                looks += 1;
            }
            json!(looks)
        }
        Deed::Exit { code } => {
            if code == 1 {
                exit::exit(Err(()));
            }
            json!(code)
        }
        Deed::ExitWell => {
            exit::exit(Ok(()));
            Value::Null
        }
        Deed::Random { bytes } => json!(random::get_random_bytes(bytes).len()),
        Deed::Zeroes { bytes } => {
            stdout::get_stdout().write_zeroes(bytes).expect("it takes everything");
            Value::Null
        }
        Deed::Request(wanted) => client::request(wanted),
        Deed::WaitForMyself => client::wait_for_myself(),
        Deed::HoldBodies { count } => client::hold_bodies(count),
        Deed::Answer => client::answer(),
        Deed::WaitForNothing => json!(poll::poll(&[])),
        flood => endless(&flood),
    })
}

/// Goes on until it is ended.
fn endless(flood: &Deed) -> ! {
    match flood {
        Deed::FloodOutput => {
            let (out, chunk) = (stdout::get_stdout(), vec![b'x'; 64 << 10]);
            loop {
                out.write(&chunk).expect("it takes everything");
            }
        }
        Deed::FloodLines => {
            let (out, chunk) = (stderr::get_stderr(), vec![b'\n'; 64 << 10]);
            loop {
                out.write(&chunk).expect("it takes everything");
            }
        }
        Deed::FloodHandles => {
            let mut held = vec![];
            loop {
                held.push(stdin::get_stdin());
            }
        }
        Deed::FloodPollables => {
            let mut held = vec![];
            loop {
                held.push(monotonic_clock::subscribe_duration(u64::MAX));
            }
        }
        Deed::FloodPolls => {
            let ready = stdin::get_stdin().subscribe();
            let all = vec![&ready; 500];
            loop {
                poll::poll(&all);
            }
        }
        Deed::FloodNaps => loop {
            monotonic_clock::subscribe_duration(1).block();
        },
        _ => unreachable!("every other deed has an end"),
    }
}

fn seen() -> Value {
    let network = instance_network::instance_network();
    let wall = || {
        let now = wall_clock::now();
        [now.seconds, now.nanoseconds.into()]
    };
    let ready = monotonic_clock::subscribe_instant(0);
    let later = monotonic_clock::subscribe_duration(u64::MAX);
    json!({
        "arguments": environment::get_arguments(),
        "variables": environment::get_environment(),
        "directory": environment::initial_cwd(),
        "preopens": preopens::get_directories().len(),
        "terminal": terminal_stdout::get_terminal_stdout().is_some(),
        "input": stdin::get_stdin().blocking_read(10).map_err(|error| error.to_string()),
        "wall": [wall(), wall()],
        "monotonic": [monotonic_clock::now(), monotonic_clock::now()],
        "ready": poll::poll(&[&later, &ready, &ready]),
        "random": random::get_random_bytes(8),
        "random-u64": random::get_random_u64().to_string(),
        "insecure": insecure::get_insecure_random_bytes(8),
        "insecure-u64": insecure::get_insecure_random_u64().to_string(),
        "seed": [insecure_seed::insecure_seed().0.to_string(), insecure_seed::insecure_seed().1.to_string()],
        "context": context::random(8),
        "tcp": tcp_create_socket::create_tcp_socket(IpAddressFamily::Ipv4).err().map(|error| error.name()),
        "udp": udp_create_socket::create_udp_socket(IpAddressFamily::Ipv6).err().map(|error| error.name()),
        "name": ip_name_lookup::resolve_addresses(&network, "example.com").err().map(|error| error.name()),
    })
}
