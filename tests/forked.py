"""Processes that begin at once: a server imports the product and its libraries once, and each process is a fork of it.

Within `forked_processes` (the fixture `forked`) that is so for whatever is started through `subprocess` as
`python -m MODULE` or `python FILE.py`, and for what such a process starts in its turn. It has its own environment,
folder, files and session as if it had been executed. Not shown by it: what a process imports and how long that takes,
and what Python does after the functions of `atexit`: freeing every module copies most of the server's memory.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn

import pytest

from tests.repeated import compile_templates_once, lighten_trainings

ROOT = Path(__file__).parents[1]
PRELOADED = (
    "grpo_tui.engine.training.rft",
    "grpo_tui.engine.training.sft",
    "grpo_tui.engine.training.previews",
    "grpo_tui.engine.training.branch",
    "grpo_tui.engine.training.evaluate",
    "grpo_tui.engine.rollouts.sources",
    "grpo_tui.engine.demonstration.visual.env",
    "grpo_tui.configs.loading",
    "grpo_tui.engine.online.serve.assembly",
    "grpo_tui.engine.online.learn.update_worker",
    "grpo_tui.engine.online.learn.validation",
    "grpo_tui.tui.cli.main",
    "grpo_tui.tui.entry",
    "accelerate.commands.launch",
    "torch.distributed.run",
    "transformers.models.qwen3.modeling_qwen3",
)
LIGHT = (
    "grpo_tui.tui.cli.inspect",
    "grpo_tui.tui.entry",
    "grpo_tui.tui.app.app",
    *(f"grpo_tui.tui.app.screens.{name}" for name in ("live", "runs", "stepper", "trajectories")),
    "textual.drivers.linux_driver",
)
"""For a server of the app and of commands that load no torch: it begins in a second, and its forks are small."""
VARIABLES = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
"""What the libraries read when they are imported."""

ANEW = "IMPORT_ANEW"
"""A process with this variable imports the product again: another copy of it, or with another `sitecustomize`. The
libraries stay imported."""
LARGE_PAGE = 2 << 20

_address: str | None = None
_light_address: str | None = None
_nested = False
"""In a process of the server also `-c CODE` is a fork: only the product itself starts that there."""


class ForkedProcess:
    """A process of the server, with what is used here of `subprocess.Popen`."""

    def __init__(
        self,
        args: Sequence[str | os.PathLike[str]],
        *,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        text: bool = False,
        start_new_session: bool = False,
        creationflags: int = 0,
        light: bool = False,
    ) -> None:
        """light: a fork of the server that has loaded the app, and no torch."""
        self.args = args
        self.returncode: int | None = None
        self._waiting = threading.Lock()
        """As with `Popen`, several threads may ask for the exit code."""
        self.stdin: IO[Any] | None = None
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None
        request = {
            "args": [os.fspath(word) for word in args[1:]],
            "cwd": os.fspath(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "session": start_new_session,
        }
        with contextlib.ExitStack() as ours:
            files = [self._file(name, given, text, ours) for name, given in (("stdin", stdin), ("stdout", stdout))]
            files.append(files[1] if stderr == subprocess.STDOUT else self._file("stderr", stderr, text, ours))
            self._server = socket.socket(socket.AF_UNIX)
            self._server.connect(light_server_address() if light else server_address())
            socket.send_fds(self._server, [b"\n"], files)
            self._server.sendall(json.dumps(request).encode())
            self._server.shutdown(socket.SHUT_WR)
        self._answers = self._server.makefile()
        self.pid = int(self._answers.readline())

    def _file(self, name: str, given: int | IO[Any] | None, text: bool, ours: contextlib.ExitStack) -> int:
        """The number of the file that the process gets; a pipe's other end becomes the attribute `name`."""
        if given is None:
            return ("stdin", "stdout", "stderr").index(name)
        if not isinstance(given, int):
            return given.fileno()
        if given == subprocess.DEVNULL:
            given = os.open(os.devnull, os.O_RDWR)
            ours.callback(os.close, given)
        elif given == subprocess.PIPE:
            reads, writes = os.pipe()
            given, kept, mode = (reads, writes, "w") if name == "stdin" else (writes, reads, "r")
            ours.callback(os.close, given)
            setattr(self, name, os.fdopen(kept, mode if text else mode + "b", buffering=-1 if text else 0))
        return given

    def __enter__(self) -> ForkedProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        self.wait()

    def poll(self) -> int | None:
        """Its exit code, or None while it lives; a signal is a negative number."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, once it has ended. Raises subprocess.TimeoutExpired."""
        with self._waiting:
            if self.returncode is None:
                if not select.select([self._server], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(list(map(str, self.args)), timeout or 0)
                # A server that is gone has no exit code for anybody who asks: its processes count as killed.
                self.returncode = int(self._answers.readline() or -signal.SIGKILL)
                self._answers.close()
                self._server.close()
            return self.returncode

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """All that it writes to pipes until it ends, given `input`. Raises subprocess.TimeoutExpired."""
        said: dict[str, Any] = {"stdout": None, "stderr": None}

        def read(name: str, pipe: IO[Any]) -> None:
            said[name] = pipe.read()

        readers = [
            threading.Thread(target=read, args=(name, pipe), daemon=True)
            for name in said
            if (pipe := getattr(self, name)) is not None
        ]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            if input is not None:
                self.stdin.write(input)
            self.stdin.close()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return said["stdout"], said["stderr"]

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still lives."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class _Popen(subprocess.Popen[Any]):
    """`subprocess.Popen`, except for programs of this Python."""

    def __new__(cls, args: Any, *more: Any, **options: Any) -> Any:
        if isinstance(args, list | tuple) and args[0] == sys.executable and (_nested or _program(args[1:])[0] != "-c"):
            return ForkedProcess(args, *more, **options)
        return super().__new__(cls)


def _program(words: Sequence[Any]) -> list[str]:
    """`-m MODULE …`, `-c CODE …` or `FILE …`, of the words after `python`."""
    found = [os.fspath(word) for word in words]
    return found[1:] if found[0] in ("-u", "-P") else found


@contextlib.contextmanager
def forked_processes() -> Iterator[None]:
    """What `subprocess` starts in here as a program of this Python is a fork of the server."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(subprocess, "Popen", _Popen)
        yield


def training_process(folder: Path, *, log: Path, resume: bool = False, cwd: Path | None = None) -> ForkedProcess:
    """The training process of a run, as the launcher starts it."""
    command = [sys.executable, "-m", "grpo_tui.engine.training", str(folder), *(["--resume"] if resume else [])]
    with log.open("ab") as output:
        return ForkedProcess(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=cwd, start_new_session=True
        )


def train(folder: Path, config: Path | None, settings: Sequence[str], *, cwd: Path) -> str:
    """Train with the settings of a file (or the defaults), in a process of its own in `cwd`; gives what it printed."""
    from grpo_tui.configs.loading import load_config
    from grpo_tui.configs.writing import to_yaml

    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(to_yaml(load_config(config, settings)))
    log = folder / "log.txt"
    code = training_process(folder, log=log, cwd=cwd).wait(300)
    assert code == 0, log.read_text()
    return log.read_text()


def server_address() -> str:
    """Where the server of this test session answers: the first who asks starts it."""
    global _address
    if _address is None:
        _address = _server_of_session("forks", light=False)
    return _address


def light_server_address() -> str:
    """Where the server without torch answers. In its own forks it is the only one."""
    global _light_address
    if _light_address is None:
        _light_address = _address if _nested and _address else _server_of_session("light-forks", light=True)
    return _light_address


def _server_of_session(name: str, *, light: bool) -> str:
    in_worker = "PYTEST_XDIST_TESTRUNUID" in os.environ
    session = os.environ["PYTEST_XDIST_TESTRUNUID"] if in_worker else str(os.getpid())
    folder = Path(tempfile.gettempdir(), f"{name}-{session[:16]}")
    folder.mkdir(mode=0o700, exist_ok=True)
    address = folder / "server"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not address.exists():
            _start_server(address, owner=os.getppid() if in_worker else os.getpid(), light=light)
    return str(address)


def _start_server(address: Path, owner: int, *, light: bool) -> None:
    code = f"import sys; from tests.forked import serve; serve({str(address)!r}, {owner}, light={light})"
    log = (address.parent / "log").open("wb")
    server = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **VARIABLES},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n", Path(log.name).read_text()


def serve(address: str, owner: int, *, light: bool = False) -> None:
    """The server: a fork for each that asks, until the process `owner` is gone."""
    _be_nested(address)
    for name in LIGHT if light else PRELOADED:
        importlib.import_module(name)
    if not light:
        _warm_up()
        _end_quickly()
        gc.collect()
        _use_large_pages()
    warnings.filterwarnings("ignore", ".* found in sys.modules after import", RuntimeWarning)  # of `python -m`
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    asked: dict[int, socket.socket] = {}
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    print("ready", flush=True)
    while _is_there(owner):
        ready, _, _ = select.select([listener, woken], [], [], 1.0)
        if woken in ready:
            os.read(woken, 4096)
            _tell_ends(asked)
        if listener in ready:
            connection, _ = listener.accept()
            files: list[int] = []
            try:
                _, files, _, _ = socket.recv_fds(connection, 1, 3)
                request = json.loads(b"".join(iter(lambda: connection.recv(1 << 16), b"")))  # noqa: B023
            except (OSError, ValueError):  # tests kill processes at random, also while one asks for another
                for file in files:
                    os.close(file)
                connection.close()
                continue
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for end in (listener, connection, *asked.values()):
                    end.close()
                os.close(woken)
                os.close(wake)
                _end(_become(request, files))
            for file in files:
                os.close(file)
            asked[pid] = connection
            _say(connection, pid)
    shutil.rmtree(Path(address).parent, ignore_errors=True)
    _end(0)


def _warm_up() -> None:
    """Compile and import what a command or a training otherwise does first."""
    from huggingface_hub import ModelCard, ModelCardData
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    from grpo_tui.tui.cli.main import command_line

    compile_templates_once()
    lighten_trainings()
    command_line()
    get_checkpoint_conversion_mapping("")
    ModelCard.from_template(ModelCardData())


def _end_quickly() -> None:
    """A fork does not take back what torch registered when it was imported: that costs more than a short command."""
    from torch._dynamo.utils import dump_compile_times

    atexit.unregister(dump_compile_times)
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False


def _use_large_pages() -> None:
    """Bring the memory into pages of 2 MB, where Linux does that: a fork and its end take half of the time then."""
    madvise, collapse = ctypes.CDLL(None).madvise, 25
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/maps").read_text().splitlines():
            addresses, rights, *_, inode = line.split()[:5]
            if (rights, inode) == ("rw-p", "0"):
                start, end = (int(address, 16) for address in addresses.split("-"))
                start = -(-start // LARGE_PAGE) * LARGE_PAGE
                if start + LARGE_PAGE <= end:
                    madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), collapse)


def _tell_ends(asked: dict[int, socket.socket]) -> None:
    while asked:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with asked.pop(pid) as connection:
            _say(connection, os.waitstatus_to_exitcode(status))


def _say(connection: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # who asked may be gone
        connection.sendall(f"{number}\n".encode())


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _be_nested(address: str) -> None:
    """What the forks start, and libraries that take the name `Popen` when they are imported, are forks, too."""
    global _address, _nested
    _address, _nested = address, True
    subprocess.Popen = _Popen  # type: ignore[misc]


def _end(code: int) -> NoReturn:
    """End the process as Python does, but leave its memory to the system."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.exit(code)  # Python says what it could not write, and changes the code
    os._exit(code & 0xFF)


def _import_anew() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("grpo_tui", "sitecustomize")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")


def _become(request: dict[str, Any], files: Sequence[int]) -> int:
    """Be the program that was asked for; gives its exit code."""
    if request["session"]:
        os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    if request["session"] and os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for stream in (sys.stdout, sys.stderr):
        at_once = "PYTHONUNBUFFERED" in os.environ
        stream.reconfigure(write_through=at_once, line_buffering=stream.isatty())  # type: ignore[union-attr]
    if "PYTHONFAULTHANDLER" in os.environ:
        faulthandler.enable()
    kind, *words = _program(request["args"])
    first = request["cwd"] if kind in ("-m", "-c") else str(Path(kind).resolve().parent)
    safe = "-P" in request["args"] or os.environ.get("PYTHONSAFEPATH")
    sys.path[:] = [
        *([] if safe else [first]),
        *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
        *sys.path[1:],
    ]
    if ANEW in os.environ:
        _import_anew()
    try:
        if kind == "-m":
            sys.argv = words
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        elif kind == "-c":
            sys.argv = ["-c", *words[1:]]
            exec(words[0], {"__name__": "__main__"})
        else:
            sys.argv = [kind, *words]
            runpy.run_path(kind, run_name="__main__")
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        return end.code or 0
    return 0
