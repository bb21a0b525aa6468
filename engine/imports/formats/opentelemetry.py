"""OTLP JSON lines with the GenAI attributes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..format import Origin
from ..mapped import plain
from ..messages import conversation, split
from ..rollout import Amendment, Item, Message, Rollout, Score, listed, mapping, number, parsed, text, whole


class OpenTelemetry:
    """OTLP JSON lines with the GenAI attributes: one rollout a trace. Spans are exported when they end, so the root may
    stand on a later line than the conversation: what it says is added to the rollout."""

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
        if "gen_ai.input.messages" in values or "gen_ai.output.messages" in values:
            heard = conversation(_read(values.get("gen_ai.input.messages")))
            messages = (*heard, *conversation(_read(values.get("gen_ai.output.messages"))))
            usage = sum(whole(values.get(f"gen_ai.usage.{k}_tokens")) or 0 for k in ("input", "output"))
    if not messages:
        return None
    messages = tuple(replace(m, error=tools.get(m.call_id) or m.error) if m.call_id else m for m in messages)
    prompt, said = split(messages)
    status = [mapping(s.get("status")) for s in spans if not s.get("parentSpanId")]
    failed = next((s for s in status if s.get("code") in (2, "STATUS_CODE_ERROR")), None)
    evaluated = _evaluations(spans, attributes)
    reward = evaluated.pop("reward", None)
    return Rollout(
        prompt=prompt,
        completion=said,
        id=_conversation(attributes) or trace_id,
        step=whole(root.get("training.step")),
        group=text(root.get("training.group")) or "",
        env=text(root.get("gen_ai.agent.name")) or "",
        model=next((str(a["gen_ai.request.model"]) for a in attributes if a.get("gen_ai.request.model")), ""),
        reward=reward,
        components={name: Score(value) for name, value in evaluated.items()},
        error=text(failed.get("message")) or text(root.get("error.type")) or "error" if failed is not None else None,
        token_count=usage or None,
        extra=plain({k: v for k, v in root.items() if not k.startswith(("gen_ai.", "training."))}),
    )


def _of_root(trace_id: str, spans: list[Mapping[str, Any]]) -> Amendment | None:
    """What spans without a conversation say of one that stands elsewhere; None where they say nothing."""
    attributes = [_attributes(s) for s in spans]
    known = {k: v for values in attributes for k, v in values.items()}
    evaluated = _evaluations(spans, attributes)
    step = whole(known.get("training.step"))
    extra = plain({k: v for k, v in known.items() if not k.startswith(("gen_ai.", "training."))})
    if not evaluated and step is None:
        return None
    reward = evaluated.pop("reward", None)
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
