"""How fast a large dump opens: makes verl JSONL of a size, then measures first paint's share, the index, and reading.

python benchmarks/dump.py --gigabytes 10 --folder /tmp/big
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import time
from pathlib import Path

from grpo_tui.engine.imports import cache
from grpo_tui.engine.imports.dump import Options
from grpo_tui.engine.imports.index import Indexer
from grpo_tui.engine.imports.opening import open_dump
from grpo_tui.engine.imports.readers import open_reader

SENTENCE = "the policy looks at the image and segments what it needs before it answers with one word"


def make(path: Path, size: int, rollout: int) -> None:
    """Lines of about `rollout` bytes until the file has `size`."""
    text = (SENTENCE + "\n") * (rollout // 90)
    with path.open("wb") as out:
        n = 0
        while out.tell() < size:
            row = {"input": f"user\nquestion {n // 8}\nassistant\n", "output": f"{n} {text}", "gts": "a"}
            row |= {"score": n % 8 / 7, "step": n // 1024, "uid": f"g{n // 8}_{n % 8}_0"}
            out.write(json.dumps(row).encode() + b"\n")
            n += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--kilobytes", type=float, default=16, help="of one rollout")
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("XDG_CACHE_HOME", str(given.folder / "cache"))
    file = given.folder / "rollouts.jsonl"
    size = int(given.gigabytes * 1e9)
    if not file.exists() or file.stat().st_size < size:
        make(file, size, int(given.kilobytes * 1e3))
    cache.forget(cache.folder_of(file, Options()))
    start = time.perf_counter()
    opened = open_dump(file)
    reader = open_reader(opened.folder)
    rows = len(reader.rollouts.page(limit=100))
    print(f"first rows: {time.perf_counter() - start:.3f} s ({rows} rows)")
    waits: list[float] = []
    start, used = time.perf_counter(), time.process_time()
    with Indexer(file, opened.folder) as indexer:
        n = 1
        while indexer.advance(0.5):
            begun = time.perf_counter()
            reader.bodies.trajectory(n)
            waits.append(time.perf_counter() - begun)
            n = n % reader.rollouts.total() + 1
    wall, used = time.perf_counter() - start, time.process_time() - used
    done = file.stat().st_size / 1e6
    print(f"index: {done / wall:.0f} MB/s of wall time, {done / used:.0f} MB/s of processor time")
    if waits:
        print(f"a rollout opened meanwhile: median {1000 * statistics.median(waits):.1f} ms")
    print(f"memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    reader.close()
    start = time.perf_counter()
    open_dump(file)
    print(f"second opening: {time.perf_counter() - start:.3f} s")


if __name__ == "__main__":
    main()
