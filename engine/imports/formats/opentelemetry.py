"""OTLP JSON lines with the GenAI attributes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..format import Origin
from ..mapped import plain
from ..messages import conversation, split
from ..rollout import Amendment, Item, Message, Rollout, Score, listed, mapping, number, parsed, text, whole


class OpenTelemetry:
    """OTLP JSON lines with the GenAI attributes (also as older versions, OpenLLMetry and OpenInference have them): one
    rollout a trace. Spans are exported when they end: the longest conversation of a trace is the rollout, and what the
    root says on a later line is added to it."""

    name = "OpenTelemetry spans"
    unknown: Mapping[str, str] = {
        "advantage": "the GenAI attributes know no advantages",
        "weight": "the GenAI attributes know no weights",
        "components": "one evaluation score, no components",
    }

    def detect(self, document: Any, origin: Origin) -> bool:
        """By its keys."""
        return isinstance(document, Mapping) and isinstance(document.get("resourceSpans"), list)

    def open(self, document: Any, origin: Origin) -> Iterable[Item]:
        """One rollout a trace of this line that holds a conversation."""
        traces: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for resource in document["resourceSpans"]:
            for scope in listed(mapping(resource).get("scopeSpans")):
                for span in listed(mapping(scope).get("spans")):
                    if isinstance(span, Mapping):
                        traces[str(span.get("traceId"))].append(span)
        for trace_id, spans in traces.items():
            made = _of_spans(trace_id, spans) or _of_root(trace_id, spans)
            if made is not None:
                yield made


def _of_spans(trace_id: str, spans: list[Mapping[str, Any]]) -> Rollout | None:
    spans = sorted(spans, key=lambda s: whole(s.get("startTimeUnixNano")) or 0)
    attributes = [_attributes(s) for s in spans]
    root = next((a for s, a in zip(spans, attributes, strict=True) if not s.get("parentSpanId")), attributes[0])
    messages: tuple[Message, ...] = ()
    tools: dict[str, str | None] = {}
    usage = 0
    for span, values in zip(spans, attributes, strict=True):
        if values.get("gen_ai.operation.name") == "execute_tool":
            failed = mapping(span.get("status")).get("code") in (2, "STATUS_CODE_ERROR")
            said = text(values.get("error.type")) or text(mapping(span.get("status")).get("message"))
            tools[str(values.get("gen_ai.tool.call.id"))] = (said or "the tool failed") if failed else None
        if said_here := _talk(span, values):
            messages = said_here
            usage = sum(whole(values.get(f"gen_ai.usage.{k}_tokens")) or 0 for k in ("input", "output"))
    if not messages:
        return None
    messages = tuple(replace(m, error=tools.get(m.call_id) or m.error) if m.call_id else m for m in messages)
    prompt, said = split(messages)
    status = [mapping(s.get("status")) for s in spans if not s.get("parentSpanId")]
    failed = next((s for s in status if s.get("code") in (2, "STATUS_CODE_ERROR")), None)
    evaluated = _evaluations(spans, attributes)
    reward = evaluated.pop("reward", None)
    reward = number(next((root[k] for k in _REWARDS if k in root), None)) if reward is None else reward
    return Rollout(
        prompt=prompt,
        completion=said,
        id=_conversation(attributes) or trace_id,
        grows=True,
        step=whole(root.get("training.step")),
        group=text(root.get("training.group")) or "",
        env=text(root.get("gen_ai.agent.name")) or "",
        model=next((str(a["gen_ai.request.model"]) for a in attributes if a.get("gen_ai.request.model")), ""),
        reward=reward,
        components={name: Score(value) for name, value in evaluated.items()},
        error=text(failed.get("message")) or text(root.get("error.type")) or "error" if failed is not None else None,
        token_count=usage or None,
        extra=plain({k: v for k, v in root.items() if not k.startswith(_SHOWN) and k not in _REWARDS}),
    )


_REWARDS = ("training.reward", "reward")
_SHOWN = ("gen_ai.", "training.", "llm.")
_INDEXED = re.compile(r"(?:gen_ai|llm)\.(prompt|completion|input_messages|output_messages)\.\d+\.")
_SAID = ("completion", "output_messages")


def _talk(span: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[Message, ...]:
    """The conversation of a span: attributes with lists of messages, attributes with numbers in their names
    (`gen_ai.prompt.0.content`), or events, one a message."""
    events = [(str(e.get("name")), _attributes(e)) for e in listed(span.get("events")) if isinstance(e, Mapping)]
    for given in (values, *(about for _, about in events)):
        heard, said = (_read(given.get(f"gen_ai.{k}.messages")) for k in ("input", "output"))
        if heard is not None or said is not None:
            rules = conversation([{"role": "system", "content": _read(given.get("gen_ai.system_instructions"))}])
            found = (*conversation(heard), *conversation(said))
            return found if any(m.role == "system" for m in found) or not rules[0].text else (*rules, *found)
    if any(_INDEXED.match(k) for k in values):
        tree: dict[str, Any] = {}
        for key, value in values.items():
            if _INDEXED.match(key):
                _put(tree, key.split(".")[1:], value)
        made = {k: [_message_of(m) for _, m in sorted(v.items(), key=_place)] for k, v in tree.items()}
        heard = [m for k, part in made.items() if k not in _SAID for m in part]
        return conversation([*heard, *(m for k, part in made.items() if k in _SAID for m in part)])
    found = []
    for name, about in events:
        role = name.removeprefix("gen_ai.").removesuffix(".message")
        if name.startswith("gen_ai.") and (role == "choice" or name.endswith(".message")):
            inner = mapping(_read(about.get("message")))
            found.append({"role": "assistant" if role == "choice" else role, **about, **inner})
    return conversation(found)


def _put(tree: dict[str, Any], path: list[str], value: Any) -> None:
    """A value at a path of a tree of objects; lists are objects whose keys are numbers."""
    for name in path[:-1]:
        below = tree.setdefault(name, {})
        if not isinstance(below, dict):
            return
        tree = below
    tree[path[-1]] = value


def _message_of(tree: Any) -> Any:
    """A message with its calls as lists, without OpenInference's wrappers (`message.`, `tool_call.`)."""
    if not isinstance(tree, dict):
        return tree
    tree = tree.get("message", tree)
    calls = tree.get("tool_calls")
    if not isinstance(calls, dict):
        return tree
    items = [c for _, c in sorted(calls.items(), key=_place)]
    return {**tree, "tool_calls": [c.get("tool_call", c) if isinstance(c, dict) else c for c in items]}


def _place(item: tuple[str, Any]) -> int:
    return whole(item[0]) or 0


def _of_root(trace_id: str, spans: list[Mapping[str, Any]]) -> Amendment | None:
    """What spans without a conversation say of one that stands elsewhere; None where they say nothing."""
    attributes = [_attributes(s) for s in spans]
    known = {k: v for values in attributes for k, v in values.items()}
    evaluated = _evaluations(spans, attributes)
    step = whole(known.get("training.step"))
    extra = plain({k: v for k, v in known.items() if not k.startswith(_SHOWN) and k not in _REWARDS})
    reward = evaluated.pop("reward", None)
    reward = number(next((known[k] for k in _REWARDS if k in known), None)) if reward is None else reward
    if not evaluated and step is None and reward is None:
        return None
    extra |= {f"component.{name}": value for name, value in evaluated.items()}
    return Amendment(_conversation(attributes) or trace_id, step=step, reward=reward, extra=extra)


def _conversation(attributes: list[dict[str, Any]]) -> str:
    """The conversation's id, on whichever span it stands."""
    return next((str(a["gen_ai.conversation.id"]) for a in attributes if a.get("gen_ai.conversation.id")), "")


def _evaluations(spans: list[Mapping[str, Any]], attributes: list[dict[str, Any]]) -> dict[str, float | None]:
    """Scores by name: attributes of a span, or events on it (`gen_ai.evaluation.result`); one without a name is the
    reward."""
    events = [_attributes(e) for s in spans for e in listed(s.get("events")) if isinstance(e, Mapping)]
    return {
        text(values.get("gen_ai.evaluation.name")) or "reward": number(values["gen_ai.evaluation.score.value"])
        for values in (*attributes, *events)
        if "gen_ai.evaluation.score.value" in values
    }


def _attributes(span: Mapping[str, Any]) -> dict[str, Any]:
    return {str(a.get("key")): _value(a.get("value")) for a in listed(span.get("attributes")) if isinstance(a, Mapping)}


def _value(value: Any) -> Any:
    """OTLP's typed values as plain ones."""
    for kind, given in mapping(value).items():
        match kind:
            case "intValue":
                return whole(given)
            case "arrayValue":
                return [_value(v) for v in listed(mapping(given).get("values"))]
            case "kvlistValue":
                pairs = listed(mapping(given).get("values"))
                return {str(mapping(p).get("key")): _value(mapping(p).get("value")) for p in pairs}
            case _:
                return given
    return None


def _read(value: Any) -> Any:
    return parsed(value) if isinstance(value, str) else value
