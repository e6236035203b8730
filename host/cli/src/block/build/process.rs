//! Runs another program and hands over what it says, line by line, as it says it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// A line that a program wrote, without its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// On its standard output.
    Out(String),
    /// On its standard error.
    Err(String),
}

/// Runs a program to its end.
///
/// # Errors
///
/// It cannot be started, or is still running after `time_max`; then it is killed.
pub(super) fn run(
    command: &mut Command,
    time_max: Duration,
    mut each: impl FnMut(Line),
) -> anyhow::Result<ExitStatus> {
    let program = command.get_program().to_string_lossy().into_owned();
    let deadline = Instant::now() + time_max;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;

    let (sender, lines) = mpsc::channel();
    if let Some(out) = child.stdout.take() {
        forward(out, Line::Out, sender.clone());
    }
    if let Some(err) = child.stderr.take() {
        forward(err, Line::Err, sender);
    }
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => each(line),
            // Both streams are closed: it has ended, or has nothing more to say.
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                child.kill().with_context(|| format!("cannot stop {program}"))?;
                child.wait()?;
                bail!("{program} was not done after {time_max:?}");
            }
        }
    }
    child.wait().with_context(|| format!("cannot wait for {program}"))
}

fn forward(stream: impl Read + Send + 'static, line: fn(String) -> Line, lines: Sender<Line>) {
    thread::spawn(move || {
        let mut stream = BufReader::new(stream);
        let mut bytes = Vec::new();
        // A stream that breaks has ended; the exit status says how the program fared.
        while matches!(stream.read_until(b'\n', &mut bytes), Ok(count) if count > 0) {
            let text = String::from_utf8_lossy(&bytes);
            if lines.send(line(text.trim_end_matches(['\r', '\n']).to_owned())).is_err() {
                return;
            }
            bytes.clear();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_a_program_says_is_handed_over() -> anyhow::Result<()> {
        let mut lines = Vec::new();
        let mut said = shell("echo one; echo; printf 'no end'; exit 3");
        let status = run(&mut said, Duration::from_mins(1), |line| lines.push(line))?;
        assert_eq!(status.code(), Some(3));
        assert_eq!(lines, ["one", "", "no end"].map(|line| Line::Out(line.into())));

        lines.clear();
        run(&mut shell("echo odd >&2"), Duration::from_mins(1), |line| lines.push(line))?;
        assert_eq!(lines, [Line::Err("odd".into())]);
        Ok(())
    }

    #[test]
    fn a_program_that_takes_too_long_is_killed() {
        let begun = Instant::now();
        let error = run(&mut shell("exec sleep 60"), Duration::from_millis(50), |_| ())
            .expect_err("it sleeps for longer");
        assert_eq!(error.to_string(), "/bin/sh was not done after 50ms");
        assert!(begun.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = run(&mut Command::new("/nowhere/rustup"), Duration::from_secs(1), |_| ())
            .expect_err("there is none");
        assert_eq!(error.to_string(), "cannot start /nowhere/rustup");
    }
}
