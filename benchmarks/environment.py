"""How good and how fast the visual environment's tools are: `python benchmarks/environment.py`.

Accuracy is measured on held-out drawn scenes against the scenes' ground truth (which only this file and the tests
see), on plain and on photographic backgrounds. Cost is measured on whole trials of 16 tasks x 8 rollouts, each with
tasks never seen before, acted by a script that walks right and wrong routes and now and then slips in a number; the
time is what `run_trial` counts as the environment's (wall clock), beside the processor time that its threads used.
The share of a training step is measured in a real run of the default configuration (a process of its own, an empty
cache folder), as `time/environment` over `time/step` of the run's record, without the first steps.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from grpo_tui.configs import metric_names as metric
from grpo_tui.engine.demonstration.visual import VisualEnv
from grpo_tui.engine.demonstration.visual.env import ResultCache
from grpo_tui.engine.demonstration.visual.operations import ocr, properties, segment, track, zoom
from grpo_tui.engine.demonstration.visual.questions import Question, make_question
from grpo_tui.engine.demonstration.visual.render import render
from grpo_tui.engine.demonstration.visual.scenes import Background, Scene, SceneOptions, Shape
from grpo_tui.envs.agent import AgentTurn, Message, Seed
from grpo_tui.envs.trajectory import TokenArrays

T = TypeVar("T")


class CountedCache(ResultCache):
    """Counts `asked`, `misses` and `seconds` (of the misses) by operation."""

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        super().__init__(max_bytes)
        self.asked: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def get(self, content: str, operation: str, arguments: Hashable, compute: Callable[[], T]) -> T:
        self.asked[operation] += 1

        def timed() -> T:
            self.misses[operation] += 1
            started = time.perf_counter()
            value = compute()
            self.seconds[operation] += time.perf_counter() - started
            return value

        return super().get(content, operation, arguments, timed)


def true_mask(scene: Scene, index: int, frame: int = 0) -> np.ndarray:
    """Return the pixels of which object `index` covers at least half, bool [H, W]."""
    white = replace(scene.objects[index], rgb=(255, 255, 255))
    alone = replace(scene, background=Background("plain", (0, 0, 0)), objects=(white,), words=(), noise=0.0)
    return render(alone)[frame, ..., 0] >= 128


def iou(mask: np.ndarray | None, truth: np.ndarray) -> float:
    """Return the intersection over union of two bool [H, W] masks, or 0 without a mask."""
    if mask is None:
        return 0.0
    return float((mask & truth).sum() / (mask | truth).sum())


def asked(kind: str, background: str, index: int) -> Question:
    options = SceneOptions(photo_share=float(background == "photo"), split="eval")
    return make_question("eval", 2026, index, (kind,), options)


def true_positions(shape: Shape, frames: int) -> np.ndarray:
    """Return centres in pixel coordinates [F, 2]. Pixel i covers i..i+1, so its own centre is at i + 0.5."""
    return np.array([shape.at(f) for f in range(frames)]) - 0.5


def accuracy(background: str, n: int) -> dict[str, Any]:
    """Measure the accuracy of every tool on `n` scenes with a background."""
    ious: list[float] = []
    colours: list[bool] = []
    shapes: list[bool] = []
    for index in range(n):
        question = asked("shape", background, index)
        image = render(question.scene)[0]
        for number, shape in enumerate(question.scene.objects):
            point = question.points[0] if number == 0 else (int(shape.x), int(shape.y))
            mask = segment.segment_at(image, *point)
            ious.append(iou(mask, true_mask(question.scene, number)))
            found = None if mask is None else properties.properties_of(image, mask)
            colours.append(found is not None and found.colour == shape.colour)
            shapes.append(found is not None and found.shape == shape.shape)
    texts = []
    for index in range(n):
        question = asked("text", background, index)
        assert question.box is not None
        texts.append(ocr.read_text(render(question.scene)[0], question.box) == question.answer)
    errors: list[float] = []
    directions: list[bool] = []
    for index in range(n):
        question = asked("motion", background, index)
        frames = render(question.scene)
        mask = segment.segment_at(frames[0], *question.points[0])
        if mask is None:
            errors.append(float("inf"))
            directions.append(False)
            continue
        found_track = track.track_object(frames, mask)
        away = np.array(found_track.positions) - true_positions(question.scene.objects[0], len(frames))
        errors.append(float(np.hypot(away[:, 0], away[:, 1]).max()))
        directions.append(found_track.direction == question.answer)
    zooms = []
    for index in range(n):
        question = asked("inside", background, index)
        assert question.box is not None
        truth = true_mask(question.scene, 0)
        points = zoom.objects_in(render(question.scene)[0], question.box)
        zooms.append(bool(points) and bool(truth[points[0][1], points[0][0]]))
    return {
        "scenes": n,
        "mask IoU, mean": statistics.fmean(ious),
        "mask IoU, lowest": min(ious),
        "masks with IoU >= 0.9": statistics.fmean(i >= 0.9 for i in ious),
        "colour right": statistics.fmean(colours),
        "shape right": statistics.fmean(shapes),
        "text exact": statistics.fmean(texts),
        "track error px, median": statistics.median(errors),
        "track error px, largest": max(errors),
        "tracks within 2 px in every frame": statistics.fmean(e <= 2 for e in errors),
        "direction right": statistics.fmean(directions),
        "zoom finds the object": statistics.fmean(zooms),
    }


class RouteAgent:
    """Follows routes: the right one in a share `right` of the rows, a wrong one in the others. A share `slip` of the
    turns has one number changed. Its text is one token per character, because tokens are not measured."""

    def __init__(self, env: VisualEnv, tasks: Sequence[Mapping[str, Any]], right: float, slip: float, seed: int):
        self.env, self.tasks, self.right, self.slip = env, tasks, right, slip
        self.rng = random.Random(seed)

    def start(
        self,
        prompts: Sequence[Sequence[Message]],
        num_rollouts: int = 1,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        seed: Seed = None,
    ) -> RouteAgent:
        self.shows = []
        for row in range(len(self.tasks) * num_rollouts):
            task = self.tasks[row // num_rollouts]
            wrong = [r for r in self.env.routes(task) if r not in ("right", "no_answer")]
            route = "right" if self.rng.random() < self.right else self.rng.choice(wrong)
            self.shows.append(self.env.demonstrate(task, route, row))
        self.said: list[str | None] = [None] * len(self.shows)
        return self

    def act(self, rows: Sequence[int]) -> list[AgentTurn]:
        turns = []
        for row in rows:
            text = self.shows[row].next(self.said[row])
            if self.rng.random() < self.slip:
                text = re.sub(r"\d+", lambda m: str(int(m[0]) + self.rng.choice((-9, -2, 2, 9))), text, count=1)
            turns.append(AgentTurn(text, (0, len(text))))
        return turns

    def observe(self, rows: Sequence[int], observations: Sequence[str]) -> None:
        for row, text in zip(rows, observations, strict=True):
            self.said[row] = text

    def tokens(self, row: int) -> TokenArrays:
        n = 150
        return TokenArrays(np.zeros(n, np.int32), np.ones(n, bool), np.zeros(n, np.float32), np.zeros(n, np.int16))

    def close(self) -> None:
        pass


def trial_cost(steps: int, right: float, slip: float) -> dict[str, Any]:
    """Measure milliseconds of the environment in a step of 16 x 8 rollouts, in total and by operation."""
    env = VisualEnv(prefetch=False)
    cache = env.cache = CountedCache()
    tasks = env.make_tasks("train", 16 * (steps + 1), seed=7)
    wall, processor, success = [], [], []
    for step in range(steps + 1):
        batch = tasks[16 * step : 16 * (step + 1)]
        used = time.process_time()
        out = env.run_trial(batch, RouteAgent(env, batch, right, slip, step), 8, step=step)
        processor.append(time.process_time() - used)
        wall.append(out["timings"]["environment_s"])
        success.append(statistics.fmean(bool(t.correct) for t in out["trajectories"]))
    per_operation = {
        name: {
            "per_step": round(cache.misses[name] / (steps + 1), 1),
            "hits_per_step": round((cache.asked[name] - cache.misses[name]) / (steps + 1), 1),
            "ms": round(1000 * cache.seconds[name] / cache.misses[name], 2),
        }
        for name in sorted(cache.misses)
    }
    # The first step also loads the photographs and the recogniser, once per run.
    return {
        "steps": steps,
        "success": statistics.fmean(success),
        "first step ms": 1000 * wall[0],
        "environment ms per step, mean": 1000 * statistics.fmean(wall[1:]),
        "environment ms per step, median": 1000 * statistics.median(wall[1:]),
        "processor ms per step, all threads and the script": 1000 * statistics.fmean(processor[1:]),
        "operations (worked out, answered from the cache; ms includes drawing)": per_operation,
    }


def share_of_step(steps: int, skip: int = 3) -> dict[str, Any]:
    """Measure the environment's part of the steps of a real training run, in milliseconds and as a share."""
    with tempfile.TemporaryDirectory() as folder:
        overrides = {"training.max_steps": steps, "training.eval_every": 0, "training.save_every": 0}
        command = [
            sys.executable,
            "-m",
            "grpo_tui.tui.cli",
            "train",
            "--headless",
            "--runs-dir",
            folder,
            "--run-id",
            "x",
        ]
        for key, value in {**overrides, "environment.eval_tasks": 0}.items():
            command += ["--set", f"{key}={value}"]
        environment = {**os.environ, "XDG_CACHE_HOME": f"{folder}/cache", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"the training run failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        from grpo_tui.engine.runs.read.reader import RunReader

        reader = RunReader(Path(folder) / "x")
        values = {
            name: statistics.fmean(v for step, v in reader.metrics.points(metric.PHASE_SECONDS(name)) if step > skip)
            for name in ("step", "environment", "generate")
        }
        reader.close()
    return {
        "steps": steps - skip,
        "step ms": 1000 * values["step"],
        "environment ms": 1000 * values["environment"],
        "generate ms": 1000 * values["generate"],
        "environment / step": values["environment"] / values["step"],
    }


def show(title: str, columns: Mapping[str, Mapping[str, Any]], line: Callable[[str], None] = print) -> None:
    line(f"\n{title}")
    names = list(next(iter(columns.values())))
    line(f"  {'':38}" + "".join(f"{c:>12}" for c in columns))
    for name in names:
        cells = [v[name] for v in columns.values()]
        line(f"  {name:38}" + "".join(f"{c:12.3f}" if isinstance(c, float) else f"{c:>12}" for c in cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=200, help="held-out scenes per tool and background")
    parser.add_argument("--steps", type=int, default=20, help="trials of 16 x 8 rollouts, after the first")
    parser.add_argument("--right", type=float, default=0.6, help="share of rollouts on the right route")
    parser.add_argument("--slip", type=float, default=0.1, help="share of turns with a wrong number")
    parser.add_argument("--train", type=int, default=15, help="steps of the real training run; 0: none")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of tables")
    arguments = parser.parse_args()
    result = {
        "accuracy": {b: accuracy(b, arguments.scenes) for b in ("plain", "photo")} if arguments.scenes else {},
        "cost": trial_cost(arguments.steps, arguments.right, arguments.slip) if arguments.steps else {},
        "training": share_of_step(arguments.train) if arguments.train else {},
    }
    if arguments.json:
        print(json.dumps(result))
        return
    if arguments.scenes:
        show(f"Tools on {arguments.scenes} held-out scenes each", result["accuracy"])
    if arguments.steps:
        print(f"\nCost of 16 tasks x 8 rollouts, all tasks new ({arguments.steps} steps)")
        for name, value in result["cost"].items():
            if isinstance(value, dict):
                print(f"  {name}:")
                for operation, numbers in value.items():
                    print(f"    {operation:20}" + "  ".join(f"{k} {v}" for k, v in numbers.items()))
            else:
                print(f"  {name:52}{value:10.2f}")
    if arguments.train:
        print("\nIn a training run of the default configuration")
        for name, value in result["training"].items():
            print(f"  {name:52}{value:10.3f}")


if __name__ == "__main__":
    main()
