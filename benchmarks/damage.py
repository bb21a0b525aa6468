"""Damage to every file of a run: `python -m benchmarks.damage [--run training|online] [--files GLOB] [--seconds 480]`.

A training and a learning server are killed half-way. Each file that they left is then, in turn, in a copy of the run,
truncated, emptied, deleted, or has bytes flipped at its beginning, middle or end; the run is listed, inspected,
exported and gone on with by the real commands, and what came of it is judged from the files:

- a training that goes on must end with bitwise the adapters, and the rows, of one that nobody disturbed;
- a server that goes on must answer all its requests, keep every whole version as it was and never point to an older
  one, use no update number and learn from no task twice, and move no weight further than a few updates can;
- rows that were recorded before may be missing, and a run may be refused, only if a sentence says so;
- nobody is shown a traceback, or told of "a fault in grpo-tui".

`--folder` keeps both runs and what was found, so that the command can be called again and again: cases that are in its
`rows.jsonl` are not tried again. `--table` prints them all as a table. Exit code 1 when something was wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from tests.forked import ForkedProcess

TRAINING = (
    *("training.max_steps=8", "training.save_every=4", "training.prompts_per_step=2", "training.num_generations=4"),
    *("training.keep_checkpoints=2", "environment.eval_tasks=0", "environment.train_tasks=32"),
    "training.output_dir=adapters",
)
ONLINE = (
    *("online.samples=3", "online.snapshot_every=2", "online.commit_every=2", "online.min_confidence=0.0"),
    *("online.batch_requests=2", "online.poll_interval_s=0.05", "online.validation.enabled=false"),
    "online.requests=requests.jsonl",
)
SERVED, MORE = 10, 8
FARTHEST = 0.05
"""Maximum change of a weight by a few updates (the largest weight is about 0.2)."""
LIMIT_S = 120.0
WRONG = re.compile(r"Traceback|fault in grpo-tui|Error: ")


def _flipped(at: float) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        data = bytearray(path.read_bytes())
        start = min(int(at * len(data)), max(0, len(data) - 16))
        data[start : start + 16] = bytes(b ^ 0xA5 for b in data[start : start + 16])
        path.write_bytes(data)

    return spoil


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "deleted": lambda path: path.unlink(),
    "first bytes": _flipped(0.0),
    "middle bytes": _flipped(0.5),
    "last bytes": _flipped(1.0),
}


@dataclass
class Row:
    """One case. `said`: lines that an undamaged run does not print. `wrong`: broken promises."""

    run: str
    file: str
    damage: str
    outcome: str = ""
    said: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


# ------------------------------------------------------------------------------------------------------- the two runs


def make_training(folder: Path) -> None:
    """Create `whole`, a run of eight steps, and `base`, the same killed after the fifth, between two checkpoints."""
    for name in ("whole", "base"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        options = ["--headless", "--run-id", "base", "--runs-dir", "runs", *_set(TRAINING)]
        process = started(["train", *options], folder / name, folder / f"{name}.log")
        if name == "whole":
            _ended(process)
        else:
            _kill_when(folder / name / "runs" / "base", "training", lambda status: int(status.get("step") or 0) >= 5)
            _ended(process)


def make_online(folder: Path) -> None:
    """Create `runs/base`: a server with at least two versions, killed after it answered ten requests."""
    from grpo_tui.engine.demonstration.visual import VisualEnv

    base = folder / "base"
    base.mkdir(parents=True, exist_ok=True)
    tasks = VisualEnv().make_tasks("train", SERVED + MORE, seed=0)
    lines = [json.dumps({"id": f"ask-{i}", "task_data": task}) for i, task in enumerate(tasks)]
    (base / "requests.jsonl").write_text("\n".join(lines) + "\n")
    options = ["--headless", "--run-id", "base", "--runs-dir", "runs", *_set(ONLINE)]
    process = started(["online", *options], base, folder / "base.log")
    run_dir = base / "runs" / "base"
    _kill_when(run_dir, "engine", lambda status: int(status.get("step") or 0) >= SERVED and _updates(run_dir) >= 6)
    _ended(process)


def started(
    arguments: Sequence[str], cwd: Path, log: Path, user: int | None = None
) -> ForkedProcess | subprocess.Popen[bytes]:
    """Start `grpo-tui` in a folder, optionally as another user. Its output is appended to `log`."""
    popen = ForkedProcess if user is None else partial(subprocess.Popen, user=user)
    with log.open("ab") as output:
        return popen(
            [sys.executable, "-m", "grpo_tui.tui.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            start_new_session=True,
        )


def end_all(folder: Path) -> None:
    """Kill every process that still uses a folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink() == folder:
                os.kill(int(process.name), signal.SIGKILL)


def _set(settings: tuple[str, ...]) -> list[str]:
    return [part for s in settings for part in ("--set", s)]


def _kill_when(run_dir: Path, name: str, due: Callable[[dict[str, Any]], bool]) -> None:
    until = time.monotonic() + 300
    while time.monotonic() < until:
        status = _json(run_dir / "processes" / f"{name}.json")
        if status.get("status") == "running" and due(status):
            for process in ("engine", "worker", "training"):
                with contextlib.suppress(OSError, KeyError):
                    os.kill(int(_json(run_dir / "processes" / f"{process}.json")["pid"]), signal.SIGKILL)
            return
        time.sleep(0.01)
    raise SystemExit(f"the run {run_dir} did not come as far as it should")


def _ended(process: Any, seconds: float = 300.0) -> int | None:
    """Wait for the exit code. Returns None if the process had to be killed."""
    import subprocess

    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}


def _updates(run_dir: Path) -> int:
    with contextlib.suppress(OSError):
        return len((run_dir / "update_contribution.jsonl").read_bytes().splitlines())
    return 0


# ---------------------------------------------------------------------------------------------------------- one case


@dataclass(frozen=True)
class Trouble:
    """A fault: `spoil` acts before the run is resumed, `during` while it runs. `user`: resumes the run."""

    file: str
    damage: str
    spoil: Callable[[Path], Any]
    during: Callable[[Path], None] | None = None
    user: int | None = None


class Case:
    """A copy of a run in which one file is damaged."""

    def __init__(self, kind: str, source: Path, folder: Path, usual: set[str], trouble: Trouble | None = None) -> None:
        self.kind, self.source, self.folder, self.usual = kind, source, folder, usual
        self.trouble = trouble or Trouble("nothing", "", lambda _: None)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder, symlinks=True)
        self.run_dir = folder / "runs" / "base"
        self.log = folder / "said.log"
        self.lines: list[str] = []
        self.trouble.spoil(self.run_dir)

    def command(self, *arguments: str, during: Callable[[Path], None] | None = None) -> int | None:
        """Run a command to its end. Its output goes to `lines`."""
        self.log.unlink(missing_ok=True)
        self.log.touch(0o666)
        self.log.chmod(0o666)
        process = started([*arguments, "--runs-dir", "runs"], self.folder, self.log, self.trouble.user)
        if during is not None:
            during(self.run_dir)
        code = _ended(process, LIMIT_S)
        if code is None:
            end_all(self.folder)
        self.lines += self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return code

    def go_on(self) -> int | None:
        """Resume the run with the command that started it."""
        if self.kind == "training":
            return self.command("train", "--headless", "--resume", "base", during=self.trouble.during)
        more = ["--set", f"online.max_requests={SERVED + MORE}"]
        return self.command("online", "--headless", "--resume", "base", *more, during=self.trouble.during)

    def said(self) -> list[str]:
        """Lines that an undamaged run does not print."""
        return list(dict.fromkeys(line for line in self.lines if line.strip() and _plain(line) not in self.usual))


def _plain(line: str) -> str:
    """Remove the numbers from a line, and values that only some runs measure."""
    return re.sub(r"[\d.,:]+( (s|min|h)\b)?", "#", re.sub(r"\s+", " ", line)).strip()


def look_at(case: Case) -> list[str]:
    """List, inspect and export the run. Returns the faults."""
    wrong = []
    for arguments in (["runs"], ["inspect", "base"], ["export", "base", "--format", "jsonl", "--out", "out.jsonl"]):
        code = case.command(*arguments)
        if code not in (0, 1, 2, 3):
            wrong.append(f"`{arguments[0]}` ended with {code}")
    return wrong


def judge_training(case: Case, row: Row) -> None:
    """Resume a training run and compare it with the undisturbed one."""
    whole = case.source.parent / "whole"
    before = _rows(case.run_dir)
    code = case.go_on()
    if code not in (0, None) and any("grpo-tui repair" in line for line in case.lines):
        case.command("repair", "base")
        row.outcome = "refused; after `repair` "
        code = case.go_on()
    if code == 0:
        same = (case.folder / "adapters" / "adapter_model.safetensors").read_bytes() == (
            whole / "adapters" / "adapter_model.safetensors"
        ).read_bytes()
        lost = _rows(whole / "runs" / "base") - _rows(case.run_dir)
        row.outcome += f"goes on, {'the same adapters' if same else 'OTHER ADAPTERS'}"
        row.outcome += f", {lost} rows lost" if lost else ""
        if not same:
            row.wrong.append("other adapters")
        if lost and not case.said():
            row.wrong.append(f"{lost} rows lost without a word")
    else:
        row.outcome += "refused" if code is not None else "HANGS"
        if code is None:
            row.wrong.append("it hangs")
        if not any(line.startswith("error: ") or "crashed" in line for line in case.lines):
            row.wrong.append("refused without a sentence")
        lost = before - _rows(case.run_dir)
        if lost > 0:
            row.wrong.append(f"refused, and {lost} rows are gone")


def judge_online(case: Case, row: Row) -> None:
    """Resume a server and compare it with its earlier state."""
    base = case.source / "runs" / "base"
    had, newest = _versions(base), _pointed(base)
    rows = _rows(base)
    code = case.go_on()
    if code not in (0, None) and any("grpo-tui repair" in line for line in case.lines):
        case.command("repair", "base")
        row.outcome = "refused; after `repair` "
        code = case.go_on()
    if code != 0:
        row.outcome += "refused" if code is not None else "HANGS"
        if code is None:
            row.wrong.append("it hangs")
        if not any(line.startswith("error: ") or "crashed" in line for line in case.lines):
            row.wrong.append("refused without a sentence")
        return
    have = _versions(case.run_dir)
    row.outcome += f"goes on, version {newest} to {_pointed(case.run_dir)}"
    if _pointed(case.run_dir) < newest:
        row.wrong.append("the version went back")
    if changed := [v for v in had.keys() & have.keys() if had[v] != have[v] and f".v{v}." not in row.file]:
        row.wrong.append(f"versions {changed} changed")
    if (far := _distance(base, newest, case.run_dir)) > FARTHEST:
        row.wrong.append(f"a weight moved by {far:.2f}")
    lost = rows + 3 * MORE - _rows(case.run_dir)
    row.outcome += f", {lost} rows lost" if lost > 0 else ""
    if lost > 0 and not case.said():
        row.wrong.append(f"{lost} rows lost without a word")
    learnt = [u for line in _lines(case.run_dir / "update_contribution.jsonl") if (u := _parsed(line))]
    for what in ("update", "experience"):
        values = [u[what] for u in learnt]
        if len(values) != len(set(values)):
            row.wrong.append(f"{what} twice in update_contribution.jsonl")


def _lines(path: Path) -> list[bytes]:
    with contextlib.suppress(OSError):
        return path.read_bytes().splitlines()
    return []


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _rows(run_dir: Path) -> int:
    from grpo_tui.engine.runs.read.reader import RunReader

    with RunReader(run_dir) as reader:
        return int(reader.rollouts.count())


def _versions(run_dir: Path) -> dict[int, str]:
    import xxhash

    from grpo_tui.engine.online.store.snapshots import file_name, published_versions

    folder = run_dir / "snapshots"
    return {v: xxhash.xxh3_128_hexdigest((folder / file_name(v)).read_bytes()) for v in published_versions(folder)}


def _pointed(run_dir: Path) -> int:
    from grpo_tui.engine.online.store.snapshots import pointed_version

    return pointed_version(run_dir / "snapshots") or 0


def _distance(base: Path, version: int, run_dir: Path) -> float:
    """Return the largest weight difference between the newest complete version and a version of the undamaged run."""
    from grpo_tui.engine.online.store.snapshots import SnapshotReader

    with SnapshotReader(base / "snapshots").open(version) as snapshot:
        old = {n: t.clone() for n, t in snapshot.tensors().items()}
    found = SnapshotReader(run_dir / "snapshots").newer_than(0)
    if found is None:
        return float("inf")
    with found:
        return max(float((t - old[n]).abs().max()) for n, t in found.tensors().items())


# --------------------------------------------------------------------------------------------------------------- all


def files_of(run_dir: Path) -> list[str]:
    """Return every file of a run, but only one of its pictures, and of older checkpoints and versions."""
    found = sorted(str(p.relative_to(run_dir)) for p in run_dir.rglob("*") if p.is_file() and p.stat().st_size)
    kept: dict[str, str] = {}
    for file in found:
        kind = re.sub(r"images/.*", "images/", file)
        older = re.match(r"checkpoints/checkpoint-(\d+)/", file)
        if older and int(older[1]) < max(int(p.name.split("-")[1]) for p in run_dir.glob("checkpoints/checkpoint-*")):
            kind = older[0]
        version = re.search(r"\.v(\d+)\.(\w+)$", file)
        if version and int(version[1]) < _pointed(run_dir):
            kind = f"older.{version[2]}"
        kept.setdefault(kind, file)
    return sorted(kept.values())


def troubles(kind: str, source: Path) -> Iterator[Trouble]:
    """Yield each damage to each file, then damages to several files, and to none."""
    for file in files_of(source / "runs" / "base"):
        for damage, spoil in DAMAGE.items():
            yield Trouble(file, damage, lambda run_dir, f=file, s=spoil: s(run_dir / f))
    for name in WHOLE[kind]:
        yield Trouble(name, "all deleted", lambda run_dir, n=name: _deleted(run_dir, n))
    yield Trouble("the folder", "read-only", lambda _: None, user=NOBODY)
    yield Trouble("the clock", "set back by a day", _aged)
    for process in PROCESSES[kind]:
        yield Trouble(f"the process {process}", "SIGSTOP, SIGCONT", lambda _: None, partial(_pause, process))


WHOLE = {
    "training": ("record.sqlite*", "checkpoints", "processes", "logs", "images"),
    "online": (
        "record.sqlite*",
        "online",
        "online/state",
        "online/queue.sqlite*",
        "snapshots",
        "processes",
        "update_*",
    ),
}
PROCESSES = {"training": ("training",), "online": ("worker", "engine")}
NOBODY = 65534
PAUSE_S = 3.0


def _deleted(run_dir: Path, pattern: str) -> None:
    for path in run_dir.glob(pattern):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _aged(run_dir: Path) -> None:
    """Move every time in the run's files a day into the future, as if the clock had been set back."""
    for path in run_dir.rglob("*.json"):
        if "checkpoints" not in path.parts and "snapshots" not in path.parts:
            values = json.loads(path.read_bytes())
            later = {k: v + 86_400 for k, v in values.items() if isinstance(v, float) and v > 1e9}
            path.write_text(json.dumps(values | later))
    with contextlib.closing(sqlite3.connect(run_dir / "record.sqlite")) as db, db:
        for table in ("events", "steps"):
            db.execute(f"UPDATE {table} SET time = time + 86400")


def _pause(process: str, run_dir: Path) -> None:
    """Suspend a process for some seconds once it runs."""
    old, until = _json(run_dir / "processes" / f"{process}.json").get("pid"), time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        status = _json(run_dir / "processes" / f"{process}.json")
        if status.get("status") == "running" and status.get("pid") not in (None, old):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(status["pid"]), signal.SIGSTOP)
                time.sleep(PAUSE_S)
                os.kill(int(status["pid"]), signal.SIGCONT)
            return
        time.sleep(0.01)


def usual_lines(kind: str, source: Path, folder: Path) -> set[str]:
    """Return the commands' output for an undamaged run. Raises SystemExit if one fails."""
    kept = folder / f"{kind}.usual.json"
    if kept.exists():
        return set(json.loads(kept.read_text()))
    case, row = Case(kind, source, folder / "case", set()), Row(kind, "nothing", "")
    wrong = look_at(case)
    JUDGES[kind](case, row)
    if wrong or row.wrong:
        raise SystemExit(f"the undamaged {kind}: {wrong + row.wrong} {row.outcome}\n" + "\n".join(case.lines))
    usual = sorted({_plain(line) for line in case.lines})
    kept.write_text(json.dumps(usual))
    return set(usual)


JUDGES = {"training": judge_training, "online": judge_online}
MAKERS = {"training": make_training, "online": make_online}


def tried(kind: str, folder: Path, given: argparse.Namespace, until: float) -> int:
    """Try the remaining cases. Returns the number of wrong ones."""
    source = folder / kind / "base"
    if not (folder / kind / "made").exists():
        shutil.rmtree(folder / kind, ignore_errors=True)
        MAKERS[kind](folder / kind)
        (folder / kind / "made").touch()
    usual, wrong = usual_lines(kind, source, folder), 0
    done = {(r["run"], r["file"], r["damage"]) for r in _found(folder)}
    for trouble in _wanted(troubles(kind, source), given.files, given.damage.split(",")):
        if time.monotonic() > until:
            break
        file, damage = trouble.file, trouble.damage
        if (kind, file, damage) in done:
            continue
        began, row = time.monotonic(), Row(kind, file, damage)
        case = Case(kind, source, folder / "case", usual, trouble)
        row.wrong += look_at(case)
        JUDGES[kind](case, row)
        row.said = case.said()
        row.wrong += [f"said {line.strip()!r}" for line in case.lines if WRONG.search(line)]
        row.seconds = time.monotonic() - began
        with (folder / "rows.jsonl").open("a") as out:
            out.write(json.dumps(asdict(row)) + "\n")
        wrong += bool(row.wrong)
        end_all(case.folder)
        print(f"{'WRONG ' + str(row.wrong) if row.wrong else 'ok':8} {file} {damage}: {row.outcome}", flush=True)
        for line in row.said[:6]:
            print(f"         | {line.strip()[:240]}", flush=True)
    return wrong


def _wanted(all_of_them: Iterable[Trouble], files: str, damages: Sequence[str]) -> list[Trouble]:
    """Select the requested cases, in the order of the damage patterns."""
    those = [t for t in all_of_them if fnmatch(t.file, files)]
    found = [t for pattern in damages for t in those if fnmatch(t.damage, pattern)]
    return list(dict.fromkeys(found))


def table(folder: Path) -> str:
    """Format all cases as a Markdown table, with equal outcomes of one file in one row."""
    kept: dict[tuple[str, ...], list[str]] = {}
    for row in _found(folder):
        file = re.sub(r"\d+-\d+\.[0-9a-f]{32}|[0-9a-f]{16}(?=-\d)", "…", row["file"])
        outcome = re.sub(r", version \d+ to \d+", "", row["outcome"]) + "".join(f"; WRONG: {w}" for w in row["wrong"])
        kept.setdefault((row["run"], file, outcome, _sentence(row["said"])), []).append(row["damage"])
    lines = ["| run | file | damage | what happens | what is said |", "|---|---|---|---|---|"]
    for (run, file, outcome, sentence), damages in kept.items():
        every = len(damages) == len(DAMAGE)
        said = sentence.replace("|", "\\|")
        lines.append(f"| {run} | {file} | {'any' if every else ', '.join(damages)} | {outcome} | {said} |")
    return "\n".join(lines)


def _sentence(said: list[str]) -> str:
    """Return the most specific line about the damage, without names and numbers."""
    rated = [line for line in said if re.search(r"damag|los[st]|missing|error|cannot|no such|not as|whole|gone", line)]
    text = re.sub(r"^(error: |! )?(step \d+: )?", "", min(rated, key=len)).strip() if rated else ""
    text = re.sub(r"/\S*/runs/base/", "", text)
    return re.sub(r"\(.*?\)|\d+-\d+\.[0-9a-f]{32}", "…", text)


def _found(folder: Path) -> list[dict[str, Any]]:
    return [found for line in _lines(folder / "rows.jsonl") if (found := _parsed(line))]


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", choices=sorted(MAKERS), action="append")
    parser.add_argument("--files", default="*", help="which files, as a pattern")
    parser.add_argument("--damage", default="*", help="which damages first, patterns with commas: " + ", ".join(DAMAGE))
    parser.add_argument("--seconds", type=float, default=480, help="no further case is begun after this")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--table", action="store_true", help="only print what was found")
    given = parser.parse_args()
    folder = given.folder.resolve()
    if given.table:
        print(table(folder))
        return int(any(row["wrong"] for row in _found(folder)))
    folder.mkdir(parents=True, exist_ok=True)
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    until = time.monotonic() + given.seconds
    return int(sum(tried(kind, folder, given, until) for kind in given.run or MAKERS) > 0)


if __name__ == "__main__":
    sys.exit(main())
