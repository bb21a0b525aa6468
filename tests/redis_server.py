"""A real Redis server of a test's own, on a unix socket or a free port of the loopback interface."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

LASTING = ("--appendonly", "yes", "--appendfsync", "always")
"""Nothing is lost that was answered for."""
MISSING = "no redis-server here: apt-get install -y redis-server"


class RedisServer:
    """`start`, `stop`, `kill`, `pause` and `resume` one server; its data stays in a folder of its own."""

    def __init__(self, folder: Path, *options: str, tcp: bool = False) -> None:
        self.folder = folder
        self.options = options
        self.port = _free_port() if tcp else 0
        self.socket = folder / "redis.sock"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0" if self.port else f"unix://{self.socket}"

    def start(self) -> None:
        where = ["--port", str(self.port)] + ([] if self.port else ["--unixsocket", str(self.socket)])
        command = [
            "redis-server",
            "--bind",
            "127.0.0.1",
            "--dir",
            str(self.folder),
            "--save",
            "",
            *where,
            *self.options,
        ]
        log = open(self.folder / "redis.log", "ab")  # noqa: SIM115 - the server's
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()
        until = time.monotonic() + 20
        while not self._answers():
            assert self.process.poll() is None, (self.folder / "redis.log").read_text()
            assert time.monotonic() < until, "redis-server does not answer"
            time.sleep(0.01)

    def _answers(self) -> bool:
        family, at = (socket.AF_INET, ("127.0.0.1", self.port)) if self.port else (socket.AF_UNIX, str(self.socket))
        with contextlib.suppress(OSError), socket.socket(family) as connection:
            connection.settimeout(1)
            connection.connect(at)
            connection.sendall(b"PING\r\n")
            return connection.recv(64)[:5] in (b"+PONG", b"-NOAU")
        return False

    def _signal(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def pause(self) -> None:
        """As if the network were cut: connections stay, nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.resume()
            self.process.terminate()
            self.process.wait(timeout=20)


@contextlib.contextmanager
def redis_server(*options: str, tcp: bool = False, start: bool = True) -> Iterator[RedisServer]:
    if shutil.which("redis-server") is None:
        pytest.skip(MISSING)
    pytest.importorskip("redis", reason="no client of Redis here: pip install 'grpo-tui[redis]'")
    folder = Path(tempfile.mkdtemp(prefix="redis-"))  # a socket's path must be short
    server = RedisServer(folder, *options, tcp=tcp)
    try:
        if start:
            server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def stopped_and_restarted(server: RedisServer) -> Iterator[None]:
    ended = threading.Event()

    def disturb() -> None:
        rng = random.Random(0)
        while not ended.wait(rng.uniform(0.5, 2.0)):
            if rng.random() < 0.5:
                server.kill()
                server.start()
            else:
                server.pause()
                time.sleep(rng.uniform(0.1, 1.0))
                server.resume()

    thread = threading.Thread(target=disturb)
    thread.start()
    yield
    ended.set()
    thread.join()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
