"""Python starts with this when it is on PYTHONPATH: modules of grpo_tui see another system, `OTHER_SYSTEM`.

`windows`: they import an `os` whose name is "nt". It lacks the functions that Windows lacks, cannot open folders, and
refuses to replace, rename or delete a file that a process has open. Modules that Windows lacks cannot be imported.
`macos`: `/proc`, `/dev/nvidiactl` and Linux's own functions are missing, and torch reports a GPU of Apple silicon.
Libraries see the real system.
"""

from __future__ import annotations

import builtins
import io
import os
import signal
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path

MODULES = {"fcntl", "termios", "tty", "pty", "pwd", "grp", "resource", "syslog", "posix", "readline", "curses"}
FUNCTIONS = """
    fork forkpty killpg getpgid getpgrp setpgid setsid getsid getuid geteuid getgid getegid getgroups setuid
    nice getloadavg uname statvfs fstatvfs chown fchown lchown chroot mkfifo mknod openpty ttyname ctermid pread pwrite
    preadv pwritev readv writev sendfile posix_spawn posix_fadvise posix_fallocate sched_getaffinity sched_setaffinity
    sched_yield register_at_fork sync fdatasync wait wait3 wait4 WNOHANG fchmod lockf memfd_create pipe2 getrandom
    O_CLOEXEC O_NONBLOCK O_NOFOLLOW O_DIRECTORY O_SYNC O_DSYNC"""
SIGNALS = """
    SIGKILL SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGALRM SIGCHLD SIGCONT SIGSTOP SIGTSTP SIGWINCH SIGPIPE setitimer pause"""
LINUX_ALONE = """
    sched_getaffinity sched_setaffinity posix_fadvise posix_fallocate fdatasync memfd_create pipe2 getrandom eventfd
    splice copy_file_range getresuid setresuid O_DIRECT O_TMPFILE O_PATH"""
ABSENT_ON_MACOS = ("/proc", "/sys", "/dev/nvidiactl")
WINDOWS = os.environ["OTHER_SYSTEM"] == "windows"


def _without(module: types.ModuleType, names: Sequence[str], **other: object) -> types.ModuleType:
    twin = types.ModuleType(module.__name__)
    twin.__dict__.update({k: v for k, v in vars(module).items() if k not in names} | other)
    return twin


def _open(path, flags, mode=0o777, **options):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    return os.open(path, flags, mode, **options)


def _target(link):
    try:
        return os.readlink(link)
    except OSError:  # another user's, or ended
        return None


def _opened_below(path) -> Iterator[Path]:
    real = os.path.realpath(path)
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        found = _target(link)
        if found is not None and (found == real or found.startswith(real + os.sep)):
            yield link


def _from_grpo_tui() -> bool:
    frame = sys._getframe(2)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(("pathlib", "shutil")):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).startswith("grpo_tui")


def _refusing(function):
    def changed(*paths, **options):
        if _from_grpo_tui() and "dir_fd" not in options:
            for path in paths:
                if os.path.lexists(path) and not os.path.islink(path) and (link := next(_opened_below(path), None)):
                    raise PermissionError(13, f"{link} has it open", str(path))
        return function(*paths, **options)

    return changed


def _absent_on_macos(function):
    def changed(path, *arguments, **options):
        asked = str(path) if isinstance(path, (str, os.PathLike)) else ""
        if asked.startswith(ABSENT_ON_MACOS) and _from_grpo_tui():
            raise FileNotFoundError(2, "No such file or directory", asked)
        return function(path, *arguments, **options)

    return changed


if WINDOWS:
    import shutil

    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    for name in ("replace", "rename", "unlink", "remove", "rmdir"):
        setattr(os, name, _refusing(getattr(os, name)))
    blocked = MODULES
    twins = {
        "os": _without(os, FUNCTIONS.split(), name="nt", open=_open),
        "signal": _without(signal, SIGNALS.split()),
    }
else:
    import platform

    os.stat = _absent_on_macos(os.stat)
    io.open = builtins.open = _absent_on_macos(io.open)
    blocked = set()
    twins = {
        "os": _without(os, LINUX_ALONE.split(), readlink=_absent_on_macos(os.readlink)),
        "platform": _without(platform, (), system=lambda: "Darwin", machine=lambda: "arm64"),
    }
_import = builtins.__import__


def _checked(name, globals=None, locals=None, fromlist=(), level=0):
    if level == 0 and str((globals or {}).get("__name__", "")).startswith(("grpo_tui", "__main__")):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in twins:
            return twins[name]
        if name == "torch" and not WINDOWS:
            _import(name).backends.mps.is_available = lambda: True
    return _import(name, globals, locals, fromlist, level)


builtins.__import__ = _checked
