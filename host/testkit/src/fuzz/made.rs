//! What a host is given: components that follow from a seed and a number, each of a family that knows one way to be wrong.

use std::path::Path;

use anyhow::{Context as _, ensure};
use arbitrary::Unstructured;
use counterfoil_domain::block::with_manifest;
use serde_json::{Value, json};
use wasm_mutate::WasmMutate;
use wasm_smith::{Component, Config, Module};
use wasmparser::{Parser, Payload};

use super::values;
use crate::guest::Guest;
use crate::random::Random;

/// Larger ones take the compiler tens of seconds, in which hundreds of small ones are tried.
const ORIGINAL_BYTES_MAX: usize = 512 << 10;
/// What a random module is made of.
const ENTROPY_BYTES_LEN: usize = 8 << 10;
/// Work of one mutation: enough for each of them, and too little for a search without end.
const MUTATION_FUEL: u64 = 1_000;

/// One component.
pub(super) struct Case {
    pub(super) family: &'static str,
    pub(super) bytes: Vec<u8>,
    pub(super) input: Value,
}

type Make = fn(&mut Random, &[Vec<u8>]) -> anyhow::Result<Vec<u8>>;

const MUTATED: &str = "mutated blocks";
/// Name, share of a hundred cases, and how one is made.
const FAMILIES: &[(&str, u64, Make)] = &[
    ("values at the boundary", 40, |random, _| Ok(values::block(random))),
    ("random code in a block", 20, |random, _| random_code(random)),
    (MUTATED, 25, mutated),
    ("damaged bytes", 10, |random, originals| Ok(damaged(random, originals))),
    ("random components", 5, |random, _| random_component(random)),
];

/// Blocks that work, to be mutated: those built in `directory`, and one written as text.
pub(super) fn originals(directory: &Path) -> anyhow::Result<Vec<Vec<u8>>> {
    let listed = std::fs::read_dir(directory).with_context(|| format!("reading {}", directory.display()))?;
    let mut files = listed.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "wasm"));
    // The order of a directory is no part of a seed.
    files.sort();
    let mut originals = vec![Guest::echo().build()];
    for file in files {
        let mut bytes = std::fs::read(&file)?;
        if let Ok(manifest) = std::fs::read(file.with_extension("json")) {
            bytes = with_manifest(&bytes, &manifest);
        }
        if bytes.len() <= ORIGINAL_BYTES_MAX {
            originals.push(bytes);
        }
    }
    ensure!(originals.len() > 1, "{} has no blocks to mutate", directory.display());
    Ok(originals)
}

/// The case with this number.
pub(super) fn case(seed: u64, number: u64, originals: &[Vec<u8>]) -> anyhow::Result<Case> {
    let mut random = Random::new(seed.rotate_left(32) ^ number);
    let mut left = random.below(100);
    for (family, share, make) in FAMILIES {
        if left < *share {
            // A block that says what it takes is not run with anything else.
            let input = if *family == MUTATED && random.percent(90) {
                fitting(&mut random)
            } else {
                input(&mut random)
            };
            let bytes = make(&mut random, originals).with_context(|| format!("making case {number}"))?;
            return Ok(Case { family, bytes, input });
        }
        left -= share;
    }
    unreachable!("the shares are a hundred in all")
}

/// What the examples take.
fn fitting(random: &mut Random) -> Value {
    json!({ "order": "o-1", "cents": random.below(1_000), "domain": "acme.example" })
}

fn input(random: &mut Random) -> Value {
    match random.below(8) {
        0 => Value::Null,
        1 => json!(random.between(0, u64::MAX - 1)),
        2 => json!("\u{1}\u{feff}\u{202e}𝄞\"\\\u{7f}"),
        3..6 => fitting(random),
        6 => (0..random.below(90)).fold(json!(1), |inner, _| json!([inner])),
        _ => json!("x".repeat(usize::try_from(random.below(200_000)).unwrap_or(0))),
    }
}

/// A block whose `run` is a random module that may call everything that a block may.
fn random_code(random: &mut Random) -> anyhow::Result<Vec<u8>> {
    const SHAPE: &str = include_str!("shape.wat");
    let entropy = entropy(random);
    let mut config = Config {
        module_shape: Some(wat::parse_str(SHAPE)?),
        max_instructions: 400,
        max_funcs: 20,
        max_memories: 1,
        max_memory32_bytes: 4 << 20,
        gc_enabled: false,
        threads_enabled: false,
        exceptions_enabled: false,
        memory64_enabled: false,
        relaxed_simd_enabled: false,
        tail_call_enabled: false,
        // Among them `externref`, which no component can get from outside.
        reference_types_enabled: random.percent(15),
        ..Config::default()
    };
    // A module that wants what no block may have.
    if random.percent(10) {
        config.gc_enabled = true;
        config.exceptions_enabled = true;
        config.tail_call_enabled = true;
    }
    let module = Module::new(config, &mut Unstructured::new(&entropy))?.to_bytes();
    let block = values::block_with_a_module(SHAPE);
    // The last but one: the last is what keeps its answers where an answer can lie.
    let place = modules(&block).into_iter().nth_back(1).context("the block has modules")?;
    Ok(with_module(&block, place, &module))
}

fn random_component(random: &mut Random) -> anyhow::Result<Vec<u8>> {
    let entropy = entropy(random);
    let config =
        Config { max_components: 4, max_modules: 4, max_instances: 8, max_values: 0, ..Config::default() };
    Ok(Component::new(config, &mut Unstructured::new(&entropy))?.to_bytes())
}

/// A working block, one of whose core modules was changed a few times.
fn mutated(random: &mut Random, originals: &[Vec<u8>]) -> anyhow::Result<Vec<u8>> {
    let mut block = random.pick(originals).clone();
    for _ in 0..random.between(1, 4) {
        let modules = modules(&block);
        let range = random.pick(&modules).clone();
        let module = block.get(range.clone()).context("a module lies in its block")?.to_vec();
        let mut mutate = WasmMutate::default();
        mutate.seed(random.below(u64::MAX)).fuel(MUTATION_FUEL);
        // Not every module has what a mutation looks for; the block is then taken as it is.
        if let Ok(mut mutants) = mutate.run(&module)
            && let Some(Ok(mutant)) = mutants.next()
        {
            block = with_module(&block, range, &mutant);
        }
    }
    Ok(block)
}

/// A working block, some of whose bytes are others.
fn damaged(random: &mut Random, originals: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = random.pick(originals).clone();
    let at = |random: &mut Random, bytes: &[u8]| {
        usize::try_from(random.below(bytes.len() as u64)).unwrap_or_default()
    };
    for _ in 0..random.between(1, 8) {
        let place = at(random, &bytes);
        match random.below(10) {
            0 => bytes.truncate(place.max(9)),
            1 => {
                let end = at(random, &bytes).clamp(place, place.saturating_add(64).min(bytes.len()));
                let copied = bytes[place..end].to_vec();
                bytes.splice(place..place, copied);
            }
            2 => {
                bytes.remove(place);
            }
            _ => bytes[place] = values::byte(random),
        }
    }
    bytes
}

fn entropy(random: &mut Random) -> Vec<u8> {
    (0..ENTROPY_BYTES_LEN).map(|_| values::byte(random)).collect()
}

/// Where a component's own core modules lie.
fn modules(component: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut depth = 0_u32;
    let mut modules = vec![];
    for payload in Parser::new(0).parse_all(component) {
        match payload {
            Ok(Payload::ModuleSection { unchecked_range, .. }) => {
                if depth == 0 {
                    modules.push(unchecked_range);
                }
                depth += 1;
            }
            Ok(Payload::ComponentSection { .. }) => depth += 1,
            Ok(Payload::End(_)) => depth = depth.saturating_sub(1),
            Ok(_) => {}
            Err(_) => break,
        }
    }
    modules
}

/// The component with another module in that place; its section's length is written in five bytes, which any length fits.
fn with_module(component: &[u8], range: std::ops::Range<usize>, module: &[u8]) -> Vec<u8> {
    const LEN_BYTES: usize = 5;
    let mut len_at = range.start;
    // The length lies before the module: its last byte has no continuation bit, the ones before it have.
    len_at -= 1;
    while component[len_at - 1] & 0x80 != 0 && range.start - len_at < LEN_BYTES {
        len_at -= 1;
    }
    let mut len = module.len();
    let mut leb = [0; LEN_BYTES];
    for (index, byte) in leb.iter_mut().enumerate() {
        let more = if index + 1 < LEN_BYTES { 0x80 } else { 0 };
        *byte = u8::try_from(len & 0x7f).unwrap_or_default() | more;
        len >>= 7;
    }
    [&component[..len_at], &leb, module, &component[range.end..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_follows_from_its_seed_and_number() {
        let originals = [Guest::echo().build()];
        for number in 0..200 {
            let made = || case(7, number, &originals).expect("made");
            let (first, again) = (made(), made());
            assert_eq!((first.family, first.bytes, first.input), (again.family, again.bytes, again.input));
        }
    }

    #[test]
    fn some_blocks_lose_an_answer_and_can_be_asked_for_it() {
        let originals = [Guest::echo().build()];
        let holds =
            |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        let of_family = |number| case(7, number, &originals).ok().filter(|case| case.family == FAMILIES[0].0);
        let blocks: Vec<Vec<u8>> = (0..200).filter_map(of_family).map(|case| case.bytes).collect();
        for text in ["counterfoil:block/reconcile@0.1.0", "/charges?drop=true"] {
            let count = blocks.iter().filter(|block| holds(block, text)).count();
            assert!((1..blocks.len()).contains(&count), "{text}: {count} of {}", blocks.len());
        }
    }

    #[test]
    fn a_module_is_put_in_place_of_another() {
        let block = Guest::echo().build();
        for range in modules(&block) {
            let same = with_module(&block, range.clone(), &block[range]);
            let mut validator = wasmparser::Validator::new_with_features(wasmparser::WasmFeatures::all());
            validator.validate_all(&same).expect("still a component");
        }
    }
}
