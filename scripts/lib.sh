# Functions that the scripts share; each sources this file and then works from the root of the repository.
#
# What they need is looked for first and installed only if it is missing. Every step that uses the network has a time
# limit. Where something cannot be had, the last line says what, and what to do.
# shellcheck shell=sh

# A download over a slow line; a machine without a network gives up much earlier.
NETWORK_SECONDS=300
RUSTUP_SECONDS=120
# A build of 400 crates: a minute and a half on two cores.
DENY_SECONDS=900
DENY_VERSION=0.20.2

POSTGRES_MIN=15
RUST_MIN=$(sed -n 's/^rust-version = "1\.\([0-9]*\).*/\1/p' Cargo.toml)
WASM_TARGET=wasm32-unknown-unknown
# Debian's compiler for the Wasm target, which builds the standard library from its source.
WASM_PACKAGES="rustc-web cargo-web rust-web-src rust-web-llvm lld-22"

# One clock for a script and those that it calls.
: "${SCRIPT_STARTED:=$(date +%s)}"
export SCRIPT_STARTED

# What is being done, and how long after the start.
say() {
    elapsed=$(($(date +%s) - SCRIPT_STARTED))
    printf '[%d:%02d] %s\n' $((elapsed / 60)) $((elapsed % 60)) "$*" >&2
}

fail() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

has() {
    command -v "$1" >/dev/null 2>&1
}

# limited SECONDS COMMAND [ARG]…
limited() {
    limited_seconds=$1
    shift
    if has timeout; then
        # In the foreground, so that Ctrl-C reaches it too.
        timeout --foreground --kill-after=10 "$limited_seconds" "$@"
    else
        "$@"
    fi
}

# quietly WHAT COMMAND [ARG]…: its output is shown only if it fails.
quietly() {
    quietly_what=$1
    shift
    quietly_log=$(mktemp)
    if "$@" >"$quietly_log" 2>&1; then
        rm -f "$quietly_log"
    else
        quietly_status=$?
        say "$quietly_what failed:"
        tail -n 20 "$quietly_log" | sed 's/^/    /' >&2
        rm -f "$quietly_log"
        return "$quietly_status"
    fi
}

# Where cargo writes.
target_dir() {
    cargo metadata --no-deps --offline --format-version 1 |
        sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p'
}

# apt_install PACKAGE…: false if this is not for us to do here, or fails.
apt_install() {
    if ! has apt-get; then
        return 1
    elif [ "$(id -u)" -eq 0 ]; then
        as_root=
    elif has sudo && sudo -n true 2>/dev/null; then
        as_root="sudo -n"
    else
        return 1
    fi
    if [ -z "${apt_updated:-}" ]; then
        quietly "apt-get update" limited "$NETWORK_SECONDS" $as_root apt-get update -q || return 1
        apt_updated=1
    fi
    quietly "apt-get install $*" limited "$NETWORK_SECONDS" $as_root \
        env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
}

# rustup_allowed: COUNTERFOIL_NO_RUSTUP leaves the installed toolchains as they are.
rustup_allowed() {
    [ -z "${COUNTERFOIL_NO_RUSTUP:-}" ] && has rustup
}

# Every crate of both workspaces, so that no later step waits for the network.
fetch_crates() {
    for manifest in Cargo.toml guest-examples/Cargo.toml; do
        quietly "fetching crates" limited "$NETWORK_SECONDS" \
            cargo fetch --locked --manifest-path "$manifest" ||
            fail "the crates of $manifest cannot be had: is there a network, or a cargo registry?"
    done
}

ensure_rust() {
    has cargo || PATH=$HOME/.cargo/bin:$PATH
    has cargo || fail "there is no cargo: install Rust 1.$RUST_MIN or newer, as https://rustup.rs says"
    has cc || say "installing a C compiler, which links programs"
    has cc || apt_install gcc libc6-dev || fail "there is no C compiler (cc): install gcc or clang"
    minor=$(rustc --version | sed -n 's/^rustc 1\.\([0-9]*\).*/\1/p')
    [ "${minor:-0}" -ge "$RUST_MIN" ] ||
        fail "$(rustc --version) is too old: install Rust 1.$RUST_MIN or newer (rustup update stable)"
}

# ensure_rust_part COMMAND COMPONENT
ensure_rust_part() {
    cargo "$1" --version >/dev/null 2>&1 && return
    if rustup_allowed; then
        say "adding $2 to the Rust toolchain"
        quietly "rustup component add $2" limited "$RUSTUP_SECONDS" rustup component add "$2" && return
    fi
    fail "cargo $1 is not installed: run \`rustup component add $2\`"
}

active_has_wasm() {
    libraries=$(rustc --print target-libdir --target $WASM_TARGET 2>/dev/null) || return 1
    ls "$libraries"/libstd-* >/dev/null 2>&1
}

debian_has_wasm() {
    [ -x /usr/bin/rustc ] && [ -x /usr/bin/cargo ] && [ -e /usr/bin/rust-lld ] &&
        [ -e /usr/lib/rustlib/src/rust/library/Cargo.lock ]
}

# Something that `counterfoil block build` can compile blocks with; it chooses in the same order.
ensure_wasm_target() {
    active_has_wasm && return
    if rustup_allowed; then
        say "adding $WASM_TARGET to the Rust toolchain"
        quietly "rustup target add" limited "$RUSTUP_SECONDS" rustup target add $WASM_TARGET || true
        active_has_wasm && return
    fi
    debian_has_wasm && return
    say "installing Debian's compiler for $WASM_TARGET"
    # shellcheck disable=SC2086
    apt_install $WASM_PACKAGES || true
    debian_has_wasm ||
        fail "blocks cannot be compiled here: run \`rustup target add $WASM_TARGET\`, or install $WASM_PACKAGES"
}

# Prints the directory of a server's programs that is new enough. The host looks in more places, and in these first.
postgres_bin() {
    for bin in $(echo "$PATH" | tr : ' ') "$(pg_config --bindir 2>/dev/null)" \
        $(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -t/ -k5,5nr) \
        /opt/homebrew/opt/postgresql*/bin /usr/local/opt/postgresql*/bin; do
        [ -x "$bin/initdb" ] && [ -x "$bin/postgres" ] || continue
        major=$("$bin/postgres" --version | sed -n 's/^postgres (PostgreSQL) \([0-9]*\).*/\1/p')
        [ "${major:-0}" -ge $POSTGRES_MIN ] && echo "$bin" && return
    done
    return 1
}

ensure_postgres() {
    postgres_bin >/dev/null && return
    say "installing Postgres"
    apt_install postgresql || true
    postgres_bin >/dev/null ||
        fail "there is no Postgres $POSTGRES_MIN or newer: install its server (apt-get install postgresql)"
}

# What counts instructions.
ensure_valgrind() {
    has valgrind && return
    say "installing Valgrind"
    apt_install valgrind libc6-dbg || true
    has valgrind || fail "there is no valgrind: install it (apt-get install valgrind)"
}

# ensure_deny TARGET_DIR: sets `deny` to a cargo-deny, built without optimisation where there is none. Fails where it
# cannot be had.
ensure_deny() {
    deny=$1/tools/bin/cargo-deny
    "$deny" --version 2>/dev/null | grep -qF " $DENY_VERSION" && return
    if has cargo-deny; then
        deny=cargo-deny
        return
    fi
    say "building cargo-deny $DENY_VERSION (minutes, once)"
    quietly "cargo install cargo-deny" limited "$DENY_SECONDS" \
        cargo install cargo-deny --version "$DENY_VERSION" --locked --debug \
        --root "$1/tools" --target-dir "$1/tools/build" || return 1
    rm -rf "$1/tools/build"
}

# What builds blocks in JavaScript, and in Python.
ensure_node() {
    has npm && return
    say "installing Node.js"
    apt_install nodejs npm || true
    has npm || fail "there is no npm: install Node.js (apt-get install nodejs npm)"
}

ensure_python() {
    python3 -c 'import ensurepip, venv' 2>/dev/null && return
    say "installing Python"
    apt_install python3 python3-venv || true
    python3 -c 'import ensurepip, venv' 2>/dev/null ||
        fail "there is no python3 with venv: install it (apt-get install python3 python3-venv)"
}

browser() {
    for name in chromium chromium-browser google-chrome google-chrome-stable; do
        command -v "$name" && return
    done
    return 1
}

ensure_browser() {
    if ! { browser >/dev/null && has chromedriver; }; then
        say "installing Chromium, for the tests of the pages"
        apt_install chromium chromium-driver || true
    fi
    browser >/dev/null || fail "there is no Chromium: install it (apt-get install chromium)"
    has chromedriver || fail "there is no chromedriver: install it (apt-get install chromium-driver)"
}

# start_test_cluster PROGRAM: a Postgres for this run, whose URL becomes COUNTERFOIL_TEST_DATABASE_URL. It ends with
# this script, however the script ends: it then reads the end of its standard input.
start_test_cluster() {
    trap stop_test_cluster EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    cluster_dir=$(mktemp -d)
    # As root, Postgres runs as another user, who must come in.
    chmod 755 "$cluster_dir"
    mkfifo "$cluster_dir/stdin"
    "$1" --volatile "$cluster_dir/postgres" <"$cluster_dir/stdin" >"$cluster_dir/url" 2>"$cluster_dir/said" &
    cluster_pid=$!
    exec 9>"$cluster_dir/stdin"
    until [ -s "$cluster_dir/url" ]; do
        kill -0 $cluster_pid 2>/dev/null || fail "$(cat "$cluster_dir/said")"
        sleep 0.1
    done
    COUNTERFOIL_TEST_DATABASE_URL=$(cat "$cluster_dir/url")
    export COUNTERFOIL_TEST_DATABASE_URL
}

stop_test_cluster() {
    [ -n "${cluster_pid:-}" ] || return 0
    exec 9>&-
    # A test's child that was left behind may hold the other end.
    kill $cluster_pid 2>/dev/null || true
    wait $cluster_pid 2>/dev/null || true
    rm -rf "$cluster_dir"
}

# unless_unchanged NAME PATH… -- COMMAND [ARG]…: not again while the files are what they were when it last succeeded.
unless_unchanged() {
    stamp=$(target_dir)/scripts/$1
    shift
    paths=
    while [ "$1" != -- ]; do
        paths="$paths $1"
        shift
    done
    shift
    # shellcheck disable=SC2086
    sum=$(find $paths -type f -exec cksum {} + | sort | cksum)
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$sum" ]; then
        return
    fi
    "$@" || return
    mkdir -p "$(dirname "$stamp")"
    echo "$sum" >"$stamp"
}
