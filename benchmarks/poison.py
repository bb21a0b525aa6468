"""Poisoned streams: `python -m benchmarks.poison [--arms repeat-300,wrong-100] [--folder DIR --seconds 300]`.

A policy from a short offline training serves and learns from labels that are forced wrong: 10, 50 or 100 % of a
stream of different requests, one request again and again, two requests in turn. Each stream once with the guards of
the defaults and once without them (no validation, repetitions and sources count in full). Engine, queue, worker and
validation are the real ones, in one process so that a run can be repeated; the result of a validation arrives `--lag`
updates after it was asked for, as it does from a process of low priority.

Success is greedy, of each version that answers, on the tasks that validation uses; at the start and at the end also on
others that nothing else uses. A row: the start, the best so far, the lowest that ever answered, and how far that was
below the best at its time. Required with guards: never more than 5 points.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.online import force_wrong, offline
from grpo_tui.configs.schema import RunConfig
from grpo_tui.engine.agents.transformers_agent import TransformersAgent
from grpo_tui.engine.online.learn.influence import Influence
from grpo_tui.engine.online.learn.policy_update import PolicyUpdater
from grpo_tui.engine.online.learn.update_worker import UpdateWorker
from grpo_tui.engine.online.learn.validation import Validator
from grpo_tui.engine.online.process import load_serving_policy
from grpo_tui.engine.online.serve.inference_engine import InferenceEngine
from grpo_tui.engine.online.serve.requests import Request
from grpo_tui.engine.online.serve.weights import WeightFollower
from grpo_tui.engine.online.store.snapshots import SnapshotReader
from grpo_tui.engine.online.voting import Vote
from grpo_tui.engine.rollouts.dataset import load_rows
from grpo_tui.engine.rollouts.evaluation import evaluate
from grpo_tui.engine.rollouts.runner import RolloutRunner, Row
from grpo_tui.engine.runs.paths import OnlineFolder
from grpo_tui.engine.training.checkpoints import load_rewards, save_rewards
from grpo_tui.rewards.orchestrator import RewardOrchestrator

GUARDS_OFF: dict[str, Any] = {"validation": {"enabled": False}, "source_share": 1.0}
REQUIRED = 0.05
OTHER_TASKS = 128
EVERY_UPDATES = 48
"""Updates between two measured versions if every update is published."""
BATCH = 8
"""Requests to answer together."""


@dataclass(frozen=True)
class Stream:
    """A stream of requests. `different`: the number of distinct requests, in rotation (0: all are distinct). `wrong`:
    the share of labels forced to be wrong."""

    requests: int
    different: int
    wrong: float


ARMS = {
    "wrong-10": Stream(120, 0, 0.1),
    "wrong-50": Stream(120, 0, 0.5),
    "wrong-100": Stream(120, 0, 1.0),
    "repeat-300": Stream(300, 1, 1.0),
    "repeat-500": Stream(500, 1, 1.0),
    "coalition-200": Stream(200, 2, 1.0),
}


class PoisonedEngine(InferenceEngine):
    """Serves normally, but forces wrong labels for a share of the requests."""

    wrong = 0.0

    def vote(self, request: Any, samples: Sequence[Any], neighbours: Sequence[Any]) -> Vote:
        """Vote, then replace the labels."""
        return force_wrong(
            super().vote(request, samples, neighbours), samples, f"{self.seed} {request.number}", self.wrong
        )


@dataclass
class Progress:
    """The progress of a stream, which may be served in several parts, and the success of its versions."""

    request: int = 1
    measured: int = -1
    """The update of the last measured version."""
    waited: int = 0
    back: int = 0
    seconds: float = 0.0
    other_start: float = 0.0
    best: float = 0.0
    drop: float = 0.0
    """The largest drop of a serving version below the best before it."""
    success: list[float] = field(default_factory=list)

    def add(self, success: float) -> None:
        """Record the success of a new serving version."""
        self.best = max(self.best, success)
        self.success.append(success)
        self.drop = max(self.drop, self.best - success)


def run(
    arm: str, guards: bool, adapters: str, lag: int, settings: dict[str, Any], folder: Path, until: float
) -> dict[str, Any] | None:
    """Serve or continue one stream. Returns None if time runs out before its end.

    Between two parts, the worker's state is as after a kill following a commit. The reward statistics are saved, too.
    """
    began = time.monotonic()
    kept = folder / "progress.json"
    progress = Progress(**json.loads(kept.read_text())) if kept.exists() else Progress()
    stream = ARMS[arm]
    online = {
        "neighbours": 0,
        "samples": 4,
        **settings.get("online", {}),
        **({} if guards else GUARDS_OFF),
    }
    model = {**settings.get("model", {}), "sft_adapters": adapters}
    config = RunConfig.model_validate({"mode": "online", **settings, "model": model, "online": online})
    torch.manual_seed(config.seed)
    served_model, tokenizer = load_serving_policy(config)
    learning_model, judged_model = load_serving_policy(config)[0], load_serving_policy(config)[0]
    engine, runner = _engine(config, served_model, tokenizer, stream.wrong), _runner(config, judged_model, tokenizer)
    rows, own_rows, other_rows = _tasks(config, stream, tokenizer)
    paths = OnlineFolder(folder)
    validator = Validator(paths, judged_model, runner, own_rows, [], config.online.samples)
    told: list[str] = []
    updater = PolicyUpdater(learning_model, config.online)
    if not guards:
        updater.influence = Influence(1.0, window=1)
    worker = UpdateWorker(updater, paths, config.online, base_model="tiny", tell=told.append)
    follower = WeightFollower(served_model, SnapshotReader(paths.snapshots), poll_s=1.0)

    def success(tasks: Sequence[Row]) -> float:
        """Measure the greedy success of the serving version."""
        tensors = {n: p.data for n, p in served_model.named_parameters() if p.requires_grad}
        for name, parameter in validator.parameters.items():
            parameter.data.copy_(tensors[name])
        return evaluate(runner, tasks, temperature=0.0).success

    def look(*, last: bool = False) -> None:
        """Serve the newest version. Measure it if it is new and, without guards, enough updates have passed."""
        follower.look()
        follower.swap()
        update = SnapshotReader(paths.snapshots).manifest(follower.version).update if follower.version else 0
        before = progress.measured
        if before < 0 or (update != before and (guards or last or update >= before + EVERY_UPDATES)):
            progress.measured = update
            progress.add(success(own_rows))
            print(
                f"{arm}: update {worker.updater.update}, version {follower.version} at {progress.success[-1]:.2f}",
                file=sys.stderr,
                flush=True,
            )

    if kept.exists():
        load_rewards(engine.orchestrator, folder)
    look()
    if not kept.exists():
        progress.other_start = success(other_rows)
    numbers = iter(range(progress.request, stream.requests + 1))
    while batch := [Request(rows[(n - 1) % len(rows)], number=n) for n in islice(numbers, BATCH)]:
        for item in engine.learn(engine.answer(batch, follower.version)):
            if item.task is not None:
                worker.queue.put(item.task.id, item.task.to_bytes(), item.task.policy_version)
        while worker.step():
            progress.waited = progress.waited + 1 if guards and worker.queue.get("candidate") is not None else 0
            if guards and progress.waited > lag:
                while validator.go_on(worker.queue):
                    continue
                worker.publisher.validate()
                progress.waited = 0
        look()
        if time.monotonic() > until:
            worker.ledger.commit()
            worker.abandon()
            progress.request = batch[-1].number + 1
            progress.back += sum("learning returns" in message for message in told)
            progress.seconds += time.monotonic() - began
            save_rewards(engine.orchestrator, folder)
            kept.write_text(json.dumps(asdict(progress)))
            return None
    look(last=True)
    row = {
        "arm": arm,
        "guards": guards,
        "updates": worker.updater.update,
        "rejected": len(worker.queue.tasks("rejected")),
        "back": progress.back + sum("learning returns" in message for message in told),
        "versions": worker.writer.version,
        "start": progress.success[0],
        "best": progress.best,
        "lowest": min(progress.success),
        "end": progress.success[-1],
        "drop": progress.drop,
        "other_start": progress.other_start,
        "other_end": success(other_rows),
        "beta": worker.updater.beta.beta,
        "seconds": progress.seconds + time.monotonic() - began,
    }
    worker.close()
    return row


def _engine(config: RunConfig, model: Any, tokenizer: Any, wrong: float) -> PoisonedEngine:
    orchestrator = RewardOrchestrator(config=config.rewards, seed=config.seed)
    engine = PoisonedEngine(model, _runner(config, model, tokenizer), orchestrator, config.online, seed=config.seed)
    engine.wrong = wrong
    return engine


def _runner(config: RunConfig, model: Any, tokenizer: Any) -> RolloutRunner:
    online = config.online
    agent = TransformersAgent(
        model,
        tokenizer,
        temperature=online.temperature,
        max_turn_tokens=online.max_turn_tokens,
        max_trajectory_tokens=online.max_trajectory_tokens,
    )
    return RolloutRunner(agent, tokenizer, online.samples)


def _tasks(config: RunConfig, stream: Stream, tokenizer: Any) -> tuple[list[Row], list[Row], list[Row]]:
    """Return the stream's requests, the validation tasks as the validation process selects them, and other tasks."""
    settings = config.online.validation
    held = settings.tasks + settings.canary_tasks
    count = stream.different or stream.requests
    requests = load_rows(config.environment.model_copy(update={"train_tasks": count}), "train", config.seed, tokenizer)
    tasks = load_rows(
        config.environment.model_copy(update={"eval_tasks": held + OTHER_TASKS}), "eval", config.seed, tokenizer
    )
    return list(requests), tasks[settings.canary_tasks : held], tasks[held:]


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--guards", default="on,off")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lag", type=int, default=16, help="updates from a candidate to its validation")
    parser.add_argument("--offline-steps", type=int, default=20)
    parser.add_argument("--adapters", help="a policy to begin with, in place of an offline training")
    parser.add_argument("--set", default="{}", help="JSON merged into the configuration")
    parser.add_argument(
        "--folder", type=Path, help="keep the policy and the rows here; rows that are there are not made"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no further stream is begun after this")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        rows = list(_rows(given, given.folder or Path(name)))
    print(_HEAD, *(_line(row) for row in rows), sep="\n")
    worst = max((row["drop"] for row in rows if row["guards"]), default=0.0)
    print(
        f"largest drop below the best validated with guards: {100 * worst:.1f} points (required: {100 * REQUIRED:.0f})"
    )


def _rows(given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the requested rows: saved ones, and new ones while time remains."""
    until = time.monotonic() + given.seconds
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"rows-{given.seed}.jsonl"
    known = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    settings = {"seed": given.seed, **json.loads(given.set)}
    for arm in given.arms.split(","):
        for guards in (g == "on" for g in given.guards.split(",")):
            row = next((r for r in known if (r["arm"], r["guards"]) == (arm, guards)), None)
            if row is None and time.monotonic() < until:
                run_dir = folder / f"{arm}-{'on' if guards else 'off'}-{given.seed}"
                row = run(arm, guards, _policy(given, folder), given.lag, settings, run_dir, until)
                if row is not None:
                    with kept.open("a") as file:
                        file.write(json.dumps(row) + "\n")
            if row is not None:
                yield row


def _policy(given: argparse.Namespace, folder: Path) -> str:
    """Return the starting adapters, training them once."""
    made = folder / f"adapters-{given.seed}"
    if given.adapters is None and not made.exists():
        offline(folder, given.offline_steps, given.seed, {})
    return given.adapters or str(made)


_HEAD = (
    f"{'stream':<15}{'guards':<8}{'updates':>8}{'undone':>8}{'back':>6}{'versions':>9}{'start':>8}{'best':>7}"
    f"{'lowest':>8}{'end':>6}{'drop':>7}   other tasks: start, end      s"
)


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['arm']:<15}{'on' if row['guards'] else 'off':<8}{row['updates']:>8}{row['rejected']:>8}{row['back']:>6}"
        f"{row['versions']:>9}{row['start']:>8.2f}{row['best']:>7.2f}{row['lowest']:>8.2f}{row['end']:>6.2f}"
        f"{100 * row['drop']:>7.1f}{row['other_start']:>21.2f}{row['other_end']:>6.2f}"
        f"{row['seconds']:>7.0f}"
    )


if __name__ == "__main__":
    main()
