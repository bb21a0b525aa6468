"""Rollouts in the formats of agent frameworks: ATIF trajectories, and inspect-ai logs."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ...engine.runs.types import RunInfo, Step
from ..app.calls import calls_of
from ..cli.output import json_line, whole_text
from ..plain import Whole, trajectory_data
from .chat import completion, prompt, tools, turn

ATIF = "ATIF-v1.7"
_SOURCES = {"system": "system", "assistant": "agent"}


def atif(whole: Whole, info: RunInfo) -> dict[str, object]:
    """Return one trajectory in the Agent Trajectory Interchange Format. Rewards are in `extra`."""
    t = whole.record.trajectory
    prompt_steps = [{"source": _SOURCES.get(m["role"], "user"), "message": m["content"]} for m in prompt(t)]
    steps = [*prompt_steps, *(made for step in t.steps for made in _atif_turn(step))]
    data = trajectory_data(whole)
    known = ("reward", "advantage", "step_advantages", "breakdown", "policy_version", "split", "note", "recomputed")
    extra = {
        **{name: data[name] for name in known},
        "step": whole.step,
        "group": t.group,
        "correct": t.correct,
        "error": t.error,
    }
    agent = {"name": t.agent or info.environment or "grpo-tui", "version": version("grpo-tui")}
    return {
        "schema_version": ATIF,
        "session_id": t.id,
        "trajectory_id": t.id,
        "agent": {**agent, "model_name": _model(whole, info), "tool_definitions": tools(t) or None},
        "steps": [{"step_id": i, **step} for i, step in enumerate(steps, 1)],
        "extra": {name: value for name, value in extra.items() if value not in (None, [])},
    }


def _atif_turn(step: Step) -> list[dict[str, object]]:
    message, *answers = turn(step)
    atif_step: dict[str, object] = {"source": "agent", "message": message["content"]}
    if "reasoning_content" in message:
        atif_step["reasoning_content"] = message["reasoning_content"]
    if "tool_calls" in message:
        atif_step["tool_calls"] = [
            {
                "tool_call_id": written["id"],
                "function_name": call.name,
                "arguments": dict(call.arguments) if isinstance(call.arguments, Mapping) else {"text": call.arguments},
            }
            for written, call in zip(message["tool_calls"], calls_of(step), strict=True)
        ]
    results = [{"source_call_id": m["tool_call_id"], "content": m["content"]} for m in answers if m["role"] == "tool"]
    if results:
        atif_step["observation"] = {"results": results}
    return [atif_step, *({"source": "user", "message": m["content"]} for m in answers if m["role"] == "user")]


def _model(whole: Whole, info: RunInfo) -> str:
    return str(whole.record.trajectory.meta.get("model") or info.model or "unknown")


def write_inspect(path: Path, wholes: Iterable[Whole], info: RunInfo) -> int:
    """Write an inspect-ai log: one sample per group, one epoch per rollout of it, rewards as scores."""
    epochs: dict[str, int] = {}
    summaries = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for whole in wholes:
            group = _sample_id(whole.record.trajectory.group or whole.record.trajectory.id)
            epochs[group] = epochs.get(group, 0) + 1
            sample = _sample(whole, info, group, epochs[group])
            archive.writestr(f"samples/{group}_epoch_{epochs[group]}.json", json_line(sample))
            kept = ("id", "epoch", "target", "scores", "uuid", "metadata")
            first = {"input": whole.record.trajectory.prompt[:1000], "completed": True}
            summaries.append({**{name: sample[name] for name in kept}, **first})
        header = _header(info, len(epochs), max(epochs.values(), default=1))
        archive.writestr("_journal/start.json", json_line({key: header[key] for key in ("version", "eval", "plan")}))
        archive.writestr("summaries.json", json_line(summaries))
        archive.writestr("header.json", json_line(header))
    return len(summaries)


def _sample_id(group: str) -> str:
    """Return a group's sample id. It is part of a file name in the archive, and a group may be a whole text."""
    name = whole_text(group).replace("\0", "␀")
    return name if len(name) <= 1000 else f"{name[:100]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def _sample(whole: Whole, info: RunInfo, group: str, epoch: int) -> dict[str, object]:
    t, data = whole.record.trajectory, trajectory_data(whole)
    messages = [_inspect_message(m, i) for i, m in enumerate((*prompt(t), *completion(t)))]
    last = next((m for m in reversed(messages) if m["role"] == "assistant"), None)
    choices = [] if last is None else [{"message": last, "stop_reason": "unknown"}]
    return {
        "id": group,
        "epoch": epoch,
        "uuid": t.id,
        "input": [_inspect_message(m, i) for i, m in enumerate(prompt(t))],
        "target": t.expected or "",
        "messages": messages,
        "output": {"model": _model(whole, info), "choices": choices},
        "scores": {name: {"value": value, "answer": t.answer} for name, value in _scores(whole).items()},
        "metadata": {"step": whole.step} | {n: data[n] for n in ("n", "advantage", "policy_version", "split", "note")},
        **({"error": {"message": t.error, "traceback": "", "traceback_ansi": ""}} if t.error else {}),
    }


def _scores(whole: Whole) -> dict[str, float | str]:
    """Return the reward, the contribution of each component, and the grade if the answer is known."""
    breakdown = whole.record.breakdown
    found = {} if breakdown is None else breakdown.contributions
    if (reward := whole.record.reward) is not None:
        found["reward"] = reward
    correct = whole.record.trajectory.correct
    graded = {} if correct is None else {"correct": "C" if correct else "I"}
    return {**found, **graded}


def _inspect_message(message: Mapping[str, Any], index: int) -> dict[str, object]:
    converted = {"id": f"m{index}", "role": message["role"], "content": message["content"]}
    if message["role"] not in ("system", "user", "assistant", "tool"):
        converted["role"] = "user"
    if "reasoning_content" in message:
        thought = {"type": "reasoning", "reasoning": message["reasoning_content"]}
        converted["content"] = [thought, {"type": "text", "text": message["content"]}]
    if "tool_calls" in message:
        converted["tool_calls"] = [_inspect_call(call) for call in message["tool_calls"]]
    if "tool_call_id" in message:
        converted["tool_call_id"] = message["tool_call_id"]
    return converted


def _inspect_call(call: Mapping[str, Any]) -> dict[str, object]:
    function = call["function"]
    converted = {"id": call["id"], "function": function["name"], "type": "function"}
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return {**converted, "arguments": {"text": function["arguments"]}, "parse_error": "the arguments are not JSON"}
    return {**converted, "arguments": arguments if isinstance(arguments, dict) else {"value": arguments}}


def _header(info: RunInfo, samples: int, epochs: int) -> dict[str, object]:
    spec = {
        "eval_id": info.id,
        "run_id": info.id,
        "created": datetime.fromtimestamp(info.created, UTC).isoformat(),
        "task": info.environment or info.id,
        "dataset": {"name": info.environment or info.id, "samples": samples},
        "model": info.model or "unknown",
        "config": {"epochs": epochs},
    }
    return {"version": 2, "status": "success", "eval": spec, "plan": {}, "stats": {}}
