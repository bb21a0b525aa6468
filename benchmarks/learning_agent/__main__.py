"""`python -m benchmarks.learning_agent`; see the package."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from openai import OpenAI

from benchmarks.feedback import served
from benchmarks.mechanisms import KeptRows, interval
from grpo_tui.engine.demonstration.visual.env import VisualEnv
from grpo_tui.engine.online.store.sqlite_queue import SqliteQueue
from grpo_tui.engine.runs.paths import OnlineFolder

from . import __doc__ as about
from .agent import Agent, Solved
from .policy import save_policy

HOME = Path("~/.cache/grpo-tui").expanduser()
RESULTS = HOME / "learning_agent.jsonl"
POLICY = HOME / "learning-agent-policy"
USERS = 8
SETTINGS = {
    "online.learn_from": "feedback",
    "online.max_trajectory_tokens": 384,
    "online.validation.enabled": False,  # no held-out tasks, and this policy does not know English texts
}


class Users:
    """Eight users of one agent who rate its answers."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._openai = OpenAI(base_url=f"{client.base_url}/v1", api_key="any", timeout=1200)
        self._agent = Agent(self._openai, VisualEnv(prompt_style="terse"))

    def success(self, tasks: Sequence[Mapping[str, Any]], model: str) -> float:
        """Return the share of right answers, without feedback."""
        with ThreadPoolExecutor(USERS) as pool:
            return statistics.fmean(pool.map(lambda task: self._agent.solve(task, model, "held-out").right, tasks))

    def run(self, tasks: Sequence[Mapping[str, Any]], model: str) -> list[Solved]:
        """Let the agent solve the tasks, and rate each answer."""
        began, rights = time.monotonic(), list[bool]()

        def one(number: int) -> Solved:
            user = f"user-{number % USERS}"
            solved = self._agent.solve(tasks[number], model, user)
            self._rate(solved, user)
            rights.append(solved.right)
            if len(rights) % 100 == 0:
                share = statistics.fmean(rights[-100:])
                print(f"  {len(rights)} conversations, {share:.2f} right, {time.monotonic() - began:.0f} s", flush=True)
            return solved

        with ThreadPoolExecutor(USERS) as pool:
            return list(pool.map(one, range(len(tasks))))

    def _rate(self, solved: Solved, user: str) -> None:
        """Send the verdict and wait until an update has used it, like a user who asks again later."""
        verdict = {"id": solved.id, "verdict": "right" if solved.right else "wrong", "source": user}
        self._client.post("/v1/feedback", json=verdict).raise_for_status()
        while "waits" in self.outcome(solved.id).get("reason", ""):
            time.sleep(0.3)

    def outcome(self, answer: str) -> dict[str, Any]:
        """Return the outcome of a verdict so far."""
        return self._client.get(f"/v1/feedback/{answer}").raise_for_status().json()


def measure(seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Measure one row."""
    began, base = time.monotonic(), str(POLICY)
    env = VisualEnv()
    tasks, held = env.make_tasks("train", given.conversations, seed), env.make_tasks("eval", given.held_out, seed)
    with served(base, {"seed": seed, **SETTINGS, **json.loads(given.set)}) as (client, run_dir):
        users = Users(client)
        before = users.success(held, f"{base}@0")
        print(f"seed {seed}: {before:.3f} before, {time.monotonic() - began:.0f} s", flush=True)
        solved = users.run(tasks, base)
        asked = time.monotonic() - began
        queue = SqliteQueue(OnlineFolder(run_dir).queue)
        updates = int(queue.get("update", 0))
        queue.close()
        version = _settled(client)
        after = users.success(held, base)
        quarter = len(solved) // 4
        rows = [json.loads(line) for line in (run_dir / "update_contribution.jsonl").read_text().splitlines()]
        return {
            "seed": seed,
            "before": before,
            "after": after,
            "quarters": [statistics.fmean(s.right for s in solved[i * quarter : (i + 1) * quarter]) for i in range(4)],
            "turns": [statistics.fmean(s.turns for s in part) for part in (solved[:quarter], solved[-quarter:])],
            "updates": updates,
            "version": version,
            "kl_start": next((row["kl_start"] for row in reversed(rows) if "kl_start" in row), None),
            "rejected": sum(bool(row.get("rejected")) for row in rows),
            "asked_s": asked,
            "seconds": time.monotonic() - began,
        }


def _settled(client: httpx.Client, quiet_s: float = 15.0) -> int:
    """Wait until no new version has appeared for a while, and return the last one."""
    version, since = -1, time.monotonic()
    while time.monotonic() - since < quiet_s:
        if (now := int(client.get("/health").json()["policy_version"])) != version:
            version, since = now, time.monotonic()
        time.sleep(1)
    return version


def summary(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print means and intervals over the seeds."""
    columns = ("seeds", "updates", "before", "after", "gain", "first quarter", "last quarter", "minutes")
    print(f"\n| {' | '.join(columns)} |\n" + "|---" * len(columns) + "|")
    measured = [
        [r["before"] for r in rows],
        [r["after"] for r in rows],
        [r["after"] - r["before"] for r in rows],
        [r["quarters"][0] for r in rows],
        [r["quarters"][-1] for r in rows],
    ]
    updates, seconds = (statistics.fmean(r[name] for r in rows) for name in ("updates", "seconds"))
    cells = [str(len(rows)), f"{updates:.0f}", *map(interval, measured), f"{seconds / 60:.0f}"]
    print(f"| {' | '.join(cells)} |")


def main() -> None:
    """Measure missing rows and print the table."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--conversations", type=int, default=1000)
    parser.add_argument("--held-out", type=int, default=100)
    parser.add_argument("--set", default="{}", help="JSON of settings by dotted key, for trials")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    if not (POLICY / "config.json").exists():
        save_policy(POLICY)
    kept, shown = KeptRows(given.results), []
    for seed in given.seeds:
        key = ["verdicts", seed, given.conversations, given.held_out, given.set]
        row, new = kept.get(key, partial(measure, seed, given))
        shown.append(row)
        if new:
            print(json.dumps(row), flush=True)
    summary(shown)


if __name__ == "__main__":
    main()
