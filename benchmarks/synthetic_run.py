"""Build a run of any size through the project's own writer, and measure reading it.

    python benchmarks/synthetic_run.py --trajectories 100000 --out DIR          # a run with trajectories
    python benchmarks/synthetic_run.py --metrics 40 --steps 20000 --out DIR     # a run with long curves
    python benchmarks/synthetic_run.py --read DIR/RUN                           # how fast it reads

The trajectories are made up but shaped like real ones: groups of eight, a policy that gets better, actions, penalties
with their sentences, common and rare words, and a few failures. They say nothing about training.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil

from grpo_tui.engine.runs.durable import write_json
from grpo_tui.engine.runs.paths import DATABASE, RUN_FILE
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.engine.runs.types import TrajectoryRecord
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.envs.tools import Argument, ToolSpec
from grpo_tui.envs.trajectory import Step, StepContext, TokenArrays, Trajectory
from grpo_tui.rewards.breakdown import ComponentValue, Penalty, RewardBreakdown, StepReward

GROUP = 8
GROUPS_PER_STEP = 16
ROWS_PER_STEP = GROUP * GROUPS_PER_STEP

COLOURS = ("red", "green", "blue", "yellow", "orange", "purple", "brown", "white")
SHAPES = ("circle", "square", "triangle", "star", "cross", "hexagon")
PLACES = ("left", "right", "top", "bottom", "centre")
WORDS = ("harbour", "lantern", "meadow", "copper", "violin", "saffron", "glacier", "pepper", "anchor", "walnut")
TOOLS = (
    ToolSpec(
        "SEGMENT_OBJECT_AT",
        "Segment the object at a point.",
        (Argument("x", "integer", minimum=0, below="width"), Argument("y", "integer", minimum=0, below="height")),
        frozenset({"image", "video"}),
        produces="mask",
    ),
    ToolSpec("GET_PROPERTIES", "Colour, shape and size of a mask.", (Argument("mask", "string", refers_to="mask"),)),
    ToolSpec("READ_TEXT", "Read the text in a box.", (Argument("box", "box"),), frozenset({"image", "video"})),
    ToolSpec("TRACK_OBJECT", "Follow a mask.", (Argument("mask", "string", refers_to="mask"),), frozenset({"video"})),
    ToolSpec("ZOOM_IN", "Enlarge a box.", (Argument("box", "box"),), frozenset({"image", "video"})),
    ToolSpec("ANSWER", "Give the answer.", (Argument("text", "string"),), final=True),
)


def batches(trajectories: int, seed: int = 0) -> Iterator[tuple[int, list[TrajectoryRecord]]]:
    """Yield `(step, records)` with 128 rollouts, 8 for each of 16 prompts, until there are enough.

    Generating a rollout costs more than recording it, so most groups of a large run repeat an earlier group of about
    the same skill under new ids. One in eight is new.
    """
    rng = random.Random(seed)
    steps = math.ceil(trajectories / ROWS_PER_STEP)
    left = trajectories
    known: dict[int, list[list[TrajectoryRecord]]] = {}
    for step in range(1, steps + 1):
        skill = 0.35 + 0.55 * step / steps
        records: list[TrajectoryRecord] = []
        for g in range(GROUPS_PER_STEP):
            pool = known.setdefault(int(skill * 20), [])
            if len(pool) < 64 or rng.random() < 0.125:
                group = _group(rng, step, g, skill)
                pool.append(group)
                if len(pool) > 256:
                    pool.pop(rng.randrange(256))
            else:
                group = [_again(record, step, g) for record in rng.choice(pool)]
            records.extend(group)
        yield step, records[:left]
        left -= ROWS_PER_STEP


def _again(record: TrajectoryRecord, step: int, g: int) -> TrajectoryRecord:
    trajectory, breakdown = record.trajectory, record.breakdown
    assert breakdown is not None
    id_ = f"s{step}-g{g}-r{trajectory.rollout}"
    return replace(
        record,
        trajectory=replace(trajectory, id=id_, group=f"s{step}-g{g}"),
        breakdown=replace(breakdown, trajectory_id=id_),
        policy_version=step // 10,
        split="eval" if step % 50 == 0 else "train",
    )


def _group(rng: random.Random, step: int, g: int, skill: float) -> list[TrajectoryRecord]:
    task = rng.randrange(4096)
    colour, shape, place = COLOURS[task % 8], SHAPES[task % 6], PLACES[task % 5]
    x, y, word = task % 223, task % 211, WORDS[task % 10]
    prompt = (
        f"You look at an image of 224 by 224 pixels. What is the {shape} at ({x}, {y}) near the {place}: which colour "
        f"has it, and what word is written beside it? Call one operation a turn and end with ANSWER."
    )
    expected = f"{colour} {word}"
    made = [_rollout(rng, step, g, r, task, prompt, expected, skill) for r in range(GROUP)]
    rewards = [b.total or 0.0 for _, b in made]
    mean, std = statistics.fmean(rewards), statistics.pstdev(rewards) + 1e-4
    advantages = [(reward - mean) / std for reward in rewards]
    return [
        TrajectoryRecord(
            trajectory=trajectory,
            breakdown=breakdown,
            advantage=advantage,
            step_advantages=[advantage] * len(trajectory.steps),
            tokens=_tokens(rng, trajectory, advantage),
            policy_version=step // 10,
            split="eval" if step % 50 == 0 else "train",
        )
        for (trajectory, breakdown), advantage in zip(made, advantages, strict=True)
    ]


def _rollout(
    rng: random.Random, step: int, g: int, r: int, task: int, prompt: str, expected: str, skill: float
) -> tuple[Trajectory, RewardBreakdown]:
    id_ = f"s{step}-g{g}-r{r}"
    steps: list[Step] = []
    rewards: list[StepReward] = []
    masks: tuple[str, ...] = ()
    video = task % 7 == 0
    turns = rng.choice((2, 3, 3, 4, 5))
    for index in range(turns):
        penalty: Penalty | None = None
        last = index == turns - 1
        if last:
            action, arguments, observation = "ANSWER", {"text": ""}, ""
        elif index == 0 and rng.random() < skill:
            action, arguments = "SEGMENT_OBJECT_AT", {"x": task % 223, "y": task % 211}
            masks = (*masks, str(len(masks) + 1))
            area = rng.randrange(40, 4000)
            observation = (
                f"mask {masks[-1]}: {area} pixels, box [{task % 200}, {task % 190}, {task % 223}, {task % 211}]"
            )
        else:
            action = rng.choice(("GET_PROPERTIES", "GET_PROPERTIES", "READ_TEXT", "ZOOM_IN", "TRACK_OBJECT"))
            if action in ("GET_PROPERTIES", "TRACK_OBJECT"):
                mask = rng.choice((*masks, "7")) if rng.random() > skill or not masks else masks[-1]
                arguments = {"mask": mask}
                if mask not in masks:
                    penalty = Penalty(
                        "missing_prerequisite",
                        -0.1,
                        index,
                        {"mask": mask, "masks": list(masks)},
                        "an existing mask",
                        f"{action}(mask={mask}): no mask {mask} exists here; masks so far: {', '.join(masks)}.",
                        "Call SEGMENT_OBJECT_AT first.",
                    )
                    observation = f"error: there is no mask {mask}"
                elif action == "TRACK_OBJECT" and not video:
                    penalty = Penalty(
                        "wrong_modality",
                        -0.15,
                        index,
                        {"modality": "image"},
                        "video",
                        "TRACK_OBJECT needs a video and this is a still image.",
                        "Use GET_PROPERTIES on the mask instead.",
                    )
                    observation = "error: this is a still image"
                else:
                    observation = (
                        f"mask {mask}: {expected.split()[0]} {SHAPES[task % 6]}, centroid ({task % 223}, {task % 211})"
                    )
            else:
                arguments = {"box": [task % 200, task % 190, task % 200 + 24, task % 190 + 20]}
                observation = f"text: {expected.split()[1]}" if action == "READ_TEXT" else "zoomed to 4 times"
        if rng.random() < 0.004:
            action, arguments, observation = None, {}, "error: no call could be read"
            penalty = Penalty(
                "unparsable_call", -0.2, index, {"text": "{…"}, "one JSON object", "No call.", "Write one."
            )
        thought = (
            f"The {SHAPES[task % 6]} stands near ({task % 223}, {task % 211}); I will use "
            f"{(action or 'an operation').lower().replace('_', ' ')} to learn what it is before I answer."
        )
        if rng.random() < 1e-4:
            thought += " This is quite a serendipity."  # the rare word for searches
        call = json.dumps({"name": action, "arguments": arguments}) if action else '{"name": '
        novelty = rng.gauss(0.2, 0.05)
        parts = {
            "curiosity": ComponentValue(novelty, (novelty - 0.2) / 0.05, 0.2, 0.2 * (novelty - 0.2) / 0.05),
            "coherence": ComponentValue(0.8, 0.1, 0.1, 0.01),
            "penalty": ComponentValue(
                penalty.amount if penalty else 0.0,
                penalty.amount if penalty else 0.0,
                1.0,
                penalty.amount if penalty else 0.0,
            ),
        }
        rewards.append(
            StepReward(index, parts, (penalty,) if penalty else (), sum(c.contribution or 0.0 for c in parts.values()))
        )
        steps.append(
            Step(
                index=index,
                text=f"{thought}\n{call}",
                thought=thought,
                action=action,
                arguments=arguments,
                parse_error=None if action else "no JSON object",
                observation=observation,
                context=StepContext("video" if video else "image", {"width": 224, "height": 224}, {"mask": masks}),
                token_span=(120 + index * 70, 160 + index * 70),
                seconds=0.004,
            )
        )
    correct = rng.random() < skill
    task_reward = 1.0 if correct else 0.0
    end = rewards[-1]
    parts = {**end.components, "task": ComponentValue(task_reward, task_reward, 1.0, task_reward)}
    rewards[-1] = StepReward(end.step, parts, end.penalties, (end.total or 0.0) + task_reward)
    answer = expected if correct else f"{rng.choice(COLOURS)} {rng.choice(WORDS)}"
    failed = rng.random() < 0.001
    trajectory = Trajectory(
        id=id_,
        env="grpo_tui.engine.demonstration.visual.VisualEnv",
        prompt_id=f"task-{task}",
        group=f"s{step}-g{g}",
        rollout=r,
        prompt=prompt,
        steps=tuple(steps),
        task={"scene": task, "expected": expected},
        tools=TOOLS,
        answer=answer,
        expected=expected,
        correct=correct,
        modality="video" if video else "image",
        images=(f"images/scene-{task}.png",),
        stop_reason="error" if failed else "answer",
        error="the environment did not answer in 30 s" if failed else None,
        seconds=0.05,
    )
    return trajectory, RewardBreakdown(id_, tuple(rewards), sum(s.total or 0.0 for s in rewards))


_LOGPROBS = -np.abs(np.random.default_rng(0).normal(0.4, 0.5, 1 << 16)).astype(np.float32)


def _tokens(rng: random.Random, trajectory: Trajectory, advantage: float) -> TokenArrays:
    turns = len(trajectory.steps)
    length = 120 + 70 * turns
    position = np.arange(length, dtype=np.int32) - 120
    mask = (position >= 0) & (position % 70 < 40)
    start = rng.randrange(_LOGPROBS.size - length)
    ids = (position * 37 + hash(trajectory.prompt_id) % 977) % 2048
    turn = np.where(position >= 0, position // 70, -1).astype(np.int16)
    logprobs = np.where(mask, _LOGPROBS[start : start + length], 0).astype(np.float32)
    return TokenArrays(ids.astype(np.int32), mask, logprobs, turn, np.where(mask, advantage, 0).astype(np.float32))


def step_metrics(step: int, steps: int, count: int) -> dict[str, float]:
    """Return `count` metrics with trend and noise. The first have the names that the app shows."""
    names = (
        "rewards/total/mean", "success/train", "kl/mean", "kl/beta", "train/loss", "train/grad_norm", "train/entropy",
        "rewards/raw/curiosity", "rewards/normalized/curiosity", "rewards/raw/coherence", "grpo/filtering_rate",
        "behavior/action_distribution/SEGMENT_OBJECT_AT", "behavior/action_distribution/GET_PROPERTIES", "time/step",
    )  # fmt: skip
    share = step / steps
    values: dict[str, float] = {}
    for i in range(count):
        name = names[i] if i < len(names) else f"custom/metric_{i}"
        if name.startswith("success/"):
            values[name] = min(1.0, max(0.0, 0.35 + 0.55 * share + 0.04 * math.sin(step * 12.9898)))
            continue
        values[name] = share * (1 + i % 3) + 0.1 * math.sin(step * (0.01 + 0.003 * i)) + 0.05 * math.sin(step * 12.9898)
    return values


def build(out: Path, trajectories: int, metrics: int, steps: int) -> Path:
    """Write a finished run, which has no process."""
    name = f"synthetic-{trajectories}" if trajectories else f"synthetic-metrics-{metrics}x{steps}"
    run_dir = out / name
    if (run_dir / DATABASE).exists():
        raise SystemExit(f"{run_dir} is there already: remove it first")
    run_dir.mkdir(parents=True, exist_ok=True)
    total = math.ceil(trajectories / ROWS_PER_STEP) or steps
    write_json(
        run_dir / RUN_FILE,
        {"id": name, "mode": "rft", "created": time.time(), "environment": "VisualEnv", "model": "builtin:tiny"},
    )
    writer = RunWriter(run_dir)
    writer.vocabulary([f"token{i}" for i in range(2048)])
    writer.status("running", step=0, total_steps=total)
    began = time.perf_counter()
    making = 0.0
    if trajectories:
        source = batches(trajectories)
        while True:
            before = time.perf_counter()
            item = next(source, None)
            making += time.perf_counter() - before
            if item is None:
                break
            step, records = item
            writer.trajectories(step, records)
            writer.metrics(step, step_metrics(step, total, metrics))
            if step % 40 == 0:  # wait like a computing trainer, so that nothing is dropped
                writer.flush()
    else:
        for step in range(1, steps + 1):
            writer.metrics(step, step_metrics(step, steps, metrics))
            if step % 500 == 0:
                writer.flush()
    writer.event("snapshot", "published version 1", step=1, version=1, action="published")
    writer.status("finished", step=total, exit_code=0)
    writer.close()
    seconds = time.perf_counter() - began
    if writer.dropped:
        raise SystemExit(f"the writer dropped {writer.dropped} rows")
    size = (run_dir / DATABASE).stat().st_size
    if trajectories:
        print(
            f"{name}: {trajectories / seconds:,.0f} trajectories/s ({making / seconds:.0%} of it making them up), "
            f"{size / 2**20:,.0f} MiB, {size / trajectories:,.0f} bytes a trajectory"
        )
    else:
        print(f"{name}: {metrics * steps / seconds:,.0f} values/s, {size / 2**20:,.1f} MiB")
    return run_dir


def read(run_dir: Path) -> None:
    """Print the median and the slowest of a few reads of each kind, in milliseconds, and their memory use."""
    process = psutil.Process()
    before = process.memory_info().rss
    reader = RunReader(run_dir)
    total = reader.rollouts.total()
    print(f"{run_dir.name}: {total:,} trajectories")
    _timed("open: first page, first trajectory, latest metrics", [lambda: _open(run_dir)] * 3)
    rng = random.Random(1)
    if total:
        middle = [rng.randrange(1, total) for _ in range(40)]
        _timed(
            "next trajectory, whole",
            [lambda n=n: reader.bodies.trajectory(_n(reader.rollouts.seek(n, 1))) for n in middle],
        )
        _timed("tokens of a trajectory", [lambda n=n: reader.bodies.tokens(n) for n in middle])
        _timed("page anywhere", [lambda n=n: reader.rollouts.page(offset=n, limit=50) for n in middle])
        _timed("page anywhere, by reward", [
            lambda n=n: reader.rollouts.page(Query(sort="reward", descending=True), offset=n, limit=50)
            for n in middle[:10]
        ])  # fmt: skip
        for expression in (
            "reward<0.2",
            "reward<0.2 and penalty:missing_prerequisite and action:TRACK_OBJECT and step>100",
            "penalty:unparsable_call and stop:error",
            "correct and not action:ZOOM_IN",
            "correct or penalised",
        ):
            query = Query(expression)
            _timed(f"filter, first page: {expression}", [lambda q=query: _fresh_page(run_dir, q)] * 3)
            _timed("  its count", [lambda q=query: _fresh_count(run_dir, q)] * 3)
            _timed("  by reward", [lambda q=replace(query, sort="reward"): _fresh_page(run_dir, q)] * 3)
            _timed("  next in it", [lambda n=n, q=query: reader.rollouts.seek(n, 1, q) for n in middle[:10]])
            _timed("  far page", [lambda q=query: reader.rollouts.page(q, offset=total // 3, limit=50)] * 2)
            _timed("  where it stands", [lambda n=n, q=query: reader.rollouts.position(n, q) for n in middle[:10]])
            _timed("  histogram", [lambda q=query: reader.rollouts.histogram(q)] * 2)
        for text in ("serendipity", "circle", '"no mask 7"', "harbour -lantern", "segm*", "SEGMENT_OBJECT_AT", "xyzzy"):
            query = Query(search=text)
            _timed(f"search, first page: {text}", [lambda q=query: _fresh_page(run_dir, q)] * 3)
            _timed("  its count", [lambda q=query: _fresh_count(run_dir, q)] * 3)
            _timed("  next in it", [lambda n=n, q=query: reader.rollouts.seek(n, 1, q) for n in middle[:10]])
            _timed("  with reward<0.2", [
                lambda t=text: _fresh_page(run_dir, Query("reward<0.2", t))
            ] * 3)  # fmt: skip
        _timed("histogram of all", [lambda: reader.rollouts.histogram()] * 3)
        _timed("group", [lambda n=n: reader.rollouts.group(reader.rollouts.rows([n])[0].group) for n in middle[:10]])
        _timed(
            "prompt", [lambda n=n: reader.rollouts.prompt(reader.rollouts.rows([n])[0].prompt_id) for n in middle[:10]]
        )
    names = reader.metrics.names()
    _timed("latest of all metrics", [reader.metrics.latest] * 5)
    _timed("a curve of 200 points", [lambda m=m: reader.metrics.points(m, max_points=200) for m in names[:15]])
    print(f"{'memory for all this':60} {(process.memory_info().rss - before) / 2**20:9.1f} MiB")


def _open(run_dir: Path) -> None:
    with RunReader(run_dir) as reader:
        reader.info()
        reader.metrics.latest()
        reader.rollouts.count()
        for row in reader.rollouts.page(limit=50)[:1]:
            reader.bodies.trajectory(row.n)


def _fresh_page(run_dir: Path, query: Query) -> None:
    """Read the first page with a new reader, which has nothing cached."""
    with RunReader(run_dir) as reader:
        reader.rollouts.page(query, limit=50)


def _fresh_count(run_dir: Path, query: Query) -> None:
    """Count with a new reader."""
    with RunReader(run_dir) as reader:
        reader.rollouts.count(query)


def _n(row: object) -> int:
    return getattr(row, "n", 1)


def _timed(name: str, calls: Sequence[Callable[[], object]]) -> None:
    times, busy = [], []
    for call in calls:
        began, used = time.perf_counter(), time.process_time()
        call()
        times.append(time.perf_counter() - began)
        busy.append(time.process_time() - used)
    _line(name, times, busy)


def _line(name: str, times: list[float], busy: list[float]) -> None:
    mark = "  <-- over 200 ms" if statistics.median(times) > 0.2 else ""
    print(
        f"{name[:60]:60} {statistics.median(times) * 1e3:9.2f} ms  slowest {max(times) * 1e3:9.2f} ms  "
        f"processor {statistics.median(busy) * 1e3:9.2f} ms{mark}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=0)
    parser.add_argument("--metrics", type=int, default=14)
    parser.add_argument("--steps", type=int, default=20_000, help="steps of a run without trajectories")
    parser.add_argument("--out", type=Path, help="folder of runs to build into")
    parser.add_argument("--read", type=Path, help="measure reading this run")
    given = parser.parse_args()
    if (given.out is None) == (given.read is None):
        parser.error("give --out to build a run, or --read to measure one")
    run_dir = given.read or build(given.out, given.trajectories, given.metrics, given.steps)
    if given.read is not None:
        read(run_dir)
    else:
        print(f"look at it: grpo-tui inspect {run_dir}; measure it: python {sys.argv[0]} --read {run_dir}")


if __name__ == "__main__":
    main()
