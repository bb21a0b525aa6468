"""Mixed load on a real run: `python -m benchmarks.mixed_load [--seconds 3600] [--callers 50]`; also by `make stress`.

Callers ask over HTTP without a pause, 5 % of them what no server should accept. Each minute a process of the run is
killed (engine or worker, in turn) and the run resumed; in the middle the disk is full for a minute (a tmpfs of its own,
where that can be mounted). Last line: requests answered, refused by a sentence, cut off by a kill, and lost, which is
any that got none of these within its time; tasks lost or learnt from twice; memory of engine and worker a minute after
the start and at the end; versions published. Exit code 1 when anything was lost or learnt
from twice, or the server broke its word (500).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.serving import question
from grpo_tui.engine.online.store.snapshots import pointed_version
from grpo_tui.engine.runs.control.status import process_state
from grpo_tui.engine.runs.durable import read_json

SETTINGS = (
    "online.serve=127.0.0.1:0",
    "online.samples=2",
    "online.batch_requests=16",
    "online.request_timeout_s=120",
    "online.snapshot_every=4",
    "online.validation.tasks=8",
    "online.validation.canary_tasks=0",
    "online.validation.every_updates=8",
)
HOSTILE: list[tuple[dict[str, str], bytes]] = [
    ({}, b"{"),
    ({}, b'{"model": "builtin:tiny", "messages": [{"role": "user", "content": "' + b"word " * 30_000 + b'"}]}'),
    ({}, b'{"messages": ' + b"[" * 5000),
    ({"Host": "example.com"}, b"{}"),
    ({"Content-Type": "text/plain"}, b"{}"),
    ({}, json.dumps({"task_data": {"image": "/etc/passwd", "question": "x"}}).encode()),
    ({}, b'{"model": "builtin:tiny@999", "messages": [{"role": "user", "content": "x"}]}'),
]
DISK_MIB = 300
PATIENCE_S = 300.0
"""Seconds without an answer after which a request is lost. The server promises an answer within two minutes."""


@dataclass
class Load:
    """The running load and its results."""

    run_dir: Path
    until: float
    counts: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    memory_mib: list[float] = field(default_factory=list)
    command: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start or resume the run."""
        name, home = self.run_dir.name, str(self.run_dir.parent)
        begun = (self.run_dir / "run.json").exists()
        arguments = ["--resume", name] if begun else ["--run-id", name]
        settings = [part for s in SETTINGS for part in ("--set", s)]
        self.command = subprocess.Popen(
            [sys.executable, "-m", "grpo_tui.tui.cli", "online", "--runs-dir", home, *arguments, *settings],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def url(self) -> str | None:
        """Return the URL of the running engine, or None."""
        alive = process_state(self.run_dir, "engine")["alive"]
        return read_json(self.run_dir / "online" / "address.json").get("url") if alive else None

    def measure(self) -> None:
        """Measure the memory of engine and worker together."""
        total = 0.0
        for name in ("engine", "worker"):
            with contextlib.suppress(OSError, KeyError, ValueError, StopIteration):
                status = Path(f"/proc/{process_state(self.run_dir, name)['pid']}/status").read_text()
                total += int(next(x for x in status.splitlines() if x.startswith("VmRSS")).split()[1]) / 1024
        self.memory_mib.append(total)

    def kill(self, name: str) -> None:
        """Send SIGKILL to one process of the run."""
        state = process_state(self.run_dir, name)
        if state["alive"]:
            os.kill(int(state["pid"]), signal.SIGKILL)
            self.kills[name] += 1


async def caller(load: Load, number: int) -> None:
    """Send requests until time runs out."""
    rng = random.Random(number)
    good = json.dumps(question()).encode()
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        while time.monotonic() < load.until:
            url = load.url()
            if url is None:
                await asyncio.sleep(0.5)
                continue
            hostile = rng.random() < 0.05
            headers, body = rng.choice(HOSTILE) if hostile else ({}, good)
            sent = {"Content-Type": "application/json", **headers}
            try:
                answer = await client.post(url + "/v1/chat/completions", content=body, headers=sent)
            except httpx.TimeoutException:
                load.counts["lost"] += 1
            except httpx.TransportError:
                load.counts["cut off by a kill"] += 1
                await asyncio.sleep(0.5)
            else:
                kind = "answered" if answer.status_code == 200 else "refused"
                broken = answer.status_code == 500 or (hostile and kind == "answered")
                load.counts["broken" if broken else "hostile refused" if hostile else kind] += 1
                if answer.status_code in (429, 503):
                    await asyncio.sleep(min(5.0, float(answer.headers.get("Retry-After", 1))))


async def trouble(load: Load, every_s: float, full: bool) -> None:
    """Kill and resume, fill the disk once, and watch."""
    began, victims, filled = time.monotonic(), iter(["worker", "engine"] * 10_000), not full
    while time.monotonic() < load.until - every_s / 2:
        await asyncio.sleep(every_s)
        load.measure()
        spent = time.monotonic() - began
        version = pointed_version(load.run_dir / "snapshots")
        print(f"{spent:6.0f} s  {dict(load.counts)}  version {version}  {load.memory_mib[-1]:.0f} MiB", flush=True)
        if not filled and spent > (load.until - began) / 2:
            filled = True
            await asyncio.to_thread(_full_for, load.run_dir.parent / "filler", every_s)
            if load.url() is not None:  # an active run needs no restart
                continue
        load.kill(next(victims))
        await asyncio.to_thread(_resume, load)


def _full_for(filler: Path, seconds: float) -> None:
    with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))
    print(f"        the disk is full for {seconds:.0f} s", flush=True)
    time.sleep(seconds)
    filler.unlink()


def _resume(load: Load) -> None:
    """Stop the remaining processes of the run, as a user would, and resume it."""
    home = ["--runs-dir", str(load.run_dir.parent)]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([sys.executable, "-m", "grpo_tui.tui.cli", "stop", load.run_dir.name, "--force", *home], **quiet)
    assert load.command is not None
    load.command.wait(300)
    load.start()


def _end(load: Load) -> None:
    """Stop the run. A run that was just resumed may not have started yet, so repeat until it has ended."""
    stop = [sys.executable, "-m", "grpo_tui.tui.cli", "stop", load.run_dir.name, "--runs-dir", str(load.run_dir.parent)]
    while load.command is not None and load.command.poll() is None:
        subprocess.run(stop, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            load.command.wait(10)


def tasks(run_dir: Path) -> tuple[Counter[str], int]:
    """Return the states of all tasks in the queue, and the number of tasks that were learned from twice."""
    with contextlib.closing(sqlite3.connect(run_dir / "online" / "queue.sqlite")) as db:
        states = Counter(state for (state,) in db.execute("SELECT state FROM tasks"))
    log = run_dir / "update_contribution.jsonl"
    learnt = Counter(json.loads(x)["experience"] for x in log.read_text().splitlines()) if log.exists() else Counter()
    return states, sum(count - 1 for count in learnt.values())


@contextlib.contextmanager
def small_disk() -> Iterator[tuple[Path, bool]]:
    """Yield a folder, and whether it is on a separate disk."""
    with tempfile.TemporaryDirectory() as name:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", name]
        mounted = subprocess.run(mount, capture_output=True).returncode == 0
        try:
            yield Path(name), mounted
        finally:
            if mounted:
                subprocess.run(["umount", "-l", name])


async def run(load: Load, callers: int, every_s: float, full: bool) -> None:
    """Run the callers and the disturbances."""
    load.start()
    while load.url() is None:
        await asyncio.sleep(0.2)
    load.until += time.monotonic()
    await asyncio.gather(trouble(load, every_s, full), *(caller(load, i) for i in range(callers)))


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--callers", type=int, default=50)
    parser.add_argument("--every", type=float, default=60, help="seconds between two kills")
    given = parser.parse_args()
    with small_disk() as (home, mounted):
        if not mounted:
            print("no disk of its own can be mounted here: the part with a full disk is left out")
        load = Load(home / "mixed", given.seconds)
        try:
            asyncio.run(run(load, given.callers, given.every, mounted))
        finally:
            _end(load)
        states, twice = tasks(load.run_dir)
        figures = {
            **{kind: load.counts[kind] for kind in ("answered", "refused", "hostile refused", "cut off by a kill")},
            "lost": load.counts["lost"],
            "broken": load.counts["broken"],
            "kills": sum(load.kills.values()),
            "tasks": dict(states),
            "learnt twice": twice,
            "memory_mib": [round(load.memory_mib[0]), round(load.memory_mib[-1])],
            "versions": pointed_version(load.run_dir / "snapshots"),
        }
        print(json.dumps(figures), flush=True)
    return int(bool(load.counts["lost"] or load.counts["broken"] or twice))


if __name__ == "__main__":
    sys.exit(main())
