//! The compiler's child: what it is given, what it may use, how it may end, and that nothing of it stays.

use std::fmt::Write as _;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use counterfoil_domain::code::Code;
use counterfoil_domain::id::Digest;
use counterfoil_domain::ports::{ComponentInspector, StepRunner, Unprepared};
use counterfoil_sandbox::{Budget, Program, Sandbox, SandboxConfig};
use counterfoil_testkit::guest::Guest;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::port::Script;
use crate::processes::{Process, children, ended, grouped, until};
use crate::{House, config, job, output};

/// A thousand times what an ordinary block needs on a machine that does much else.
const PATIENCE: Duration = Duration::from_mins(2);

/// Small, and costly in CPU: some pass of the compiler goes over all loops for each.
fn loops(count: usize) -> Guest {
    Guest::echo().with(&format!("(func {})", "(loop)".repeat(count)))
}

/// Small, and costly in memory where it is optimised: every sum can be had in as many ways as there are sums before it.
fn sums(count: usize) -> Guest {
    let mut sums = String::new();
    for number in 0..count {
        write!(sums, "(i32.add (i32.const {}))", 100_003 + number * 7).expect("a text");
    }
    Guest::echo().with(&format!("(func (param i32) (result i32) (local.get 0) {sums})"))
}

fn house(budget: Budget) -> House {
    with(SandboxConfig { compile_budget: budget, ..config(Path::new("")) })
}

fn with(config: SandboxConfig) -> House {
    let cache = tempfile::tempdir().expect("a directory");
    let config = SandboxConfig { cache_dir: cache.path().into(), ..config };
    House { sandbox: Sandbox::new(config, Script::unused()).expect("a sandbox"), cache }
}

/// Names in the directory of artifacts, its key aside.
fn files(house: &House) -> Vec<PathBuf> {
    let entries = fs::read_dir(house.cache.path()).expect("listed");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths.filter(|path| !path.ends_with("key")).collect()
}

#[tokio::test]
async fn the_same_component_gives_the_same_code_wherever_it_is_compiled() {
    let guest = Guest::echo();
    let mut made = Vec::new();
    for _ in 0..2 {
        let house = house(Budget::DEFAULT);
        house.prepared(&guest).await;
        let [file] = files(&house).try_into().expect("one artifact");
        // Behind the mark, for which each directory has its own key.
        made.push(fs::read(file).expect("read").split_off(32));
    }
    assert!(made[0] == made[1] && made[0].len() > 1_000);
}

#[tokio::test]
async fn what_takes_more_than_it_may_is_refused_and_nothing_of_it_stays() {
    let small = Budget { cpu_s: 1, ..Budget::DEFAULT };
    for (name, guest, budget, reason) in [
        ("CPU", loops(20_000), small, "used up 1 s of CPU"),
        ("memory", sums(20_000), Budget { memory_bytes: 32 << 20, ..small }, "broke off"),
        (
            "time",
            loops(20_000),
            Budget { wall: Duration::from_millis(300), ..Budget::DEFAULT },
            "longer than 0.3 s",
        ),
    ] {
        let house = house(budget);
        let bytes = guest.build();
        let started = Instant::now();
        let refused = house.sandbox.inspect(bytes.clone()).await.expect_err(name);
        assert_eq!(refused.code, Code::CompileBudgetExceeded, "{name}: {refused}");
        assert!(refused.message.contains(reason), "{name}: {refused}");
        assert!(refused.message.contains("without optimisation too"), "{name}: {refused}");
        assert!(started.elapsed() < Duration::from_secs(20), "{name}: {:?}", started.elapsed());
        // Elsewhere it was accepted: there, the machine was quicker, and the block is as good as it was.
        let prepared = house.sandbox.prepare(Digest::of(&bytes), bytes).await;
        assert!(matches!(prepared, Err(Unprepared::Unavailable { .. })), "{name}: {prepared:?}");
        assert_eq!((children(), files(&house)), (vec![], vec![]), "{name}");
        // The house stands.
        house.prepared(&Guest::echo()).await;
    }
}

#[tokio::test]
async fn what_is_too_costly_with_optimisation_is_compiled_without_and_runs() {
    let guest = sums(20_000);
    let house = house(Budget { memory_bytes: 160 << 20, ..Budget::DEFAULT });
    let inspection = house.sandbox.inspect(guest.build()).await.expect("accepted");
    assert_eq!(house.sandbox.run(job(inspection.digest)).await.end, output("{}"));
}

#[tokio::test]
async fn a_child_that_is_ended_from_outside_gives_a_refusal() {
    for signal in [Signal::SIGKILL, Signal::SIGSEGV, Signal::SIGABRT, Signal::SIGTERM] {
        let house = house(Budget::DEFAULT);
        let inspecting = house.sandbox.inspect(loops(20_000).build());
        let ending = async {
            for _attempt in 0..2 {
                let child = until(PATIENCE, || children().into_iter().next()).await;
                kill(Pid::from_raw(child.id), signal).expect("it is ours");
                until(PATIENCE, || ended(child.id).then_some(())).await;
            }
        };
        let (refused, ()) = tokio::join!(inspecting, ending);
        let refused = refused.expect_err("nothing was made");
        assert_eq!(refused.code, Code::CompileBudgetExceeded, "{signal}: {refused}");
        assert_eq!((children(), files(&house)), (vec![], vec![]), "{signal}");
    }
}

#[tokio::test]
async fn one_that_takes_long_does_not_keep_another_waiting() {
    let house = house(Budget::DEFAULT);
    let mut long = Box::pin(house.sandbox.inspect(loops(20_000).build()));
    tokio::select! {
        biased;
        inspection = &mut long => panic!("{inspection:?} came first"),
        inspection = house.sandbox.inspect(Guest::echo().build()) => assert!(inspection.is_ok(), "{inspection:?}"),
    }
    // Nor does it run on once nobody waits for it.
    let child = until(PATIENCE, || children().into_iter().next()).await;
    drop(long);
    until(PATIENCE, || ended(child.id).then_some(())).await;
    assert_eq!((children().len(), files(&house).len()), (0, 1));
}

#[tokio::test]
async fn no_more_than_two_are_compiled_at_once() {
    let house = Arc::new(house(Budget { wall: Duration::from_millis(500), ..Budget::DEFAULT }));
    let inspecting = (0..4).map(|number| {
        let house = Arc::clone(&house);
        tokio::spawn(async move { house.sandbox.inspect(loops(20_000 + number).build()).await })
    });
    let inspecting: Vec<_> = inspecting.collect();
    let mut most = 0;
    until(PATIENCE, || {
        most = most.max(children().len());
        inspecting.iter().all(tokio::task::JoinHandle::is_finished).then_some(())
    })
    .await;
    assert_eq!(most, 2);
}

#[tokio::test]
async fn a_child_has_two_pipes_and_nothing_else() {
    // A descriptor that every child inherits, as a supervisor may have handed one to the host.
    let inherited = fs::File::open("/").expect("opened");
    nix::fcntl::fcntl(&inherited, nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty())).expect("set");
    assert!(inherited.as_raw_fd() > 2);
    let house = house(Budget::DEFAULT);
    let mut inspecting = std::pin::pin!(house.sandbox.inspect(loops(20_000).build()));
    let is_confined = |child: &Process| child.status().contains("\nSeccomp:\t2\n");
    let confined = async {
        // Looked at once more: what was read before may be from before it confined itself.
        let again = || children().into_iter().find(is_confined);
        until(PATIENCE, || children().iter().any(is_confined).then(again).flatten()).await
    };
    let child = tokio::select! {
        inspection = &mut inspecting => panic!("{inspection:?} came first"),
        child = confined => child,
    };
    assert_eq!(child.read("environ"), "");
    let open = fs::read_dir(format!("/proc/{}/fd", child.id)).expect("listed");
    let open = open.map(|entry| fs::read_link(entry.expect("an entry").path()).expect("a link"));
    let open: Vec<String> = open.map(|path| path.to_string_lossy().into_owned()).collect();
    assert!(open.len() == 3 && open.iter().all(|path| path.starts_with("pipe:")), "{open:?}");
    assert_eq!(child.group, child.id, "a group of its own");
    assert_eq!(child.niceness, 10);
    assert_eq!(child.threads, 1);
    let limits = child.read("limits");
    for (limit, soft, hard) in [
        ("Max cpu time", "20", "21"),
        ("Max file size", "0", "0"),
        ("Max core file size", "0", "0"),
        ("Max open files", "16", "16"),
        ("Max address space", "2147483648", "2147483648"),
    ] {
        let line = limits.lines().find(|line| line.starts_with(limit)).expect(limit);
        let values: Vec<&str> = line[limit.len()..].split_whitespace().take(2).collect();
        assert_eq!(values, [soft, hard], "{limit}");
    }
    assert!(child.status().contains("\nNoNewPrivs:\t1\n"));
}

#[tokio::test]
async fn a_child_ends_with_its_parent_and_does_not_begin_without() {
    let compiler = env!("CARGO_BIN_EXE_counterfoil-child");
    // The shell is the parent; the component never comes.
    let script = r#"exec 3<&0; "$0" __compile $$ 20 2000000000 optimised <&3 & echo $!; wait"#;
    let mut shell = Command::new("sh")
        .args(["-c", script, compiler])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a shell");
    // Kept open: a child that outlives its parent waits for more.
    let stdin = shell.stdin.take().expect("piped");
    let mut said = std::io::BufReader::new(shell.stdout.take().expect("piped"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).expect("read");
    let child: i32 = line.trim().parse().expect("a number");
    until(PATIENCE, || Process::find(child)?.status().contains("\nSeccomp:\t2\n").then_some(())).await;
    shell.kill().expect("ours");
    shell.wait().expect("ended");
    // Whoever inherits it collects it in its own time.
    let gone = || Process::find(child).is_none_or(|child| child.is_zombie).then_some(());
    until(Duration::from_secs(20), gone).await;
    drop(stdin);

    let orphan = Command::new(compiler)
        .args(["__compile", "1", "20", "2000000000", "optimised"])
        .stdin(Stdio::null())
        .output()
        .expect("started");
    assert_eq!(orphan.status.code(), Some(4), "{orphan:?}");
    assert_eq!(String::from_utf8_lossy(&orphan.stderr), "the host that started this is gone\n");
}

/// A program that is not what it should be.
fn impostor(script: &str) -> (Program, TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("compiler");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("set");
    (Program { path }, dir)
}

#[tokio::test]
async fn a_program_that_is_no_compiler_is_never_believed_and_never_waited_for() {
    let wall = Duration::from_millis(500);
    for (script, code, reason) in [
        ("exec true", Code::Unavailable, "another version"),
        ("exec cat", Code::Unavailable, "another version"),
        ("exit 1", Code::Unavailable, "exit status: 1"),
        ("echo no room >&2; exit 4", Code::Unavailable, "no room"),
        ("printf '\\033[2J'; exit 3", Code::ComponentInvalid, "not valid: \\u{1b}[2J"),
        ("exec yes", Code::CompileBudgetExceeded, "more than 268435456 bytes"),
        ("exec >&- 2>&- <&-; sleep 1000", Code::CompileBudgetExceeded, "longer than 0.5 s"),
        ("sleep 1000 & wait", Code::CompileBudgetExceeded, "longer than 0.5 s"),
    ] {
        let (compiler, _dir) = impostor(script);
        let wall = if script == "exec yes" { PATIENCE } else { wall };
        let compile_budget = Budget { wall, ..Budget::DEFAULT };
        let house = with(SandboxConfig { program: compiler, compile_budget, ..config(Path::new("")) });
        let mut inspecting = std::pin::pin!(house.sandbox.inspect(Guest::echo().build()));
        let mut groups = Vec::new();
        let refused = loop {
            tokio::select! {
                inspection = &mut inspecting => break inspection.expect_err(script),
                () = tokio::time::sleep(Duration::from_millis(5)) => {
                    groups.extend(children().into_iter().map(|child| child.id));
                }
            }
        };
        assert_eq!(refused.code, code, "{script}: {refused}");
        assert!(refused.message.contains(reason), "{script}: {refused}");
        assert_eq!((children(), files(&house)), (vec![], vec![]), "{script}");
        // What a child has started ends with it; its own parent has to collect it.
        until(PATIENCE, || groups.iter().all(|group| grouped(*group).is_empty()).then_some(())).await;
    }
    let compiler = Program { path: "/nowhere/counterfoil".into() };
    let house = with(SandboxConfig { program: compiler, ..config(Path::new("")) });
    let refused = house.sandbox.inspect(Guest::echo().build()).await.expect_err("no program");
    assert_eq!(refused.code, Code::Unavailable);
    assert!(refused.message.contains("cannot start /nowhere/counterfoil"), "{refused}");
}
