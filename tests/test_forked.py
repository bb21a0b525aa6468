"""The server of forked processes, which all tests of a session share, outlives those who ask it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from . import forked


def test_a_process_killed_while_it_asks_leaves_the_server_alive(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import sys; sys.exit(3)")
    for half in (b"", b"\n", b'\n{"args": ['):
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(forked.server_address())
            asking.sendall(half)
    assert forked.ForkedProcess([sys.executable, str(program)]).wait(60) == 3


@pytest.mark.parametrize(("end", "code", "said"), [("3", 3, ""), ("None", 0, ""), ("'no'", 1, "no\n")])
def test_a_process_ends_as_one_of_python_does(tmp_path: Path, end: str, code: int, said: str) -> None:
    """Threads are awaited, functions of `atexit` run, and what was printed is written."""
    program = tmp_path / "program.py"
    program.write_text(
        "import atexit, sys, threading, time\n"
        "atexit.register(print, 'last', end='')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\n"
        f"print('program')\nsys.exit({end})\n"
    )
    with forked.forked_processes():
        done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (code, "program\nthread\nlast", said)


def test_a_process_whose_server_is_gone_counts_as_killed_for_all_who_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = str(tmp_path / "server")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    monkeypatch.setattr(forked, "_address", address)

    def serve_once() -> None:
        connection, _ = listener.accept()
        with listener, connection:
            while connection.recv(4096):
                pass
            connection.sendall(b"4000000\n")

    server = threading.Thread(target=serve_once)
    server.start()
    process = forked.ForkedProcess([sys.executable, "program.py"])
    server.join()
    assert process.poll() == process.poll() == -signal.SIGKILL
