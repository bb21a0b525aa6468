"""ATIF trajectories, and the trials of Harbor that they belong to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import chain

from ..format import Documents, Origin, side_file, side_text
from ..mapped import at, plain, scores
from ..messages import call, conversation, message, split
from ..rollout import Item, Message, Rollout, Score
from ..tokens import tokens_of_calls
from ..values import Document, listed, mapping, number, objects, summed, text
from .own import numbers_of

_PART = re.compile(r"\.(cont-\d+|summarization-.+)\Z")
"""Names of later files of one trial: a conversation continued after a summary, or the writing of the summary."""
_READ = ("schema_version", "session_id", "agent", "steps", "final_metrics", "extra", "subagent_trajectories")
_UNKNOWN = {
    "reward": "the writer keeps no total reward; Harbor's verifier writes components without weights",
    "group": "no group is written: rollouts of one task in one folder are shown as one group",
}
_OF_THE_TRIAL = {"reward": "the reward belongs to the trial and is shown at its first trajectory"}


def _open(document: Document, origin: Origin) -> Iterable[Item]:
    """Yield the rollout, and one more per subagent trajectory inside it."""
    folder = origin.path.parent
    result = side_file(folder.parent / "result.json") or side_file(folder / "result.json")
    rollout = _trajectory(document, text(result.get("trial_name")))
    part = _PART.search(origin.path.stem)
    if part is not None:
        yield replace(_of_trial(rollout, result, {}, origin), id=f"{rollout.id}:{part[1]}", unknown=_OF_THE_TRIAL)
    else:
        rollout = _of_trial(rollout, result, _rewards(result, origin), origin)
        own = mapping(document.get("extra"))
        if {"split", "group"} <= own.keys():  # our own export
            group, correct = text(own.get("group")) or "", own.get("correct")
            rollout = replace(rollout, **numbers_of(own), group=group, correct=correct, error=text(own.get("error")))
        yield rollout
    for i, inner in enumerate(objects(document.get("subagent_trajectories")), 1):
        if isinstance(inner.get("steps"), list):
            rollout = replace(_trajectory(inner, None), id=f"{rollout.id}:{text(inner.get('session_id')) or i}")
            yield replace(_of_trial(rollout, result, {}, origin), error=None, unknown=_OF_THE_TRIAL)


def _open_trial(document: Document, origin: Origin) -> Iterable[Item]:
    """Yield a rollout from the `result.json` of a trial without an ATIF trajectory."""
    if any((origin.path.parent / name).exists() for name in ("agent/trajectory.json", "trajectory.json")):
        return
    rollout = Rollout(
        id=text(document.get("trial_name")) or "",
        agent=text(at(document, "agent_info.name")) or "",
        model=text(at(document, "agent_info.model_info.name")) or "",
        extra=plain(mapping(document.get("agent_result"))),
    )
    yield _of_trial(rollout, document, _rewards(document, origin), origin)


def _trajectory(document: Document, trial: str | None) -> Rollout:
    steps = objects(document.get("steps"))
    agent, final = mapping(document.get("agent")), mapping(document.get("final_metrics"))
    calls = [mapping(s.get("metrics")) for s in steps if s.get("source") == "agent" and s.get("metrics")]
    ids = [tuple(listed(c.get(k)) for k in ("prompt_token_ids", "completion_token_ids", "logprobs")) for c in calls]
    others = {k: v for k, v in document.items() if k not in _READ}
    return Rollout(
        *split([m for step in steps for m in _messages(step)]),
        id=trial or text(document.get("session_id")) or "",
        agent=text(agent.get("name")) or "",
        model=text(agent.get("model_name")) or "",
        token_count=summed([final.get(k) for k in ("total_prompt_tokens", "total_completion_tokens")]),
        tokens=tokens_of_calls(ids),
        extra=plain({**others, **mapping(document.get("extra")), **final}),
        tools=tuple(objects(agent.get("tool_definitions"))),
    )


def _of_trial(rollout: Rollout, result: Document, rewards: Mapping[str, Score], origin: Origin) -> Rollout:
    total = rewards.get("reward")
    exception = [text(at(result, f"exception_info.exception_{k}")) for k in ("type", "message")]
    return replace(
        rollout,
        step=origin.step,
        prompt_id=text(result.get("task_name")) or "",
        env=text(result.get("source")) or "",
        reward=None if total is None else total.value,
        components={k: v for k, v in rewards.items() if k != "reward"},
        error=": ".join(part for part in exception if part) or None,
        seconds=_seconds(mapping(result.get("agent_execution"))) or _seconds(result),
    )


def _rewards(result: Document, origin: Origin) -> dict[str, Score]:
    """Return the verifier's scores by name, from the result (one number in old versions) or its files."""
    folders = [folder / "verifier" for folder in (origin.path.parent.parent, origin.path.parent)]
    files = ((side_file(folder / "reward.json"), side_text(folder / "reward.txt")) for folder in folders)
    for several, one in chain([(at(result, "verifier_result.rewards"), at(result, "verifier_result.reward"))], files):
        if found := scores(several):
            return found
        if (value := number(one)) is not None:
            return {"reward": Score(value)}
    return {}


def _messages(step: Document) -> list[Message]:
    first = message({**step, "content": step.get("message"), "name": "", "error": None})
    calls = tuple(call(c) for c in listed(step.get("tool_calls")) if c is not None)
    reasoning = text(step.get("reasoning_content")) or first.thought
    messages = [replace(first, calls=calls or first.calls, thought=reasoning)]
    for result in objects(at(step, "observation.results")):
        body = conversation([{"role": "tool", "content": result.get("content")}])
        messages += [replace(m, call_id=text(result.get("source_call_id")) or "") for m in body]
    return messages


def _seconds(times: Document) -> float:
    try:
        begin, end = (datetime.fromisoformat(str(times.get(k))) for k in ("started_at", "finished_at"))
        return max(0.0, (end - begin).total_seconds())
    except (ValueError, TypeError):
        return 0.0


ATIF = Documents(
    "ATIF trajectory",
    _open,
    lists=("steps",),
    when=lambda document, _: (
        str(document.get("schema_version") or "").startswith("ATIF") or {"session_id", "agent"} <= document.keys()
    ),
    unknown=_UNKNOWN,
)
HARBOR = Documents(
    "Harbor trial",
    _open_trial,
    keys=("trial_name", "task_name", "agent_info"),
    unknown={**_UNKNOWN, "turns": "the trial has no ATIF trajectory"},
)
