"""The server of forked processes, which all tests of a session share, outlives those who ask it."""

from __future__ import annotations

import signal
import socket
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
