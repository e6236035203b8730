//! What the program says to somebody who has no host yet, or names one that is not there.

use anyhow::Context as _;

use crate::program::{Said, counterfoil, run};

#[test]
fn what_cannot_be_done_says_why_and_what_to_type_next() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    // A port that nobody listens on, since it is only just free.
    let free = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let url = format!("http://{free}");
    let cases: &[(&[&str], &str)] = &[
        (
            &["run", "list"],
            "error: there is no key for http://127.0.0.1:8420/\n  give one with --key or COUNTERFOIL_KEY\nnext: counterfoil dev    (in another terminal; it makes a key that the other commands find)\n--- exit 2",
        ),
        (
            &["run", "list", "--key", "k", "--url", &url],
            "error: no host answers at URL/\n  ADDRESS cannot be reached: Connection refused (os error 111)\nnext: counterfoil dev    (or name another host with --url or COUNTERFOIL_URL)\n--- exit 1",
        ),
        (
            &["run", "list", "--key", "k", "--url", "ftp://a"],
            "error: ftp://a/ cannot be the API's address\n  it begins with http:// or https://\n--- exit 2",
        ),
        (
            &["run", "start", "a", "--input", "{", "--key", "k"],
            "error: the argument is not JSON: EOF while parsing an object at line 1 column 1\n  {\n--- exit 2",
        ),
        (
            &["effect", "resolve", "eff_1", "--outcome", "verified", "--evidence", "seen", "--key", "k"],
            "error: `verified` needs the answer that the block will be handed\n  give what the receiver answered, or would have: --status 200 --body JSON\nnext: counterfoil effect show eff_1\n--- exit 2",
        ),
        (
            &["block", "push", "nowhere.wasm"],
            "error: cannot read nowhere.wasm: No such file or directory (os error 2)\n--- exit 1",
        ),
        (
            &["block", "inspect", "nowhere.wasm", "--url", "http://127.0.0.1:9"],
            "error: cannot read nowhere.wasm: No such file or directory (os error 2)\n--- exit 1",
        ),
        (
            &["workflow", "push", "nowhere.yaml"],
            "error: cannot read nowhere.yaml: No such file or directory (os error 2)\n--- exit 1",
        ),
        (
            &["block", "new", "My_Block"],
            "error: \"My_Block\" names no block: a letter comes first, then `a` to `z`, `0` to `9` and `-`, 64 at most\n--- exit 2",
        ),
        (
            &["workflow", "check", "nowhere.yaml"],
            "error: cannot read nowhere.yaml: No such file or directory (os error 2)\n--- exit 1",
        ),
    ];
    for (args, expected) in cases {
        let said = run(counterfoil(home.path()).args(*args));
        let text = said.text(home.path()).replace(&url, "URL").replace(&free.to_string(), "ADDRESS");
        assert_eq!(text, format!("--- stderr\n{expected}"), "{args:?}");
    }
    Ok(())
}

/// What a script has cleared is not set, and what is set is no part of what every command needs.
#[test]
fn the_environment_stands_in_for_what_the_command_line_leaves_out() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    let variables = ["COUNTERFOIL_URL", "COUNTERFOIL_KEY", "COUNTERFOIL_CONFIG"];
    let empty = run(counterfoil(home.path()).args(["run", "list"]).envs(variables.map(|name| (name, ""))));
    assert_eq!(empty, run(counterfoil(home.path()).args(["run", "list"])));
    let said = |args: &[&str], url: &str| {
        let said =
            run(counterfoil(home.path()).args(args).env("COUNTERFOIL_URL", url).env("COUNTERFOIL_KEY", "k"));
        said.text(home.path())
    };
    let told = said(&["run", "list"], "ftp://a");
    assert!(told.contains("ftp://a/ cannot be the API's address"), "{told}");
    insta::assert_snapshot!(said(&["run", "list"], "nowhere"), @r#"
    --- stderr
    error: COUNTERFOIL_URL = "nowhere" is no URL: relative URL without a base
    --- exit 2
    "#);
    let usage = said(&["run", "show"], "http://127.0.0.1:9");
    assert!(usage.contains("\nUsage: counterfoil run show <ID>\n"), "{usage}");
    Ok(())
}

#[test]
fn where_there_is_no_database_the_commands_that_open_it_say_so_and_make_none() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    for args in [
        &["tenant", "list"][..],
        &["tenant", "limits", "acme"],
        &["tenant", "share", "acme", "--weight", "2"],
        &["tenant", "retention", "acme"],
        &["tenant", "create", "acme"],
        &["tenant", "key", "acme"],
        &["secret", "rotate"],
    ] {
        let said = run(counterfoil(home.path()).args(args).env("COUNTERFOIL__PEPPER", "0".repeat(64)));
        assert_eq!(
            said.text(home.path()),
            "--- stderr\nerror: there is no database yet: none in HOME/.local/share/counterfoil\n  and none is configured (DATABASE_URL or COUNTERFOIL__DATABASE__URL)\nnext: counterfoil migrate    (or `counterfoil dev`, which does that too)\n--- exit 1",
            "{args:?}"
        );
    }
    assert_eq!(std::fs::read_dir(home.path())?.count(), 0, "and leave nothing behind");
    Ok(())
}

#[test]
fn a_wrong_command_line_is_usage() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    for args in [
        &["run", "start"][..],
        &["run", "start", "a", "--timeout", "1s"],
        &["run", "watch", "run_1", "--timeout", "soon"],
        &["effect", "resolve", "eff_1", "--outcome", "lost", "--evidence", "seen"],
        &["workflow", "activate", "a", "--version", "v0"],
        &["workflow", "diff", "a", "first"],
        &["nothing"],
        &[],
        &["-o", "xml", "run", "list"],
    ] {
        let Said { code, stdout, stderr } = run(counterfoil(home.path()).args(args));
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{args:?}");
        assert!(stderr.contains("--help"), "{args:?}: {stderr}");
    }
    Ok(())
}

#[test]
fn what_needs_no_host_prints_its_data_and_nothing_else() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    let schema = run(counterfoil(home.path()).args(["schema", "workflow"]));
    assert_eq!((schema.code, schema.stderr.as_str()), (Some(0), ""));
    assert_eq!(schema.json()["title"], "Workflow");
    for (shell, beginning) in
        [("bash", "_counterfoil() {"), ("zsh", "#compdef counterfoil"), ("fish", "# Print")]
    {
        let Said { code, stdout, stderr } = run(counterfoil(home.path()).args(["completion", shell]));
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{shell}");
        assert!(stdout.starts_with(beginning), "{shell}: {stdout}");
    }
    for args in [&["--version"][..], &["--help"], &["effect", "resolve", "--help"]] {
        let Said { code, stdout, stderr } = run(counterfoil(home.path()).args(args));
        assert_eq!((code, stderr.as_str()), (Some(0), ""), "{args:?}");
        assert!(stdout.to_lowercase().contains("counterfoil"), "{args:?}: {stdout}");
    }
    assert_eq!(std::fs::read_dir(home.path())?.count(), 0, "and leaves nothing behind");
    Ok(())
}

#[test]
fn help_and_the_guide_say_the_same_of_exit_codes() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    let guide = include_str!("../../../../docs/application-developer.md");
    let help = run(counterfoil(home.path()).arg("--help")).stdout;
    let (_, codes) = help.split_once("Exit codes:\n").context("they are told")?;
    let codes: Vec<&str> = codes.lines().map(str::trim).collect();
    assert_eq!(codes.len(), 7, "{codes:?}");
    for code in codes {
        let (code, meaning) = code.split_once("  ").context("a code and its meaning")?;
        assert!(guide.contains(&format!("\n| {code} | {meaning} |\n")), "{code}: {meaning}");
    }
    Ok(())
}

#[test]
fn a_reader_that_has_read_enough_is_no_error() -> anyhow::Result<()> {
    let home = tempfile::tempdir()?;
    let mut child = counterfoil(home.path())
        .args(["schema", "workflow"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()?;
    drop(child.stdout.take().context("a pipe")?);
    let output = child.wait_with_output()?;
    assert_eq!((output.status.code(), String::from_utf8(output.stderr)?), (Some(0), String::new()));
    Ok(())
}
