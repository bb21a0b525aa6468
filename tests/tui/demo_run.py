"""A small run with everything that the screens show, made through the project's own writer; the same every time."""

from __future__ import annotations

import json
import math
import random
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from grpo_tui.engine.runs.learning import UseKind
from grpo_tui.engine.runs.types import AdvantageFormula, AdvantageTerm, TrajectoryRecord, Use
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.envs.trajectory import Overlay, Step, StepContext, TokenArrays, Trajectory
from grpo_tui.rewards.breakdown import ComponentValue, Penalty, RewardBreakdown, StepReward

EPOCH = 1_763_600_000.0
WEIGHTS = {"task": 1.0, "curiosity": 0.2, "coherence": 0.1, "penalty": 1.0}
COLORS = {"red": (214, 60, 60), "blue": (60, 96, 220), "green": (60, 170, 90)}
WORDS = [
    "<pad>",
    "Question",
    ":",
    " what",
    " colour",
    " is",
    " it",
    "?",
    "\n",
    "{",
    '"name"',
    "SEGMENT",
    "}",
    " I",
    " look",
]


SENTENCE = "the return, against mean and std (n − 1) of the {size} rollouts of its group"


def draw_scene(folder: Path, name: str) -> tuple[str, str, str, tuple[int, int]]:
    """An image with one square and its mask; returns their paths, the colour, and the centre."""
    rng = random.Random(name)
    color = rng.choice(list(COLORS))
    x, y = rng.randrange(16, 64), rng.randrange(16, 40)
    picture = Image.new("RGB", (96, 64), (238, 236, 230))
    draw = ImageDraw.Draw(picture)
    draw.ellipse((70, 8, 88, 26), fill=(150, 150, 160))
    draw.rectangle((x - 10, y - 10, x + 10, y + 10), fill=COLORS[color])
    mask = Image.new("L", (96, 64), 0)
    ImageDraw.Draw(mask).rectangle((x - 10, y - 10, x + 10, y + 10), fill=255)
    images = folder / "images"
    images.mkdir(parents=True, exist_ok=True)
    picture.save(images / f"{name}.png")
    mask.save(images / f"{name}-mask.png")
    return f"images/{name}.png", f"images/{name}-mask.png", color, (x, y)


def step_reward(
    index: int, last: bool, correct: bool, rng: random.Random, penalties: tuple[Penalty, ...]
) -> StepReward:
    raw = {
        "task": float(correct) if last else 0.0,
        "curiosity": 0.0 if last else round(rng.uniform(0.02, 0.4), 4),
        "coherence": round(rng.uniform(-0.2, 0.6), 4),
        "penalty": sum(p.amount for p in penalties),
    }
    components = {}
    for name, value in raw.items():
        normalised = value if name in ("task", "penalty") else (value - 0.2) / 0.15
        components[name] = ComponentValue(value, normalised, WEIGHTS[name], WEIGHTS[name] * normalised)
    return StepReward(index, components, penalties, sum(c.contribution or 0.0 for c in components.values()))


def rollout(
    folder: Path, step: int, group: int, rollout: int, rng: random.Random, skill: float, scene: Any
) -> tuple[Trajectory, RewardBreakdown, TokenArrays]:
    image, mask, color, (x, y) = scene
    correct = rng.random() < skill
    forgets = rng.random() > 0.35 + 0.6 * skill
    facts = {"width": 96, "height": 64}
    steps: list[Step] = []
    rewards: list[StepReward] = []
    spans = [(12 + 8 * i, 12 + 8 * i + 6) for i in range(4)]
    if not forgets:
        steps.append(
            Step(
                0, '…{"name": "SEGMENT_OBJECT_AT"}', "The question names a point, so the object there comes first.",
                "SEGMENT_OBJECT_AT", {"x": x, "y": y}, observation="mask 1: 441 pixels",
                overlay=Overlay(image=image, mask_path=mask, point=(x, y), label="mask 1"),
                context=StepContext("image", facts), token_span=spans[0], seconds=0.004,
            )
        )  # fmt: skip
        rewards.append(step_reward(0, False, correct, rng, ()))
    at = len(steps)
    penalties: tuple[Penalty, ...] = ()
    if forgets:
        penalties = (
            Penalty(
                "missing_prerequisite", -0.1, at, {"mask": 7, "masks": []}, "mask must be one of the masks made before",
                "GET_PROPERTIES refers to mask 7, and no mask exists yet.",
                "Call SEGMENT_OBJECT_AT first; its answer names the mask.",
            ),
        )  # fmt: skip
    steps.append(
        Step(
            at, '…{"name": "GET_PROPERTIES"}', "Now the colour of that mask.", "GET_PROPERTIES",
            {"mask": 7 if forgets else 1},
            observation="error: there is no mask 7" if forgets else f"colour {color}, shape square, 441 pixels",
            error="there is no mask 7" if forgets else None,
            overlay=None if forgets else Overlay(image=image, box=(x - 10, y - 10, x + 10, y + 10), label="box"),
            images=(image,), context=StepContext("image", facts, {} if forgets else {"mask": ("1",)}),
            token_span=spans[at], seconds=0.002,
        )
    )  # fmt: skip
    rewards.append(step_reward(at, False, correct, rng, penalties))
    at += 1
    answer = color if correct else rng.choice([c for c in COLORS if c != color])
    steps.append(
        Step(
            at,
            f'{{"name": "ANSWER", "arguments": {{"text": "{answer}"}}}}',
            "",
            "ANSWER",
            {"text": answer},
            token_span=spans[at],
        )
    )
    rewards.append(step_reward(at, True, correct, rng, ()))
    total = sum(r.total or 0.0 for r in rewards)
    id_ = f"s{step}-g{group}-r{rollout}"
    trajectory = Trajectory(
        id_, "visual", f"p{group % 7}", f"{step}.{group}", rollout,
        f"What colour is the object at ({x}, {y})?", tuple(steps), task={"kind": "colour", "x": x, "y": y},
        answer=answer, expected=color, correct=correct, modality="image", images=(image,),
    )  # fmt: skip
    length = 12 + 8 * len(steps)
    turn = np.repeat(np.arange(-1, len(steps), dtype=np.int16), [12] + [8] * len(steps))
    agent = np.zeros(length, bool)
    for i in range(len(steps)):
        agent[12 + 8 * i : 12 + 8 * i + 6] = True
    noise = np.random.default_rng(step * 1000 + group * 10 + rollout)
    logprobs = np.where(agent, -noise.exponential(0.6, length), 0).astype(np.float32)
    ids = noise.integers(1, len(WORDS), length).astype(np.int32)
    tokens = TokenArrays(ids, agent, logprobs, turn)
    return trajectory, RewardBreakdown(id_, tuple(rewards), total), tokens


def make_run(
    runs: Path,
    name: str,
    *,
    steps: int = 40,
    groups: int = 2,
    rollouts: int = 4,
    seed: int = 0,
    status: str = "finished",
    mode: str = "rft",
    total_steps: int | None = None,
) -> Path:
    """A run of a policy that learns; returns its folder."""
    rng = random.Random(seed)
    folder = runs / name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(
        f"mode: {mode}\nseed: {seed}\ntraining:\n  learning_rate: {3e-3 / (seed + 1)}\n  max_steps: {steps}\n"
    )
    facts = {"id": name, "mode": mode, "environment": "visual", "model": "tiny", "created": EPOCH + 3600 * seed}
    (folder / "run.json").write_text(json.dumps({**facts, "total_steps": total_steps or steps, "name": ""}))
    (folder / "logs").mkdir()
    (folder / "logs" / "training.log").write_text(
        "loading the policy\n" + "".join(f"step {i} done\n" for i in range(1, steps + 1))
    )
    writer = RunWriter(folder)
    writer.vocabulary(WORDS)
    beta = 0.012
    for step in range(1, steps + 1):
        skill = 0.35 + 0.6 * (1 - math.exp(-2.5 * step / steps))
        records = []
        for group in range(groups):
            scene = draw_scene(folder, f"scene-{step % 6}-{group}")
            made = [rollout(folder, step, group, r, rng, skill, scene) for r in range(rollouts)]
            totals = [b.total or 0.0 for _, b, _ in made]
            mean = sum(totals) / len(totals)
            std = (sum((t - mean) ** 2 for t in totals) / max(1, len(totals) - 1)) ** 0.5
            for trajectory, breakdown, tokens in made:
                advantage = ((breakdown.total or 0.0) - mean) / (std + 1e-4)
                tokens = TokenArrays(
                    tokens.token_ids, tokens.agent_mask, tokens.logprobs, tokens.turn,
                    np.where(tokens.agent_mask, advantage, 0).astype(np.float32),
                )  # fmt: skip
                term = AdvantageTerm(breakdown.total or 0.0, mean, std, len(totals))
                records.append(
                    TrajectoryRecord(
                        trajectory, breakdown, advantage, (advantage,) * len(trajectory.steps), tokens, step,
                        formula=AdvantageFormula("group", "group", 1e-4, ((term,),), SENTENCE),
                        use=Use(UseKind.TRAINED, step, 1.0, advantage),
                    )
                )  # fmt: skip
        writer.trajectories(step, records)
        rewards = [r.breakdown.total for r in records if r.breakdown]
        mean = sum(rewards) / len(rewards)
        values: dict[str, Any] = {
            "rewards/total/mean": mean,
            "rewards/total/std": (sum((r - mean) ** 2 for r in rewards) / len(rewards)) ** 0.5,
            "success/train": sum(bool(r.trajectory.correct) for r in records) / len(records),
            "kl/mean": 0.05 * (1 - math.exp(-step / 12)) + 0.006 * math.sin(step),
            "kl/target": 0.05, "kl/tolerance": 0.01, "kl/beta": beta,
            "train/loss": 0.4 / step, "train/entropy": 1.2 - 0.6 * step / steps,
            "train/grad_norm": 0.8 + 0.2 * math.cos(step), "train/clip_fraction": 0.03, "train/learning_rate": 0.003,
            "grpo/filtering_rate": 0.2 * step / steps, "grpo/replay_share": 0.1, "tokens/agent": 148,
            "tokens/total": 290,
            "turns/mean": 2.7, "time/step": 1.9, "time/generate": 0.9, "time/environment": 0.06, "time/reward": 0.04,
            "time/logprobs": 0.2, "time/backward": 0.6, "time/record": 0.01, "memory/rss_mib": 912.0,
        }  # fmt: skip
        for component, weight in WEIGHTS.items():
            parts = [s.components[component] for r in records if r.breakdown for s in r.breakdown.steps]
            for kind in ("raw", "normalized", "contribution"):
                values[f"rewards/{kind}/{component}"] = sum(getattr(c, kind) for c in parts) / len(parts)
                name = "per_trajectory" if kind == "contribution" else f"{kind}_per_trajectory"
                values[f"rewards/{name}/{component}"] = sum(getattr(c, kind) for c in parts) / len(records)
            values[f"rewards/raw_std/{component}"] = 0.15
            values[f"rewards/weight/{component}"] = weight
            values[f"rewards/running_mean/{component}"] = sum(c.raw for c in parts) / len(parts)
            values[f"rewards/running_std/{component}"] = 0.15
        used = [a for r in records for a in r.trajectory.actions]
        values["behavior/action_distribution"] = {
            a: used.count(a) / len(used) for a in ("SEGMENT_OBJECT_AT", "GET_PROPERTIES", "ANSWER", "READ_TEXT")
        }
        if step % 10 == 0:
            values["success/eval_greedy"] = skill
            values["success/eval_sampled"] = skill - 0.05
            writer.event(
                "eval",
                f"held-out success {skill:.2f}",
                step=step,
                split="eval",
                greedy=skill,
                sampled=skill - 0.05,
                n=64,
            )
            writer.event("checkpoint", f"saved checkpoint-{step}", step=step, path=f"checkpoints/{step}")
        if step == steps * 3 // 4:
            writer.event(
                "beta",
                "raised",
                step=step,
                **{"from": beta, "to": beta * 1.2, "reason": "mean KL 0.064 is above 0.050 + 0.010", "mean_kl": 0.064},
            )
            beta *= 1.2
            writer.event(
                "alert", "reward rises, success does not: coherence makes 61 % of the advantage's variance", step=step,
                detector="reward_without_success", subject="coherence", value=0.61, threshold=0.5,
                trajectories=[r.trajectory.id for r in records[:5]],
            )  # fmt: skip
        writer.metrics(step, values)
    writer.flush(30)
    said = "running" if status == "crashed" else status
    writer.status(said, step=steps, total_steps=total_steps or steps)  # type: ignore[arg-type]
    writer.close()
    state = folder / "processes" / "training.json"
    known = json.loads(state.read_text())
    known["time"] = facts["created"] + 1860
    if "ended" in known:
        known["ended"] = facts["created"] + 1860
    if status == "crashed":
        known |= {"pid": 2**22 + 1, "started": EPOCH}
    state.write_text(json.dumps(known))
    with sqlite3.connect(folder / "record.sqlite") as db:  # times of long ago, so that pictures stay the same
        db.execute("UPDATE events SET time = ? + 10 * step", (EPOCH,))
    db.close()
    return folder


if __name__ == "__main__":
    import sys

    target = Path(sys.argv[1])
    make_run(target, "ab12", steps=40)
    make_run(target, "cd34", steps=24, seed=1, status="stopped", total_steps=60)
    make_run(target, "ef56", steps=12, seed=2, status="running", total_steps=400)
