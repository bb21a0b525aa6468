"""Measure the app as a person feels it: in a real pseudo-terminal, from the key press to the last change on screen.

    python benchmarks/app.py --runs DIR --sizes 1000 100000 1000000
    python -m benchmarks.app --long-rollouts

Builds the runs that DIR lacks through the project's own writer (`synthetic_run.py`; a million trajectories take some
minutes and 1.8 GB), then starts `grpo-tui` on each and prints a table. A bare Textual app is measured beside it: on a
machine that is slower, or busy, compare with that. "settled" is the last change of the screen before 120 ms of quiet;
CPU is what the app itself computed for a key, which a busy machine does not change.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import psutil
import pyte

ROWS, COLUMNS = 45, 150
QUIET = 0.12
INSPECT = "import sys; sys.argv[1:1] = ['inspect']; from grpo_tui.tui.entry import main; main()"
WRITTEN = (
    "import sys; from pathlib import Path; from grpo_tui.tui.app.app import run_app; "
    "from grpo_tui.tui.app.destinations import Trajectories; "
    "run = Path(sys.argv[1]); run_app(run.parent, Trajectories(run))"
)
LIVE = (
    "import sys; from pathlib import Path; from grpo_tui.tui.app.app import run_app; "
    "from grpo_tui.tui.app.destinations import Live; run = Path(sys.argv[1]); run_app(run.parent, Live(run))"
)
BARE = """
from textual.app import App
from textual.widget import Widget
class Ready(Widget):
    presses = 0
    def render(self): return f"READY {self.presses}"
class Bare(App):
    def compose(self): yield Ready()
    def on_key(self):
        ready = self.query_one(Ready)
        ready.presses += 1
        ready.refresh()
Bare().run()
"""


class Session:
    """A program in a pseudo-terminal."""

    def __init__(self, command: list[str], state: str) -> None:
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.stream = pyte.ByteStream(self.screen)
        self.began = time.perf_counter()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor", XDG_STATE_HOME=state)
            os.execvp(command[0], command)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.process = psutil.Process(self.pid)
        self.arrived = self.began
        """The time of the last output. It excludes the 5 ms that this emulator takes to read a full screen."""
        self.peak = 0

    def text(self) -> str:
        return "\n".join(self.screen.display)

    def pump(self, wait: float) -> bool:
        ready, _, _ = select.select([self.fd], [], [], wait)
        if not ready:
            return False
        try:
            data = os.read(self.fd, 1 << 16)
        except OSError:
            return False
        self.arrived = time.perf_counter()
        while select.select([self.fd], [], [], 0.001)[0]:  # a pseudo-terminal buffers 4 KiB, less than a full screen
            try:
                data += os.read(self.fd, 1 << 16)
            except OSError:
                break
            self.arrived = time.perf_counter()
        if b"\x1b[6n" in data:
            os.write(self.fd, b"\x1b[1;1R")
        if b"\x1b[c" in data:
            os.write(self.fd, b"\x1b[?62;c")
        self.stream.feed(data)
        self.peak = max(self.peak, self.process.memory_info().rss)
        return True

    def until(self, pattern: str, limit: float = 60.0) -> float:
        """Return the seconds until the screen matches."""
        began = time.perf_counter()
        wanted = re.compile(pattern)
        while time.perf_counter() - began < limit:
            if wanted.search(self.text()):
                return time.perf_counter() - began
            self.pump(0.01)
        raise SystemExit(f"waited {limit:.0f} s for {pattern!r}; the screen is\n{self.text()}")

    def quiet(self, seconds: float = QUIET, limit: float = 10.0) -> None:
        end = time.perf_counter() + limit
        last = time.perf_counter()
        while time.perf_counter() < end and time.perf_counter() - last < seconds:
            if self.pump(0.01):
                last = time.perf_counter()

    def press(self, keys: str, limit: float = 5.0) -> float:
        """Return the seconds from the key press to the last change of the screen before it is quiet."""
        before = self.text()
        began = time.perf_counter()
        os.write(self.fd, keys.encode())
        last = 0.0
        while (now := time.perf_counter() - began) < limit:
            if self.pump(0.004):
                after = self.text()
                if after != before:
                    last, before = self.arrived - began, after
            elif now - last > QUIET and (last or now > 1.0):
                break
        return last

    def keys(self, keys: str, count: int) -> tuple[float, float, float]:
        """Return median and 95th percentile of `count` key presses, and CPU time per key, in milliseconds."""
        cpu = self._cpu()
        times = sorted(1000 * self.press(keys[at % len(keys)]) for at in range(count))
        return statistics.median(times), times[min(count - 1, int(0.95 * count))], 1000 * (self._cpu() - cpu) / count

    def _cpu(self) -> float:
        used = self.process.cpu_times()
        return used.user + used.system

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


def first_paint(command: list[str], pattern: str, state: str, times: int) -> float:
    """Return the median seconds from exec to the screen, after one start that warms the disk cache."""
    taken = []
    for _ in range(times + 1):
        session = Session(command, state)
        session.until(pattern)
        taken.append(time.perf_counter() - session.began)
        session.close()
    return statistics.median(taken[1:])


def inspect(run: Path) -> list[str]:
    return [sys.executable, "-c", INSPECT, str(run)]


def trajectories(run: Path, state: str, count: int, command: list[str] | None = None) -> dict[str, str]:
    """Measure the screens of a run with trajectories."""
    row: dict[str, str] = {}
    command = command or inspect(run)
    paint = first_paint(command, r"\d ✓|\d ✗", state, 3)
    session = Session(command, state)
    session.until(r"\d ✓|\d ✗")
    session.quiet(0.4)
    os.write(session.fd, b"\r")
    opened = session.until(r"step 1/")
    session.quiet(0.3)
    median, p95, cpu = session.keys("L", count)
    row["first paint"] = f"{paint:.2f} s"
    row["open a rollout"] = f"{opened:.2f} s"
    row["next rollout, median / p95"] = f"{median:.0f} / {p95:.0f} ms"
    row["CPU a key"] = f"{cpu:.1f} ms"
    os.write(session.fd, b"\x1b")
    session.until("trajectories")
    session.quiet(0.3)
    for name, keys, shown in (
        ("search", "/triangle", "“triangle”"),
        ("filter", "freward<0.2 and step>3", "reward<0.2"),
    ):
        for key in keys:
            session.press(key, 0.4)
        os.write(session.fd, b"\r")
        answered = session.until(shown + r"[\s\S]*\d of ")
        row[name] = f"{answered:.2f} s"
        session.quiet(0.5)
        session.press("c")
        session.quiet(0.5)
    row["memory"] = f"{session.peak / 2**20:.0f} MiB"
    session.close()
    return row


def live(run: Path, state: str, count: int) -> dict[str, str]:
    """Measure the dashboard with long curves."""
    command = [sys.executable, "-c", LIVE, str(run)]
    paint = first_paint(command, r"±", state, 3)
    session = Session(command, state)
    session.until("±")
    session.quiet(1.0)
    row = {"first paint": f"{paint:.2f} s"}
    for name, key in (("next chart", "m"), ("smooth", "w"), ("zoom", "++++----")):
        median, p95, cpu = session.keys(key, count)
        row[name] = f"{median:.0f} / {p95:.0f} ms ({cpu:.1f} ms CPU)"
    row["memory"] = f"{session.peak / 2**20:.0f} MiB"
    session.close()
    return row


def write(run: Path) -> None:
    """Append to a run as fast as the disk allows, until killed. Another process of this script runs it."""
    sys.path.insert(0, str(Path(__file__).parent))
    from synthetic_run import batches, step_metrics

    from grpo_tui.engine.runs.write.writer import RunWriter

    writer = RunWriter(run)
    writer.status("running", step=0)
    for step, records in batches(100_000_000):
        writer.trajectories(step, records)
        writer.metrics(step, step_metrics(step, 100_000, 14))
        if step % 4 == 0:
            writer.flush(30)


def while_written(folder: Path, state: str, count: int) -> dict[str, str]:
    """Measure stepping through a run while another process appends to it continuously."""
    run = folder / "being-written"
    process = subprocess.Popen([sys.executable, __file__, "--write", str(run)])
    try:
        while not (run / "record.sqlite").exists() or (run / "record.sqlite").stat().st_size < 4e6:
            time.sleep(0.1)
        # `inspect` would open the dashboard of an active run
        return trajectories(run, state, count, [sys.executable, "-c", WRITTEN, str(run)])
    finally:
        process.kill()
        process.wait()


def long_rollouts(state: str, count: int) -> dict[str, str]:
    """Measure coding agents of 300 steps with results of up to 30 KB, a text of 3 MB and a line of 2 MB (70 MB)."""
    from benchmarks.coding_rollouts import write_agents

    dump = write_agents(Path(state))
    command = inspect(dump)
    paint = first_paint(command, r"agent-0|1 of \d", state, 3)
    session = Session(command, state)
    session.until(r"1 of 24")
    session.quiet(0.5)
    os.write(session.fd, b"\r")
    row = {"first paint": f"{paint:.2f} s", "open a rollout": f"{session.until('step 1 of 301'):.2f} s"}
    session.quiet(0.5)
    keys = {"next step": "l", "scroll": "j", "page": "\x06", "next failed call": "x", "next rollout": "L"}
    for name, key in keys.items():
        median, p95, cpu = session.keys(key, count if key != "L" else 12)
        row[name] = f"{median:.0f} / {p95:.0f} ms ({cpu:.1f} ms CPU)"
    for name, step in (("a text of 3 MB", "151"), ("a line of 2 MB", "152")):
        session.press("H" * 24, 1.0)
        session.quiet(0.5)
        for key in f":{step}\r":
            session.press(key, 1.0)
        session.until(f"step {step} of 301")
        row[f"open {name}"] = f"{1000 * session.press(chr(13)):.0f} ms"
        median, p95, cpu = session.keys("j\x06", count)
        row[f"scroll {name}"] = f"{median:.0f} / {p95:.0f} ms ({cpu:.1f} ms CPU)"
    row["memory"] = f"{session.peak / 2**20:.0f} MiB"
    session.close()
    return row


def bare(state: str, count: int) -> str:
    """Measure an app that shows one line, as a baseline for slower or busy machines."""
    command = [sys.executable, "-c", BARE]
    paint = first_paint(command, "READY", state, 3)
    session = Session(command, state)
    session.until("READY")
    session.quiet(0.4)
    median, p95, cpu = session.keys("L", count)
    session.close()
    return f"a bare Textual app: first paint {paint:.2f} s, a key {median:.1f} / {p95:.1f} ms ({cpu:.1f} ms CPU)\n"


def table(rows: dict[str, dict[str, str]]) -> str:
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    lines = ["| | " + " | ".join(rows) + " |", "|---" * (len(rows) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(row.get(name, "–") for row in rows.values()) + " |" for name in names]
    return "\n".join(lines)


def build(folder: Path, *arguments: str) -> None:
    script = Path(__file__).with_name("synthetic_run.py")
    subprocess.run([sys.executable, str(script), "--out", str(folder), *arguments], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder of synthetic runs; what is missing is built")
    parser.add_argument("--sizes", type=int, nargs="*", default=[1_000, 100_000])
    parser.add_argument("--count", type=int, default=40, help="key presses a measurement")
    parser.add_argument("--long-rollouts", action="store_true", help="coding agents of 300 steps, alone")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write is not None:
        write(given.write)
        return
    if given.long_rollouts:
        with tempfile.TemporaryDirectory() as state:
            os.environ["XDG_CACHE_HOME"] = state
            print(bare(state, given.count))
            print(table({"24 rollouts of 300 steps": long_rollouts(state, given.count)}))
        return
    if given.runs is None:
        parser.error("--runs is needed: a folder for the synthetic runs")
    with tempfile.TemporaryDirectory() as state:
        print(bare(state, given.count))
        for size in given.sizes:
            run = given.runs / f"synthetic-{size}"
            if not run.exists():
                build(given.runs, "--trajectories", str(size))
            print(table({f"{size:,} trajectories": trajectories(run, state, given.count)}) + "\n", flush=True)
        print(table({"while being written": while_written(Path(state), state, given.count)}) + "\n", flush=True)
        run = given.runs / "synthetic-metrics-40x20000"
        if not run.exists():
            build(given.runs, "--metrics", "40", "--steps", "20000")
        print(table({"live, 20,000 steps × 40 metrics": live(run, state, given.count)}))


if __name__ == "__main__":
    main()
