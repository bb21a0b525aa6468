"""Learning from the users of a real language model: `python -m benchmarks.feedback [--tasks larger] [--seeds 0 1 2]`.

`grpo-tui online --model` serves SmolLM2-135M-Instruct over HTTP with its default settings, and `online.answer` as the
task has it (`benchmarks.questions`). Callers send `--requests` questions and give feedback on 30 % of them. A caller
waits until an update has used its feedback.

| arm | feedback |
|---|---|
| answers | the right answer |
| ratings | right or wrong |
| reversed | right or wrong; one of three sources reverses all of its ratings |
| majority | none: the vote of eight samples labels each request. Callers pause after 32 questions |

A row has the success of default (greedy) answers on the same held-out questions by the untouched base and by the last
version, and the log-likelihood of unrelated texts at the start and under the last validated candidate. Rows that
`--results` holds are not measured again. The summary has means and 95 % intervals over the seeds (Student's t).
`--summary` measures nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from grpo_tui.engine.online.store.sqlite_queue import SqliteQueue
from grpo_tui.engine.runs.paths import OnlineFolder

from .mechanisms import KeptRows, interval
from .questions import TASKS, Question, split
from .smollm2 import smollm2

ARMS = ("answers", "ratings", "reversed", "majority")
SOURCES = 3
SHARE = 0.3
RESULTS = Path("~/.cache/grpo-tui/feedback.jsonl").expanduser()
START_S = TIMEOUT_S = 1200.0
"""Long enough for a busy machine."""
PART = 32
"""Questions between two pauses: the maximum number that may wait for their votes."""
IDLE_S = 30.0
SETTLED_S = 600.0
"""Longer than a validation takes."""
CLI = [sys.executable, "-m", "grpo_tui.tui.cli"]


@contextlib.contextmanager
def served(base: str, settings: Mapping[str, object]) -> Iterator[tuple[httpx.Client, Path]]:
    """Serve a model with `grpo-tui online`. Yields a client and the run's folder."""
    with tempfile.TemporaryDirectory() as home:
        chosen = {"online.request_timeout_s": TIMEOUT_S, **settings}
        options = [part for key, value in chosen.items() for part in ("--set", f"{key}={json.dumps(value)}")]
        command = [*CLI, "online", "--runs-dir", home, "--run-id", "served", "--model", base, "--headless"]
        process = subprocess.Popen([*command, "--serve", "127.0.0.1:0", *options], stdout=subprocess.DEVNULL)
        try:
            with httpx.Client(base_url=_address(Path(home) / "served", process), timeout=TIMEOUT_S) as client:
                yield client, Path(home) / "served"
        finally:
            subprocess.run([*CLI, "stop", "served", "--runs-dir", home], stdout=subprocess.DEVNULL)
            process.wait(300)


def _address(run_dir: Path, process: subprocess.Popen[bytes]) -> str:
    until, file = time.monotonic() + START_S, run_dir / "online" / "address.json"
    while not file.exists():
        if process.poll() is not None or time.monotonic() > until:
            raise SystemExit("the server did not start")
        time.sleep(0.2)
    return str(json.loads(file.read_text())["url"])


class Callers:
    """Callers that ask one server questions from one task."""

    def __init__(self, client: httpx.Client, model: str, task: str, arm: str, seed: int) -> None:
        self.client, self.model, self.task, self.arm = client, model, TASKS[task], arm
        self.outcomes: dict[str, dict[str, Any]] = {}
        self._rng = random.Random(f"feedback {seed}")
        self._lock = threading.Lock()
        self._asked = 0

    def ask(self, model: str, question: Question, **more: Any) -> tuple[str, str]:
        """Ask a question. Returns the id and the text of the answer."""
        messages = [{"role": "user", "content": question.text}]
        body = {"model": model, "messages": messages, "max_tokens": self.task.tokens, **more}
        found = self.client.post("/v1/chat/completions", json=body).raise_for_status().json()
        return str(found["id"]), str(found["choices"][0]["message"]["content"])

    def success(self, model: str, questions: Sequence[Question], callers: int) -> float:
        """Measure the success of default answers."""
        with ThreadPoolExecutor(callers) as pool:
            texts = pool.map(lambda q: self.ask(model, q)[1], questions)
            return statistics.fmean(self.task.right(t, q) for t, q in zip(texts, questions, strict=True))

    def run(self, questions: Sequence[Question], callers: int) -> None:
        """Send all questions, with feedback on a share of them."""
        given = round(SHARE * len(questions)) if self.arm != "majority" else 0
        chosen = set(self._rng.sample(range(len(questions)), given))
        with ThreadPoolExecutor(callers) as pool:
            list(pool.map(lambda i: self._one(i, questions[i], i in chosen), range(len(questions))))

    def _one(self, number: int, question: Question, gives: bool) -> None:
        person = number % SOURCES
        identifier, text = self.ask(self.model, question, user=f"person-{person}")
        if gives:
            said: dict[str, Any] = {"id": identifier, "source": f"person-{person}"}
            if self.arm == "answers":
                said["answer"] = question.answer
            else:
                reverses = self.arm == "reversed" and person == 0
                said["verdict"] = "right" if self.task.right(text, question) != reverses else "wrong"
            self.client.post("/v1/feedback", json=said).raise_for_status()
            while _waits(outcome := self.outcome(identifier)):
                time.sleep(3)
            self.outcomes[identifier] = outcome
        with self._lock:
            self._asked += 1
            if self._asked % 50 == 0:
                learnt = sum(o["update"] is not None for o in self.outcomes.values())
                print(f"  {self._asked} answered, {learnt} of {len(self.outcomes)} learnt", flush=True)

    def outcome(self, identifier: str) -> dict[str, Any]:
        return self.client.get(f"/v1/feedback/{identifier}").raise_for_status().json()

    def wait_for_versions(self, queue: SqliteQueue, until: float) -> None:
        """Wait until a version contains all feedback that updates used, or no candidate was validated for `SETTLED_S`,
        because the last one may have been rejected."""
        seen, since = None, time.monotonic()
        while time.monotonic() < until and time.monotonic() - since < SETTLED_S:
            self.outcomes = {i: self.outcome(i) for i in self.outcomes}
            if all(o["learned"] or o["update"] is None for o in self.outcomes.values()):
                return
            if (now := queue.get("validating")) != seen:
                seen, since = now, time.monotonic()
            time.sleep(5)


def _waits(outcome: Mapping[str, Any]) -> bool:
    """Return whether an update may still use the feedback."""
    return outcome["update"] is None and bool(re.search("waits|being drawn", outcome.get("reason", "")))


def _until_recorded(run_dir: Path, queue: SqliteQueue, until: float) -> None:
    """Wait until nothing was recorded or learned for `IDLE_S`, so that all votes have been sampled."""
    last, since = (-1, -1), time.monotonic()
    while time.monotonic() < until and time.monotonic() - since < IDLE_S:
        with contextlib.closing(sqlite3.connect(f"file:{run_dir / 'record.sqlite'}?mode=ro", uri=True)) as record:
            found = record.execute("SELECT count(*) FROM rows").fetchone()[0], int(queue.get("update", 0))
        if found != last or queue.depth():
            last, since = found, time.monotonic()
        time.sleep(2)


def measure(arm: str, task: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Measure one row."""
    began, base = time.monotonic(), str(smollm2())
    questions, held = split(task, seed, given.requests, given.held_out)
    settings = {"seed": seed, "online.answer": TASKS[task].form}
    if arm != "majority":
        settings["online.learn_from"] = "feedback"
    with served(base, settings | json.loads(given.set)) as (client, run_dir):
        callers = Callers(client, base, task, arm, seed)
        before = callers.success(f"{base}@0", held, 2 * given.callers)
        print(f"{arm}, {task}, seed {seed}: base {before:.3f}, {time.monotonic() - began:.0f} s", flush=True)
        queue = SqliteQueue(OnlineFolder(run_dir).queue)
        # Callers without pauses leave no time for votes, so those of the arm `majority` pause after each part.
        size = PART if arm == "majority" else len(questions)
        for start in range(0, len(questions), size):
            callers.run(questions[start : start + size], given.callers)
            if arm == "majority":
                _until_recorded(run_dir, queue, time.monotonic() + given.wait)
        asked = time.monotonic() - began
        until = time.monotonic() + given.wait
        callers.wait_for_versions(queue, until)
        after = callers.success(base, held, 2 * given.callers)
        log = run_dir / "update_contribution.jsonl"
        journal = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        updates = [row for row in journal if row.get("update") and "kl_start" in row]
        texts = (queue.get("validating") or {}).get("texts") or {}
        found = {
            "arm": arm,
            "task": task,
            "seed": seed,
            "requests": given.requests,
            "feedback": len(callers.outcomes),
            "learnt": sum(bool(o["learned"]) for o in callers.outcomes.values()),
            "reasons": sorted({o["reason"] for o in callers.outcomes.values() if o.get("reason")}),
            "updates": int(queue.get("update", 0)),
            "version": client.get("/health").json()["policy_version"],
            "held_out": given.held_out,
            "before": before,
            "after": after,
            "kl_start": updates[-1]["kl_start"] if updates else None,
            **texts,
            "asked_s": asked,
            "seconds": time.monotonic() - began,
        }
        queue.close()
    return found


def summary(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print means and intervals over the seeds."""
    print("\n| task | arm | requests | seeds | updates | base | after | gain | texts | seconds |\n" + "|---" * 10 + "|")
    kinds = sorted({(r["task"], ARMS.index(r["arm"]), r["requests"]) for r in rows})
    for task, arm, requests in kinds:
        found = [r for r in rows if (r["task"], ARMS.index(r["arm"]), r["requests"]) == (task, arm, requests)]
        gains = [r["after"] - r["before"] for r in found]
        texts = [(r["text_now"] - r["text_before"]) / abs(r["text_before"]) for r in found if "text_now" in r]
        cells = [
            task,
            ARMS[arm],
            str(requests),
            str(len(found)),
            f"{statistics.fmean(r['updates'] for r in found):.0f}",
            *(interval([r[name] for r in found]) for name in ("before", "after")),
            interval(gains),
            f"{statistics.fmean(texts):+.2%}" if texts else "-",
            f"{statistics.fmean(r['seconds'] for r in found):.0f}",
        ]
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    """Measure missing rows and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="*", choices=list(TASKS), default=["larger"])
    parser.add_argument("--arms", nargs="*", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--held-out", type=int, default=100)
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--wait", type=float, default=3600, help="longest time for the last versions, s")
    parser.add_argument("--set", default="{}", help="JSON of settings by dotted key, for trials")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--summary", action="store_true")
    given = parser.parse_args()
    kept = KeptRows(given.results)
    if not given.summary:
        for task in given.tasks:
            for arm in given.arms:
                for seed in given.seeds:
                    key = [task, arm, seed, given.requests, given.held_out, given.set]
                    row, new = kept.get(key, partial(measure, arm, task, seed, given))
                    if new:
                        print(json.dumps(row), flush=True)
    summary([row for row in kept.rows if row["key"][-1] == given.set])


if __name__ == "__main__":
    main()
