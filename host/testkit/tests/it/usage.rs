//! How the programs are started, by their own words.

use std::process::Command;

#[test]
fn whoever_asks_how_a_program_is_started_is_told() {
    for (program, usage) in [
        (env!("CARGO_BIN_EXE_counterfoil-bombs"), "usage: scripts/bombs "),
        (env!("CARGO_BIN_EXE_counterfoil-fuzz"), "usage: scripts/fuzz "),
        (env!("CARGO_BIN_EXE_counterfoil-kill"), "usage: scripts/kill "),
        (env!("CARGO_BIN_EXE_counterfoil-provider"), "usage: counterfoil-provider "),
    ] {
        for (arguments, code) in
            [(&["--help"][..], 0), (&["-h"], 0), (&["--seconds", "1", "--help"], 0), (&["--lost"], 1)]
        {
            let mut command = Command::new(program);
            let output =
                command.args(arguments).env_clear().env("RUST_BACKTRACE", "1").output().expect("started");
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
            assert_eq!(output.status.code(), Some(code), "{program} {arguments:?}: {stdout}{stderr}");
            if code == 0 {
                assert!(stdout.starts_with(usage) && stderr.is_empty(), "{program}: {stdout}{stderr}");
            }
            assert!(
                !stderr.contains("stack backtrace") && stderr.lines().count() <= 1,
                "{program}: {stderr}"
            );
        }
    }
}
