"""Trajectories for the tests of this room: the tools of the visual environment, and steps by short calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from hypothesis import strategies as st

from grpo_tui.envs.tools import Argument, ToolSpec
from grpo_tui.envs.trajectory import Step, StepContext, Trajectory
from grpo_tui.rewards.batches import Batch, rollout_of
from grpo_tui.rewards.breakdown import RewardBreakdown
from grpo_tui.rewards.metrics import flat

SEEN = frozenset({"image", "video"})
TOOLS = (
    ToolSpec(
        "SEGMENT_OBJECT_AT",
        "The object at a point.",
        (Argument("x", "integer", minimum=0, below="width"), Argument("y", "integer", minimum=0, below="height")),
        SEEN,
        "mask",
    ),
    ToolSpec("GET_PROPERTIES", "Colour and shape.", (Argument("mask", "integer", refers_to="mask"),), SEEN),
    ToolSpec("READ_TEXT", "Words in a box.", (Argument("box", "box"),), SEEN),
    ToolSpec("TRACK_OBJECT", "Where it moves.", (Argument("mask", "integer", refers_to="mask"),), frozenset({"video"})),
    ToolSpec("ANSWER", "Ends the episode.", (Argument("text", "string"),), final=True),
)


def context(*masks: str, modality: str = "image", width: int = 128, height: int = 96) -> StepContext:
    return StepContext(modality, {"width": width, "height": height}, {"mask": masks})


def step(
    index: int,
    action: str | None,
    arguments: Mapping[str, Any] | None = None,
    *,
    masks: Sequence[str] = (),
    modality: str = "image",
    **more: Any,
) -> Step:
    return Step(
        index,
        more.pop("text", f"step {index}"),
        action=action,
        arguments=dict(arguments or {}),
        context=context(*masks, modality=modality),
        **more,
    )


def trajectory(*steps: Step, id: str = "t", group: str = "g", **more: Any) -> Trajectory:
    given: dict[str, Any] = {"tools": TOOLS, "stop_reason": "answer", "answer": "red", **more}
    return Trajectory(
        id=id, env="visual", prompt_id="p", group=group, rollout=0, prompt="Which colour?", steps=steps, **given
    )


def good(id: str = "t", group: str = "g", **more: Any) -> Trajectory:
    """Segment, look, answer."""
    return trajectory(
        step(0, "SEGMENT_OBJECT_AT", {"x": 30, "y": 40}),
        step(1, "GET_PROPERTIES", {"mask": 1}, masks=["1"]),
        step(2, "ANSWER", {"text": "red"}, masks=["1"]),
        id=id,
        group=group,
        **more,
    )


CALLS: list[tuple[str | None, dict[str, Any]]] = [
    ("SEGMENT_OBJECT_AT", {"x": 3, "y": 4}),
    ("SEGMENT_OBJECT_AT", {"x": 300, "y": 4}),
    ("GET_PROPERTIES", {"mask": 1}),
    ("TRACK_OBJECT", {"mask": 1}),
    ("READ_TEXT", {"box": [0, 0, 10, 10]}),
    ("DANCE", {}),
    (None, {}),
    ("ANSWER", {"text": "red"}),
]


@st.composite
def batches(draw: st.DrawFn, largest: int = 5) -> tuple[list[Trajectory], list[bool | None], list[torch.Tensor]]:
    """A few trajectories of 0 to 6 steps over one to three groups, their correctness, and embeddings of width 8 that
    may be zero, constant or equal."""
    trajectories: list[Trajectory] = []
    embeddings: list[torch.Tensor] = []
    correctness: list[bool | None] = []
    for i in range(draw(st.integers(1, largest))):
        calls = draw(st.lists(st.sampled_from(CALLS), max_size=6))
        steps = [step(n, a, dict(b), masks=["1"][: draw(st.integers(0, 1))]) for n, (a, b) in enumerate(calls)]
        ends = draw(st.sampled_from(["answer", "max_turns", "max_tokens", "error"]))
        trajectories.append(
            trajectory(
                *steps,
                id=f"t{i}",
                group=f"g{draw(st.integers(0, 2))}",
                stop_reason=ends,
                answer="red" if ends == "answer" else None,
                env_reward=draw(st.sampled_from([0.0, 1.0, -2.5])),
            )
        )
        correctness.append(draw(st.sampled_from([True, False, None])))
        kind = draw(st.sampled_from(["zero", "constant", "random", "large"]))
        shape = (len(steps), 8)
        seeded = torch.Generator().manual_seed(draw(st.integers(0, 3)))
        embeddings.append(
            torch.zeros(shape)
            if kind == "zero"
            else torch.ones(shape)
            if kind == "constant"
            else torch.randn(shape, generator=seeded) * (1e4 if kind == "large" else 1.0)
        )
    return trajectories, correctness, embeddings


def batch_of(
    step: int,
    trajectories: Sequence[Trajectory],
    breakdowns: Sequence[RewardBreakdown],
    metrics: Mapping[str, float | Mapping[str, float]],
    tokens: Sequence[int] | None = None,
) -> Batch:
    """The batch of a training step. tokens: agent tokens of each trajectory."""
    lengths = tokens if tokens is not None else [0] * len(trajectories)
    rollouts = [rollout_of(t, b, n) for t, b, n in zip(trajectories, breakdowns, lengths, strict=True)]
    return Batch(step, rollouts, flat(metrics))
