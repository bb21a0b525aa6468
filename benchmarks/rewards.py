"""How many steps a second the whole reward takes: `python -m benchmarks.rewards`.

Scores batches of trajectories as a training step does: 16 prompts x 8 rollouts of 3 to 7 steps on the visual tools,
a third of the calls wrong in some way, and state embeddings of width 896 that are given. Counted is everything:
curiosity with the training of its dynamics model, coherence, all penalty rules, normalisation, the breakdown of every
step, the metrics, and the running statistics. Each batch is new, so no cache helps that would not help in training.
The requirement is 20,000 steps/s on 2 cores. `--trajectories 1024` shows a larger batch.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Sequence

import torch

from grpo_tui.configs.sections.rewards import RewardsConfig
from grpo_tui.envs.tools import Argument, ToolSpec
from grpo_tui.envs.trajectory import Step, StepContext, Trajectory
from grpo_tui.rewards.orchestrator import RewardOrchestrator

REQUIRED = 20_000
SEEN = frozenset({"image", "video"})
TOOLS = (
    ToolSpec(
        "SEGMENT_OBJECT_AT",
        "",
        (Argument("x", "integer", minimum=0, below="width"), Argument("y", "integer", minimum=0, below="height")),
        SEEN,
        "mask",
    ),
    ToolSpec("GET_PROPERTIES", "", (Argument("mask", "integer", refers_to="mask"),), SEEN),
    ToolSpec("READ_TEXT", "", (Argument("box", "box"),), SEEN),
    ToolSpec("TRACK_OBJECT", "", (Argument("mask", "integer", refers_to="mask"),), frozenset({"video"})),
    ToolSpec("ANSWER", "", (Argument("text", "string"),), final=True),
)

Batch = tuple[list[Trajectory], list[bool], list[torch.Tensor]]


def make_trajectory(rng: random.Random, name: str, group: str) -> Trajectory:
    """Make one rollout. Each step is right, or wrong in one of the ways that the rules detect."""
    steps: list[Step] = []
    masks: list[str] = []
    count = rng.randrange(3, 8)
    for i in range(count):
        x, y, mask = rng.randrange(128), rng.randrange(96), rng.randrange(1, 4)
        action, arguments = rng.choice(
            [
                ("SEGMENT_OBJECT_AT", {"x": x, "y": y}),
                ("SEGMENT_OBJECT_AT", {"x": x, "y": y}),
                ("SEGMENT_OBJECT_AT", {"x": x + 90, "y": y}),
                ("GET_PROPERTIES", {"mask": mask}),
                ("GET_PROPERTIES", {"mask": int(masks[-1])}) if masks else ("READ_TEXT", {"box": [x, y, x + 9, y + 9]}),
                ("TRACK_OBJECT", {"mask": mask}),
                ("SEGMENT", {"x": x}),
            ]
            if i < count - 1
            else [("ANSWER", {"text": rng.choice(["red", "square", "left"])})] * 4 + [(None, {})]
        )
        context = StepContext("image", {"width": 128, "height": 96}, {"mask": tuple(masks)})
        steps.append(
            Step(i, f"step {x} {y}", action=action, arguments=arguments, observation=f"mask {x}", context=context)
        )
        if action == "SEGMENT_OBJECT_AT" and arguments["x"] == x:
            masks.append(str(len(masks) + 1))
    answered = steps[-1].action == "ANSWER"
    return Trajectory(
        id=name,
        env="visual",
        prompt_id=group,
        group=group,
        rollout=0,
        prompt="Which colour is the object at (31, 40)?",
        steps=tuple(steps),
        tools=TOOLS,
        answer="red" if answered else None,
        stop_reason="answer" if answered else "max_turns",
    )


def make_batch(rng: random.Random, trajectories: int, width: int) -> Batch:
    found = [make_trajectory(rng, f"t{i}", f"g{i // 8}") for i in range(trajectories)]
    return found, [rng.random() < 0.5 for _ in found], [torch.randn(len(t.steps), width) for t in found]


def measure(config: RewardsConfig, batches: Sequence[Batch], width: int) -> dict[str, float]:
    """Measure the median over the batches, after three warm-up batches."""
    orchestrator = RewardOrchestrator(config=config, embedding_dim=width)
    rates, processor = [], []
    for found, correct, embeddings in batches:
        steps = sum(len(t.steps) for t in found)
        cpu, began = time.process_time(), time.perf_counter()
        orchestrator.calculate_total_reward(found, correct, embeddings=embeddings)
        rates.append(steps / (time.perf_counter() - began))
        processor.append((time.process_time() - cpu) / steps)
    return {
        "steps_per_s": statistics.median(rates[3:]),
        "processor_us_per_step": 1e6 * statistics.median(processor[3:]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=128)
    parser.add_argument("--batches", type=int, default=25)
    parser.add_argument("--width", type=int, default=896)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rng = random.Random(0)
    torch.manual_seed(0)
    batches = [make_batch(rng, given.trajectories, given.width) for _ in range(given.batches)]

    rows = {
        "everything": measure(RewardsConfig(), batches, given.width),
        "without curiosity": measure(RewardsConfig(w_curiosity=0), batches, given.width),
        "penalties and task only": measure(RewardsConfig(w_curiosity=0, w_coherence=0), batches, given.width),
    }
    if given.json:
        print(json.dumps({"rewards": rows, "required_steps_per_s": REQUIRED}))
        return
    print(f"{given.trajectories} trajectories of 3 to 7 steps, width {given.width}, {given.threads} threads")
    print(f"{'':26}{'steps/s':>12}{'processor µs/step':>20}")
    for name, row in rows.items():
        print(f"{name:26}{row['steps_per_s']:>12,.0f}{row['processor_us_per_step']:>20.1f}")
    reached = rows["everything"]["steps_per_s"]
    print(f"required: {REQUIRED:,} steps/s; reached {reached / REQUIRED:.1f}x")


if __name__ == "__main__":
    main()
