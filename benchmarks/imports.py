"""How a large dump of another framework opens: makes one of a size, then opens it as a person does.

    python -m benchmarks.imports --gigabytes 10 --folder /tmp/big            # verl's JSON lines
    python -m benchmarks.imports --gigabytes 2 --folder /tmp/big --kind eval # inspect-ai's .eval

In a pseudo-terminal: from the command to the first rows, from one rollout to the next while the index is made behind
it, memory of the app and of its indexer, and all of it a second time. Then the index alone, in processor time of one
core, beside what reading the lines and parsing them costs at the least on this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import time
import zipfile
from pathlib import Path

import orjson
import psutil

from benchmarks.app import BARE, Session, inspect
from grpo_tui.engine.imports import cache
from grpo_tui.engine.imports.index import Indexer
from grpo_tui.engine.imports.options import Options

SENTENCE = "the policy looks at the image and segments what it needs before it answers with one word"
FIRST_ROWS = r"\d+ of [\d,]+"
CALL = '<tool_call>{"name": "look", "arguments": {"at": 3}}</tool_call>'


def make_lines(path: Path, size: int, rollout: int) -> None:
    """Write verl's JSON lines of about `rollout` bytes each until the file has `size` bytes."""
    text = (SENTENCE + "\n") * (rollout // 90)
    with path.open("wb") as out:
        n = 0
        while out.tell() < size:
            said = f"{n} {CALL}\nuser\n<tool_response>\n{n}\n</tool_response>\nassistant\n{text}"
            row = {"input": f"user\nquestion {n // 8}\nassistant\n", "output": said, "gts": "a"}
            row |= {"score": n % 8 / 7, "step": n // 1024, "uid": f"g{n // 8}_{n % 8}_0"}
            out.write(json.dumps(row).encode() + b"\n")
            n += 1


def make_eval(path: Path, size: int, rollout: int) -> None:
    """Write an inspect-ai log: one member per sample, with incompressible texts."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        eval_ = {"task": "big", "model": "mock/model", "metadata": {"step": 1}}
        archive.writestr("_journal/start.json", json.dumps({"version": 2, "eval": eval_}))
        n = 0
        while path.stat().st_size < size:
            text = os.urandom(rollout // 2).hex()
            messages = [{"role": "user", "content": f"question {n // 8}"}, {"role": "assistant", "content": text}]
            sample = {"id": n // 8, "epoch": n % 8 + 1, "input": f"question {n // 8}", "target": "a"}
            sample |= {"messages": messages, "scores": {"accuracy": {"value": n % 8 / 7}}, "output": {}}
            archive.writestr(f"samples/{n // 8}_epoch_{n % 8 + 1}.json", json.dumps(sample))
            n += 1
        archive.writestr("header.json", json.dumps({"version": 2, "status": "success", "eval": eval_}))


def opened(file: Path, state: str) -> tuple[Session, float]:
    """Open a file in the app. Returns the session at its first rows, and the seconds until then."""
    session = Session(inspect(file), state)
    session.until(FIRST_ROWS)
    return session, time.perf_counter() - session.began


def memory(session: Session) -> tuple[float, float]:
    """Return MiB of the app, and of its indexing process."""
    others = sum(p.memory_info().rss for p in session.process.children(recursive=True))
    return session.process.memory_info().rss / 2**20, others / 2**20


def as_a_person(file: Path, state: str, presses: int, *, wait: bool) -> None:
    cache.forget(cache.folder_of(file, Options()))
    bare = Session([sys.executable, "-c", BARE], state)
    bare.until("READY")
    paint = time.perf_counter() - bare.began
    bare.quiet(0.4)
    key = statistics.median(1000 * bare.press("L") for _ in range(20))
    bare.close()
    print(f"a bare Textual app on this machine now: first paint {paint:.2f} s, a key {key:.0f} ms")
    file.open("rb").read(1 << 20)
    session, paint = opened(file, state)
    print(f"first paint: {paint:.2f} s", flush=True)
    session.quiet(0.4)
    os.write(session.fd, b"\r")
    session.until(r"step 1 ")
    session.quiet(0.3)
    app, indexer = 0.0, 0.0
    times = []
    for _ in range(presses):
        times.append(1000 * session.press("L"))
        a, b = memory(session)
        app, indexer = max(app, a), max(indexer, b)
    times.sort()
    p95 = times[int(0.95 * len(times))]
    print(f"next rollout while the index is made: median {statistics.median(times):.0f} ms, p95 {p95:.0f} ms")
    os.write(session.fd, b"\x1b")
    while wait and session.process.children(recursive=True):
        session.quiet(0.2, limit=2.0)
        a, b = memory(session)
        app, indexer = max(app, a), max(indexer, b)
        if not any("indexing" in line for line in session.screen.display[:3]):
            break
    print(f"memory: app {app:.0f} MiB, indexer {indexer:.0f} MiB")
    session.close()
    session, paint = opened(file, state)
    print(f"second opening: {paint:.2f} s", flush=True)
    session.close()


def index_alone(file: Path, state: str) -> None:
    os.environ["XDG_CACHE_HOME"] = f"{state}/alone"
    size = file.stat().st_size / 1e6
    with Indexer(file, cache.folder_of(file, Options())) as indexer:
        began, used = time.perf_counter(), time.process_time()
        indexer.advance()
        wall, used = time.perf_counter() - began, time.process_time() - used
        rows = indexer.store.last_n()
    peak = psutil.Process().memory_info().rss / 2**20
    print(f"index alone: {rows:,} rollouts, {size / used:.0f} MB/s of processor time ({size / wall:.0f} of wall time)")
    print(f"  {used / max(rows, 1) * 1e6:.0f} µs a rollout; {peak:.0f} MiB at its end")
    shutil.rmtree(f"{state}/alone", ignore_errors=True)


def floors(file: Path, size: int = 1_000_000_000) -> None:
    """Measure the minimum cost of finding and parsing lines."""
    for name, work in (("newlines", None), ("orjson", orjson.loads)):
        done, used = 0, time.process_time()
        with file.open("rb") as lines:
            for line in lines:
                done += len(line)
                if work is not None:
                    work(line)
                if done > size:
                    break
        print(f"floor, {name}: {done / 1e6 / (time.process_time() - used):.0f} MB/s of processor time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--kind", choices=("lines", "eval"), default="lines")
    parser.add_argument("--kilobytes", type=float, help="of one rollout; 16 for lines, 200 for an eval")
    parser.add_argument("--presses", type=int, default=100)
    parser.add_argument("--paint-only", action="store_true", help="open it twice, and do not wait for the index")
    parser.add_argument("--folder", type=Path, required=True, help="for the file and its index; kept")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    size = int(given.gigabytes * 1e9)
    free = shutil.disk_usage(given.folder).free
    file = given.folder / ("rollouts.jsonl" if given.kind == "lines" else "big.eval")
    if not file.exists() or file.stat().st_size < size:
        if free < size * 1.3:
            parser.error(f"{given.folder} has {free / 1e9:.1f} GB free; {size * 1.3 / 1e9:.1f} are needed")
        kilobytes = given.kilobytes or (16 if given.kind == "lines" else 200)
        (make_lines if given.kind == "lines" else make_eval)(file, size, int(kilobytes * 1e3))
    state = str(given.folder / "state")
    os.environ["XDG_CACHE_HOME"] = f"{state}/cache"
    print(f"{file}: {file.stat().st_size / 1e9:.1f} GB on {os.cpu_count()} cores, Python {sys.version.split()[0]}")
    as_a_person(file, state, given.presses, wait=not given.paint_only)
    if given.paint_only:
        return
    index_alone(file, state)
    if given.kind == "lines":
        floors(file)


if __name__ == "__main__":
    main()
