"""`grpo-tui web`: the app over a real websocket, its token, and the process of each tab."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from grpo_tui import Message, Recorder, Rollout

pytest.importorskip("textual_serve", reason="grpo-tui web needs textual-serve: pip install 'grpo-tui[web]'")
aiohttp = pytest.importorskip("aiohttp")

CLIPBOARD = "\x1b]52;c;ZXZpbA==\x07"


class Served:
    def __init__(self, home: Path) -> None:
        words = [sys.executable, "-m", "grpo_tui.tui.cli", "web", "hostile", "--runs-dir", str(home)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.root = re.sub(r"/[^/]+/$", "", self.url)
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", int(self.root.rpartition(":")[2]))) == 0:
                    return
            time.sleep(0.1)

    def apps(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Recorder("hostile", runs_dir=tmp_path) as recorder:
        question = (Message("user", f"Where? {CLIPBOARD}[bold]x"),)
        recorder.rollouts(
            1, [Rollout(prompt=question, completion=(Message("assistant", f"here {CLIPBOARD}"),), reward=1.0)]
        )
    running = Served(tmp_path)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


async def screen(tab: Any, text: str) -> str:
    """Return everything that was sent until the text came."""
    got = ""
    while text not in got:
        message = await tab.receive(timeout=30)
        got += message.data.decode(errors="replace") if isinstance(message.data, bytes) else str(message.data)
    return got


async def gone(apps: list[psutil.Process]) -> bool:
    for _ in range(100):
        if not any(app.is_running() and app.status() != psutil.STATUS_ZOMBIE for app in apps):
            return True
        await asyncio.sleep(0.1)
    return False


async def test_nothing_passes_without_the_token(served: Served):
    assert served.root.startswith("http://127.0.0.1:")
    async with aiohttp.ClientSession() as session:
        for path in ("/", "/ws", "/static/js/textual.js", "/download/x", "/wrong/", "/wrong/ws"):
            async with session.get(served.root + path) as answer:
                assert answer.status == 403, path
        for path in ("/ws", "/wrong/ws"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(served.root + path)
            assert refused.value.status == 403
        async with session.get(served.url) as answer:
            assert answer.status == 200
            policy = answer.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'self' http://127.0.0.1:") and "google" not in policy
    assert served.apps() == []


async def test_each_tab_has_an_app_that_ends_with_it(served: Served):
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(f"{served.url}ws?width=100&height=30") as tab:
            shown = await screen(tab, "of 1")
            assert "hostile" in shown and "Where?" in shown
            assert "\x1b]52;" not in shown, "text of the model reaches no terminal as an escape code"
            (app,) = served.apps()
        assert await gone([app])
        assert served.process.poll() is None


async def test_an_app_ends_with_its_server(served: Served):
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{served.url}ws?width=100&height=30") as tab:
        await screen(tab, "of 1")
        apps = served.apps()
        assert len(apps) == 1
        served.process.kill()
        assert await gone(apps)
