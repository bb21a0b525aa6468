"""Python starts with this when it lies on PYTHONPATH: modules of grpo_tui see a system without POSIX, as on Windows.

They import an `os` whose name is "nt". It lacks the functions that Windows lacks, cannot open folders, and refuses to
replace a file that a process has open. Modules that Windows lacks cannot be imported. Libraries see the real system.
"""

from __future__ import annotations

import builtins
import os
import signal
import types
from collections.abc import Sequence
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


def _replace(source, target):
    if os.path.exists(target):
        real = os.path.realpath(target)
        for link in Path("/proc").glob("[0-9]*/fd/*"):
            if _target(link) == real:
                raise PermissionError(13, f"{link} has it open", str(target))
    os.replace(source, target)


_TWINS = {
    "os": _without(os, FUNCTIONS.split(), name="nt", open=_open, replace=_replace, rename=_replace),
    "signal": _without(signal, SIGNALS.split()),
}
_import = builtins.__import__


def _checked(name, globals=None, locals=None, fromlist=(), level=0):
    if level == 0 and str((globals or {}).get("__name__", "")).startswith(("grpo_tui", "__main__")):
        if name.partition(".")[0] in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in _TWINS:
            return _TWINS[name]
    return _import(name, globals, locals, fromlist, level)


builtins.__import__ = _checked
