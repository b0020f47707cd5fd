//! Starts one program of a job. Called only in a shim, which has a single thread.
//!
//! The child shares the shim's memory until it executes the program (as with `vfork`), so starting
//! costs no copy of page tables. The shim is halted meanwhile, so the child may use what it finds,
//! and must change nothing that the shim relies on.

use std::cell::UnsafeCell;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use crate::cgroup::Made;
use crate::plan::{Identity, Workdir};

/// The child runs on its own stack, because the shim's must stay as it is. One is enough: a child
/// is off it before the next begins.
const STACK: usize = 128 << 10;

#[repr(align(16))]
struct Stack(UnsafeCell<[u8; STACK]>);
// SAFETY: a shim has one thread, and only its halted moments use the stack.
unsafe impl Sync for Stack {}
static CHILD_STACK: Stack = Stack(UnsafeCell::new([0; STACK]));

/// Signals that the zygote ignores and a program must not inherit as ignored.
const RESET: [libc::c_int; 5] =
    [libc::SIGPIPE, libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

#[derive(Debug, thiserror::Error)]
#[error("an argument or a variable contains a zero byte")]
pub struct ZeroByte;

/// A program with all that `execve` wants, laid out before the fork.
pub struct Program {
    name: String,
    /// Where it may be, in the order of the job's `PATH`.
    paths: Vec<CString>,
    argv: Vec<CString>,
    env: Vec<CString>,
}

impl Program {
    pub fn new(argv: &[String], env: impl Iterator<Item = String>) -> Result<Program, ZeroByte> {
        let c = |s: &str| CString::new(s).map_err(|_| ZeroByte);
        let env = env.map(|s| c(&s)).collect::<Result<Vec<_>, _>>()?;
        let name = argv.first().cloned().unwrap_or_default();
        let paths = if name.contains('/') {
            vec![c(&name)?]
        } else {
            let path = env.iter().find_map(|e| e.to_bytes().strip_prefix(b"PATH="));
            let path = String::from_utf8_lossy(path.unwrap_or_default()).into_owned();
            let at = |dir: &str| c(&format!("{}/{name}", if dir.is_empty() { "." } else { dir }));
            path.split(':').map(at).collect::<Result<_, _>>()?
        };
        let argv = argv.iter().map(|s| c(s)).collect::<Result<_, _>>()?;
        Ok(Program { name, paths, argv, env })
    }
}

/// Where and as whom a program runs.
pub struct Setting<'a> {
    pub workdir: &'a Workdir,
    pub identity: Option<&'a Identity>,
    /// Set-uid programs work.
    pub new_privileges: bool,
    pub cgroup: Option<&'a Made>,
    /// The mount namespace of the part, if it has one.
    pub namespace: Option<BorrowedFd<'a>>,
}

/// The three standard streams.
pub struct Stdio<'a> {
    pub stdin: BorrowedFd<'a>,
    pub stdout: BorrowedFd<'a>,
    pub stderr: BorrowedFd<'a>,
}

struct Child<'a> {
    program: &'a Program,
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    setting: &'a Setting<'a>,
    stdio: [RawFd; 3],
    shim: libc::pid_t,
}

/// Starts the program as the leader of a process group of its own and returns its pid. A program
/// that can't be executed says why on its standard error and ends with 126 or 127, as in a shell.
pub fn spawn(program: &Program, setting: &Setting<'_>, stdio: &Stdio<'_>) -> io::Result<i32> {
    let pointers = |list: &[CString]| {
        list.iter().map(|s| s.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>()
    };
    let child = Child {
        program,
        argv: pointers(&program.argv),
        env: pointers(&program.env),
        setting,
        stdio: [stdio.stdin, stdio.stdout, stdio.stderr].map(|fd| fd.as_fd().as_raw_fd()),
        // SAFETY: getpid has no preconditions.
        shim: unsafe { libc::getpid() },
    };
    match setting.cgroup {
        Some(cgroup) => fork_into_cgroup(&child, cgroup.dir.as_fd()),
        None => fork_sharing_memory(&child),
    }
}

fn fork_sharing_memory(child: &Child<'_>) -> io::Result<i32> {
    extern "C" fn entry(child: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the shim passes its `Child` and is halted while this runs.
        run(unsafe { &*child.cast::<Child<'_>>() })
    }
    // SAFETY: the end of the array; stacks grow down.
    let top = unsafe { CHILD_STACK.0.get().cast::<u8>().add(STACK) };
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack and `child` outlive the call, which returns only when the child has
    // executed its program or is gone (CLONE_VFORK).
    let pid = unsafe {
        libc::clone(entry, top.cast(), flags, std::ptr::from_ref(child).cast_mut().cast())
    };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid) }
}

/// Whether a process can be born inside this cgroup, and join these. The child does nothing else
/// and allocates nothing, so this may be called beside other threads.
pub fn probe(cgroup: BorrowedFd<'_>, join: &[CString]) -> io::Result<()> {
    let pid = match clone_into(cgroup)? {
        0 => {
            let joined = join.iter().try_for_each(|file| enter_group(file));
            let code = joined.err().and_then(|e| e.raw_os_error()).unwrap_or(0);
            // SAFETY: the child leaves at once.
            unsafe { libc::_exit(code) }
        }
        pid => pid,
    };
    loop {
        let mut status = 0;
        // SAFETY: `status` is a valid place.
        if unsafe { libc::waitpid(pid, &mut status, 0) } >= 0 {
            return match libc::WEXITSTATUS(status) {
                0 => Ok(()),
                error => Err(io::Error::from_raw_os_error(error)),
            };
        }
        match io::Error::last_os_error() {
            e if e.kind() == io::ErrorKind::Interrupted => {}
            e => return Err(e),
        }
    }
}

/// Moves this process into the group whose list of processes this is.
fn enter_group(procs: &CStr) -> io::Result<()> {
    // SAFETY: a valid C string; the descriptor is ours and closed again.
    unsafe {
        let fd = libc::open(procs.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let written = libc::write(fd, c"0".as_ptr().cast(), 1);
        let error = io::Error::last_os_error();
        libc::close(fd);
        if written < 0 { Err(error) } else { Ok(()) }
    }
}

/// Born inside the cgroup: moving a process later is slow, and it could fork before.
fn fork_into_cgroup(child: &Child<'_>, cgroup: BorrowedFd<'_>) -> io::Result<i32> {
    match clone_into(cgroup)? {
        0 => {
            let code = run(child);
            // SAFETY: leaves without running the shim's exit handlers.
            unsafe { libc::_exit(code) }
        }
        pid => Ok(pid),
    }
}

/// 0 in the child.
fn clone_into(cgroup: BorrowedFd<'_>) -> io::Result<i32> {
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    // SAFETY: all fields are plain numbers, and zero means "not used".
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = CLONE_INTO_CGROUP | libc::CLONE_VFORK as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    args.cgroup = cgroup.as_raw_fd() as u64;
    // SAFETY: without CLONE_VM this is a fork. A shim has one thread, so its child may go on; that
    // of a probe only leaves.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &args, std::mem::size_of_val(&args)) };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid as i32) }
}

/// Runs in the child. Returns only if the program could not be executed, with the code to exit
/// with.
fn run(child: &Child<'_>) -> libc::c_int {
    match become_job(child) {
        Ok(()) => execute(child),
        Err((what, error)) => complain(&format!("{what}: {error}"), 126),
    }
}

fn complain(why: &str, code: libc::c_int) -> libc::c_int {
    let text = format!("tutti: {why}\n");
    // SAFETY: the buffer is valid; if standard error is gone there is nobody left to tell.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    code
}

fn become_job(child: &Child<'_>) -> Result<(), (String, io::Error)> {
    for procs in child.setting.cgroup.iter().flat_map(|made| &made.join) {
        enter_group(procs).map_err(|e| (format!("can't enter {}", procs.to_string_lossy()), e))?;
    }
    let check = |what: &str, result: libc::c_int| match result {
        0.. => Ok(()),
        _ => Err((what.to_owned(), io::Error::last_os_error())),
    };
    // SAFETY: plain system calls with valid arguments, in a process that will execute a program
    // or leave.
    unsafe {
        for (fd, target) in child.stdio.into_iter().zip(0..) {
            check("can't set up the standard streams", libc::dup2(fd, target))?;
        }
        // Everything is close-on-exec already; this is for descriptors that somebody else's
        // library opened. Older kernels do not have it.
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, 1 << 2);
        if let Some(namespace) = child.setting.namespace {
            let entered = libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNS);
            check("can't enter the part's namespace", entered)?;
        }
        check("can't make a process group", libc::setpgid(0, 0))?;
        libc::umask(0o022);
        if let Some(identity) = child.setting.identity {
            switch_to(identity).map_err(|e| (format!("can't become user {}", identity.uid), e))?;
        }
        // After the switch: changing the user clears both.
        if !child.setting.new_privileges {
            let forbidden = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            check("can't forbid new privileges", forbidden)?;
        }
        check("can't be tied to the shim", libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
        if libc::getppid() != child.shim {
            libc::_exit(126);
        }
        for signal in RESET {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        check(
            "can't unblock signals",
            libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut()),
        )?;
    }
    enter(child.setting.workdir)
}

/// Raw system calls: the C library's would tell other threads, and there are none.
unsafe fn switch_to(identity: &Identity) -> io::Result<()> {
    let check = |result: libc::c_long| match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    let (uid, gid) = (identity.uid, identity.gid);
    // SAFETY: the group list is valid for its length.
    unsafe {
        check(libc::syscall(libc::SYS_setgroups, identity.groups.len(), identity.groups.as_ptr()))?;
        check(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        check(libc::syscall(libc::SYS_setresuid, uid, uid, uid))
    }
}

fn enter(workdir: &Workdir) -> Result<(), (String, io::Error)> {
    // SAFETY: a valid C string.
    let chdir = |dir: &CStr| match unsafe { libc::chdir(dir.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    let (dir, asked) = match workdir {
        Workdir::Asked(dir) => (dir, true),
        Workdir::Home(dir) => (dir, false),
    };
    let entered = CString::new(dir.as_str()).map_err(io::Error::from).and_then(|d| chdir(&d));
    match entered {
        Err(_) if !asked => chdir(c"/").map_err(|e| ("can't enter /".to_owned(), e)),
        Err(e) => Err((format!("can't enter the working directory '{dir}'"), e)),
        Ok(()) => Ok(()),
    }
}

/// Tries every place in turn, as `execvp` does.
fn execute(child: &Child<'_>) -> libc::c_int {
    let mut worst = libc::ENOENT;
    for path in &child.program.paths {
        // SAFETY: both arrays end in a null pointer and hold valid C strings.
        unsafe { libc::execve(path.as_ptr(), child.argv.as_ptr(), child.env.as_ptr()) };
        match io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOENT) {
            libc::ENOENT | libc::ENOTDIR => {}
            // A directory of the path that this user may not enter: shells pass over it too.
            // SAFETY: a valid C string.
            libc::EACCES if unsafe { libc::access(path.as_ptr(), libc::F_OK) } != 0 => {}
            libc::ENOEXEC => worst = execute_with_shell(child, path),
            error => worst = error,
        }
    }
    let error = io::Error::from_raw_os_error(worst);
    let code = if worst == libc::ENOENT { 127 } else { 126 };
    complain(&format!("can't run '{}': {error}", child.program.name), code)
}

/// A script without `#!`.
fn execute_with_shell(child: &Child<'_>, path: &CStr) -> i32 {
    let mut argv = vec![c"/bin/sh".as_ptr(), path.as_ptr()];
    argv.extend_from_slice(&child.argv[1..]);
    // SAFETY: as in `execute`; the tail of `argv` brings the null pointer.
    unsafe { libc::execve(c"/bin/sh".as_ptr(), argv.as_ptr(), child.env.as_ptr()) };
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOEXEC)
}
