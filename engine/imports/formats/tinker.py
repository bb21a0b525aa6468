"""tinker-cookbook: summaries of all rollouts, and a logtree (the tree of its HTML report) with some texts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..format import Documents, Origin, side_file
from ..mapped import at, plain
from ..messages import conversation, message, split
from ..rollout import Item, Message, Rollout, Score
from ..values import Document, listed, mapping, number, objects, summed, text, whole

_LOGGED = re.compile(r"response|assistant_content|tool|error|parse_errors|tool_(?:call|result)_\d+")
"""Keys of a turn's log that are part of the turn. Other keys become columns."""
_REWARD = re.compile(r"reward (-?\d+(?:\.\d+)?|nan)")
MAX_DEPTH = 64


def _summary(document: Document, origin: Origin) -> Iterable[Item]:
    """Yield a rollout with its conversation from the logtree, or else the text that the environment logs."""
    steps = objects(document.get("steps"))
    logs = [mapping(s.get("logs")) for s in steps]
    messages = [m for step, log in zip(steps, logs, strict=True) for m in _logged(log, step)]
    errors = [error for log in logs if (error := _error(log))]
    one, several = _of_turns([mapping(s.get("metrics")) for s in steps])
    components = {k: number(v) for k, v in {**one, **mapping(document.get("trajectory_metrics"))}.items()}
    constant, by_turn = _of_turns([{k: v for k, v in log.items() if not _LOGGED.fullmatch(k)} for log in logs])
    iteration = whole(document.get("iteration"))
    name = text(document.get("split")) or "train"  # a named evaluation is `eval/gsm8k`
    kind, _, evaluation = name.partition("/")
    tags = [str(t) for t in listed(document.get("tags"))]
    group = f"{name}:{iteration}:{text(document.get('group_idx'))}"
    stop = next((k.removeprefix("stop/") for k, v in components.items() if k.startswith("stop/") and v), "")
    about = {"final_reward": number(document.get("final_reward")), "evaluation": evaluation, "tags": tags[1:-1]}
    yield Rollout(
        *(_from_logtree(document, origin) or ((), tuple(messages))),
        step=iteration,
        group=group,
        prompt_id=tags[-1] if tags else group,
        index=whole(document.get("traj_idx")),
        env=tags[0] if tags else "",
        split="eval" if kind == "test" else kind,
        reward=number(document.get("total_reward")),
        components={k: Score(v) for k, v in components.items() if not k.startswith("stop/")},
        stop=stop or next((s for step in steps[::-1] if (s := text(step.get("stop_reason")))), ""),
        error="; ".join(errors) or None,
        token_count=summed([s.get("ac_len") for s in steps]),
        policy_version=whole(document.get("sampling_client_step")),
        extra=plain({**about, **several, **constant, **by_turn}),
    )


def _logged(log: Document, step: Document) -> list[Message]:
    """Read the log of a turn. Environments with tools log texts, calls and results. Others log a response."""
    content = text(log.get("assistant_content", log.get("response"))) or ""
    calls = [{"name": log["tool"]}] if isinstance(log.get("tool"), str) else []
    results = []
    for i in range(len(log)):
        if isinstance(called := log.get(f"tool_call_{i}"), str):
            name, _, arguments = called.partition("(")
            calls.append({"name": name, "arguments": arguments.removesuffix(")"), "id": str(i)})
        if (result := text(log.get(f"tool_result_{i}"))) is not None:
            results.append(Message("tool", result, call_id=str(i)))
    answer = message({"role": "assistant", "content": content, "tool_calls": calls})
    stop = text(step.get("stop_reason")) or ""
    return [replace(answer, reward=number(step.get("reward")), stop=stop, error=_error(log)), *results]


def _error(log: Document) -> str | None:
    return text(log.get("error")) or text(log.get("parse_errors")) or None


def _of_turns(turns: list[Document]) -> tuple[dict[str, object], dict[str, list[object]]]:
    """Return by name the values that all turns share, and lists with one value per turn (null if it has none)."""
    names = {name: None for turn in turns for name in turn}
    columns = {name: [turn[name] for turn in turns if name in turn] for name in names}
    one = {name: values[0] for name, values in columns.items() if all(v == values[0] for v in values)}
    return one, {name: [turn.get(name) for turn in turns] for name in names if name not in one}


def _from_logtree(document: Document, origin: Origin) -> tuple[tuple[Message, ...], tuple[Message, ...]] | None:
    """Return prompt and completion of a rollout from the logtree in the same folder, or None.

    The tree identifies groups and rollouts only by their order, so a rollout counts only if its turns have the rewards
    of the summary.
    """
    steps = objects(document.get("steps"))
    group, index = whole(document.get("group_idx")), whole(document.get("traj_idx"))
    base = origin.path.name.partition("_rollout_summaries")[0]
    turns = _turns(origin.path.with_name(f"{base}_logtree.json")).get((group, index), [])
    rewards = [number(s.get("reward")) for s in steps]
    if not steps or len(turns) != len(steps):
        return None
    if not all(_same(_printed(turn), reward) for turn, reward in zip(turns, rewards, strict=True)):
        return None
    nodes = [node for t in turns for node in _nodes(t) if at(mapping(node), "data.type") == "conversation"]
    prompt, completion = split(conversation([m for talk in nodes for m in listed(at(talk, "data.messages"))]))
    if sum(m.is_agent for m in completion) != len(steps):
        return None
    errors = iter([_error(mapping(s.get("logs"))) for s in steps])
    by_turn = iter(rewards)
    return prompt, tuple(replace(m, reward=next(by_turn), error=next(errors)) if m.is_agent else m for m in completion)


@lru_cache(maxsize=2)
def _turns(path: Path) -> dict[tuple[int | None, int | None], list[Document]]:
    """Return the turns of each rollout in a logtree by (group number, rollout number)."""
    found: dict[tuple[int | None, int | None], list[Document]] = {}
    for group, section in enumerate(_sections(side_file(path).get("root"), "Group Rollout")):
        index = -1
        for turn in _sections(section, "Turn "):
            index += _heading(turn) == "Turn 1" or index < 0
            found.setdefault((group, index), []).append(turn)
    return found


def _same(printed: float | None, reward: float | None) -> bool:
    if printed is None or reward is None or math.isnan(reward):
        return printed is None or math.isnan(printed)
    return math.isclose(printed, reward, abs_tol=6e-4)


def _nodes(node: object, depth: int = 0) -> Iterator[Any]:
    """Yield a logtree node, then all nodes and texts inside it."""
    yield node
    for child in listed(mapping(node).get("children")) if depth <= MAX_DEPTH else ():
        yield from _nodes(child, depth + 1)


def _sections(node: object, heading: str) -> Iterator[Document]:
    return (n for n in _nodes(node) if mapping(n).get("tag") == "section" and _heading(n).startswith(heading))


def _printed(turn: Document) -> float | None:
    """Return the reward of a turn. The logtree prints it with three decimals."""
    texts = (_REWARD.fullmatch(n.strip()) for n in _nodes(turn) if isinstance(n, str))
    return next((number(found[1]) for found in texts if found is not None), None)


def _heading(section: Document) -> str:
    heads = (c for c in objects(section.get("children")) if re.fullmatch(r"h[1-6]", str(c.get("tag"))))
    return "".join(c for c in listed(next(heads, {}).get("children")) if isinstance(c, str)).strip()


TINKER = Documents(
    "tinker-cookbook summaries",
    _summary,
    keys=("traj_idx", "group_idx"),
    unknown={
        "prompt": "only the logtree contains prompts, and only for some groups",
        "tokens": "token ids are not written, only their number",
    },
)
