"""Rollouts as conversations: OpenAI's messages, ShareGPT, preference pairs, and Hugging Face's trace viewer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...engine.runs.types import Step, Trajectory
from ..app.calls import calls_of, said
from ..cli.output import json_line
from ..plain import Whole


def prompt(t: Trajectory) -> list[dict[str, Any]]:
    """Return the messages before the first turn."""
    return [{"role": m.role, "content": m.text} for m in t.messages] or [{"role": "user", "content": t.prompt}]


def turn(step: Step) -> list[dict[str, Any]]:
    """Return a turn as messages of OpenAI's chat format: text, thought and calls of the agent, then the results.

    In our own environments, words before a parsed call are text. Thoughts go to `reasoning_content`.
    """
    thought, text = said(step)
    calls = calls_of(step)
    if step.needs_call and calls:  # our own environments: the text holds words, then the raw calls
        thought, text = (thought, "") if "<think" in step.thought else ("", step.thought.strip())
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thought:
        message["reasoning_content"] = thought
    messages, rest = [message], step.observation
    for index, call in enumerate(calls):
        name = call.id or f"call_{step.index}_{index}"
        arguments = call.arguments if isinstance(call.arguments, str) else json_line(call.arguments)
        function = {"name": call.name, "arguments": arguments}
        message.setdefault("tool_calls", []).append({"id": name, "type": "function", "function": function})
        if call.result is not None:
            messages.append({"role": "tool", "tool_call_id": name, "content": call.result})
            rest = rest.removeprefix(call.result).removeprefix("\n\n")
    return [*messages, {"role": "user", "content": rest}] if rest else messages


def completion(t: Trajectory) -> list[dict[str, Any]]:
    """Return the messages from the first turn to the agent's last text."""
    messages = [message for step in t.steps for message in turn(step)]
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    return messages


def tools(t: Trajectory) -> list[dict[str, object]]:
    """Return the tools in the form that the API expects."""
    return [tool.schema for tool in t.tools]


def demonstration(t: Trajectory) -> dict[str, object]:
    """Return the agent's turns verbatim, and the observations as user messages."""
    messages = prompt(t)
    for step in t.steps:
        messages += [{"role": "assistant", "content": step.text}, {"role": "user", "content": step.observation}]
    shown = [tool.schema for tool in t.tools if tool.name in t.meta.get("offered", ())]
    return {"messages": messages[:-1], **({"tools": shown} if shown else {})}


def openai(t: Trajectory) -> dict[str, object]:
    """Return a line of OpenAI's chat format for fine-tuning, which TRL's SFTTrainer also accepts."""
    offered = tools(t)
    return {"messages": [*prompt(t), *completion(t)], **({"tools": offered} if offered else {})}


def sharegpt(t: Trajectory) -> dict[str, object]:
    """Return a line of ShareGPT. Calls and results are inside the texts, in Hermes tags."""
    conversation = []
    for message in (*prompt(t), *completion(t)):
        parts = [message["content"]] if message["content"] else []
        if (thought := message.get("reasoning_content")) is not None:
            parts.insert(0, f"<think>\n{thought}\n</think>")
        for call in message.get("tool_calls", ()):
            parts.append(f"<tool_call>\n{json_line(_call(call['function']))}\n</tool_call>")
        text = "\n".join(parts)
        if message["role"] == "tool":
            text = f"<tool_response>\n{text}\n</tool_response>"
        speaker = {"user": "human", "assistant": "gpt"}.get(message["role"], message["role"])
        conversation.append({"from": speaker, "value": text})
    offered = tools(t)
    return {"conversations": conversation, **({"tools": json_line(offered)} if offered else {})}


def _call(function: Mapping[str, str]) -> dict[str, object]:
    try:
        return {"name": function["name"], "arguments": json.loads(function["arguments"])}
    except ValueError:  # the agent wrote invalid JSON
        return dict(function)


def pairs(wholes: Iterable[Whole]) -> Iterator[dict[str, object]]:
    """Yield TRL's conversational preference format: best and worst rollout of each group, if their rewards differ."""
    groups: dict[str, tuple[Whole, Whole]] = {}
    for whole in wholes:
        if _reward(whole) is None or not whole.record.trajectory.steps:
            continue
        worst, best = groups.get(whole.record.trajectory.group, (whole, whole))
        worst = whole if _reward(whole) < _reward(worst) else worst
        best = whole if _reward(whole) > _reward(best) else best
        groups[whole.record.trajectory.group] = worst, best
    for worst, best in groups.values():
        if _reward(worst) == _reward(best):
            continue
        rejected, chosen = worst.record.trajectory, best.record.trajectory
        offered = tools(chosen)
        yield {
            "prompt": prompt(chosen),
            "chosen": completion(chosen),
            "rejected": completion(rejected),
            "score_chosen": _reward(best),
            "score_rejected": _reward(worst),
            **({"tools": offered} if offered else {}),
        }


def _reward(whole: Whole) -> Any:
    reward = whole.record.reward
    return reward if reward == reward else None


def session(whole: Whole) -> Iterator[dict[str, object]]:
    """Yield a session in the Session Trace Simple Format of the Hugging Face Hub: a header, then messages."""
    t, record = whole.record.trajectory, whole.record
    about = {"step": whole.step, "group": t.group, "reward": _reward(whole), "advantage": record.advantage}
    name = " ".join(t.prompt.split())[:80]
    yield {"type": "session", "harness": "grpo-tui", "id": t.id, "name": name, "environment": t.env, **about}
    renamed = {"reasoning_content": "reasoningContent", "tool_calls": "toolCalls", "tool_call_id": "toolCallId"}
    for message in (*prompt(t), *(m for step in t.steps for m in turn(step))):
        yield {"type": "message", "message": {renamed.get(key, key): value for key, value in message.items()}}
