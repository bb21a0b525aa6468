"""Demonstrations for supervised fine-tuning: tokens, with a mask of the agent's tokens.

A scripted agent plays demonstrations in the environment, so their token layout equals that of the rollouts in
reinforcement learning. Conversations from a file go through the same chat template.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from transformers import PreTrainedTokenizerBase

from ...envs.agent import Message
from ...envs.base import Env
from ...envs.chat import content_from
from ...envs.content import Content, blocks_of, pictures_of, text_of
from ...envs.multi_turn import MultiTurnEnv
from ...envs.trajectory import TokenArrays, Trajectory
from ..agents.scripted import ScriptedAgent, ScriptedSession
from ..policy.vision.processor import ModelImage, VisionError, VisionProcessor
from . import TrainingError

logger = logging.getLogger(__name__)

BATCH = 64
"""Demonstrations that are played at the same time."""

RouteChoice = Callable[[Mapping[str, object], Sequence[str], random.Random], str]
"""`choose(task, routes, rng) -> route`, one of `routes`."""


@dataclass(frozen=True)
class Demonstration:
    """One conversation to learn. Only the tokens under `tokens.agent_mask` count. images: in the order of their
    tokens."""

    tokens: TokenArrays
    trajectory: Trajectory | None = None
    images: tuple[ModelImage, ...] = ()

    def to_features(self) -> dict[str, list[int]]:
        """Return `input_ids` and `labels`, both of length T. Labels are -100 outside the agent's tokens."""
        ids = self.tokens.token_ids.astype(np.int64)
        return {"input_ids": ids.tolist(), "labels": np.where(self.tokens.agent_mask, ids, -100).tolist()}


def always(route: str) -> RouteChoice:
    """Choose one route for every task. Raises TrainingError for a task without it."""

    def choose(task: Mapping[str, object], routes: Sequence[str], rng: random.Random) -> str:
        if route not in routes:
            known = ", ".join(routes) or "no demonstrations (set sft.data)"
            raise TrainingError(f"the environment shows no route {route!r} for a task; it has {known}")
        return route

    return choose


def play_demonstrations(
    env: Env,
    tasks: Sequence[Mapping[str, object]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    choose: RouteChoice | None = None,
    seed: int = 0,
    max_tokens: int | None = None,
    knows: Callable[[str], bool] = lambda environment: True,
    template_kwargs: Mapping[str, object] | None = None,
    vision: VisionProcessor | None = None,
) -> list[Demonstration]:
    """Play one demonstration of each task in `env`, by default the right route.

    knows: which environments need no explanation in the prompt (`TransformersAgent.knows`). vision: for a policy that
    takes images. Skips demonstrations longer than `max_tokens` and those in which the environment failed. Raises
    TrainingError if none is left, or if the environment has no demonstrations.
    """
    if not isinstance(env, MultiTurnEnv):
        raise TrainingError(f"{type(env).__name__} cannot play demonstrations: it is not a MultiTurnEnv")
    choose = choose or always("right")
    rng = random.Random(seed)
    found: list[Demonstration] = []
    reason = "it has none"
    for start in range(0, len(tasks), BATCH):
        part = tasks[start : start + BATCH]
        try:
            shows = [env.demonstrate(t, choose(t, env.routes(t), rng), seed=rng.randrange(2**31)) for t in part]
        except ValueError as error:
            raise TrainingError(str(error)) from error
        agent = ScriptedAgent(
            lambda row, turn, seen, shows=shows: shows[row].next(seen),
            tokenizer,
            knows=knows,
            template_kwargs=template_kwargs,
            vision=vision,
        )
        trial = env.run_trial(part, agent, 1)
        for trajectory, tokens, shown in zip(trial["trajectories"], trial["tokens"], trial["images"], strict=True):
            if trajectory.error is not None:
                reason = trajectory.error
            elif max_tokens is not None and len(tokens) > max_tokens:
                reason = f"one has {len(tokens)} tokens, over the limit of {max_tokens}"
            else:
                found.append(Demonstration(tokens, trajectory, tuple(one.image for one in shown)))
    if not found:
        raise TrainingError(f"{type(env).__name__} provides no usable demonstration: {reason}")
    return found


def read_conversations(
    path: Path | str,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_tokens: int | None = None,
    template_kwargs: Mapping[str, object] | None = None,
    vision: VisionProcessor | None = None,
) -> list[Demonstration]:
    """Read conversations from a JSONL file with one `{"messages": [{"role", "content"}, ...]}` per line. `tools` in a
    line are the schemas that the chat template shows.

    The agent wrote the turns with role `assistant`. They alternate with observations, which have the role `user`. For a
    policy that takes images (`vision`), all other content may be blocks, including `{"type": "image", "image":
    "file.png"}`. Skips, with a line in the log, conversations longer than `max_tokens` and those with an unreadable
    image. Raises TrainingError with file and line.
    """
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8-sig").split("\n")  # splitlines splits at U+2028, too
    except (OSError, UnicodeDecodeError) as error:
        raise TrainingError(f"sft.data: {path} cannot be read: {error}") from error
    agent = ScriptedAgent([], tokenizer, template_kwargs=template_kwargs, vision=vision, native_calls=True)
    found, reason, long = [], "", 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            shown = _conversation(line, where, agent)
        except VisionError as problem:
            logger.warning("%s is left out: %s", where, problem)
            reason = f"; line {number}: {problem}"
            continue
        if max_tokens is None or len(shown.tokens) <= max_tokens:
            found.append(shown)
        else:
            long += 1
    if not found:
        raise TrainingError(f"{path} contains no conversation of at most {max_tokens} tokens{reason}")
    if long:
        every = long + len(found)
        logger.warning("left out %d of %d conversations: over %d tokens (sft.max_tokens)", long, every, max_tokens)
    return found


def _conversation(line: str, where: str, agent: ScriptedAgent) -> Demonstration:
    """Read one line of a file. Raises TrainingError, or VisionError for an unreadable image."""
    try:
        row = json.loads(line)
        messages, tools = row["messages"], row.get("tools") or None
        roles = [m["role"] for m in messages]
        raw = [m["content"] for m in messages]
    except (ValueError, KeyError, TypeError) as error:
        right = 'each line must be {"messages": [{"role": "user", "content": "..."}, ...]}'
        raise TrainingError(f"{where}: {right}") from error
    contents = [_content(role, content, where) for role, content in zip(roles, raw, strict=True)]
    if not agent.sees and pictures_of([{"content": content} for content in contents]):
        raise TrainingError(f"{where}: it shows an image, but model.base takes no images")
    if "assistant" not in roles or roles[0] == "assistant":
        raise TrainingError(f"{where}: a conversation must begin with a user's message and have an assistant's")
    first = roles.index("assistant")
    turns, answers = contents[first::2], contents[first + 1 :: 2]
    if any((role == "assistant") != (i % 2 == 0) for i, role in enumerate(roles[first:])):
        raise TrainingError(f"{where}: after the opening, the assistant's turns and the answers must alternate")
    for number, role in enumerate(roles, 1):
        if role not in ("user", "assistant", *(("system",) if number <= first else ())):
            raise TrainingError(
                f"{where}: message {number} has the role {role!r}; the opening has the roles system and user, and "
                "replies to the assistant have the role user, like observations of environments"
            )
    prompt = [
        Message(role=role, content=content) for role, content in zip(roles[:first], contents[:first], strict=True)
    ]
    agent.script = [list(map(text_of, turns))]
    session = cast(ScriptedSession, agent.start([prompt], tools=tools))
    for answer in [*answers, None][: len(turns)]:
        turn = session.act([0])[0]
        if turn.stop_reason == "refused":
            raise VisionError(turn.problem)
        if answer is not None:
            words = "\n".join(block["text"] for block in blocks_of(answer) if block["type"] == "text")
            session.observe_seen([0], [words], [pictures_of([{"content": answer}])])
    return Demonstration(session.tokens(0), images=tuple(one.image for one in session.shown(0)))


def _content(role: str, value: object, where: str) -> Content:
    """Read the content of a message. Raises TrainingError."""
    if not isinstance(value, str) and (role == "assistant" or not isinstance(value, list)):
        raise TrainingError(f"{where}: every content must be text, or, if not the assistant's, a list of blocks")
    try:
        return content_from(value, where)
    except ValueError as problem:
        raise TrainingError(str(problem)) from problem
