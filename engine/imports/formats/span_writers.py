"""Convert the spans of each tracing tool into `spans.Span`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..calls import value_of
from ..mapped import scores
from ..rollout import Score
from ..values import Document, listed, mapping, number, objects, text, whole
from .spans import Span, read_json, traces


def otlp(document: Document) -> list[Span] | None:
    """Read OTLP JSON with one export request per line."""
    if not isinstance(document.get("resourceSpans"), list):
        return None
    found = []
    for resource in document["resourceSpans"]:
        for scope in listed(mapping(resource).get("scopeSpans")):
            for span in objects(mapping(scope).get("spans")):
                events = [{**e, "attributes": _typed(e)} for e in objects(span.get("events"))]
                about = {"parent_id": span.get("parentSpanId"), "start_time": span.get("startTimeUnixNano")}
                found.append(_otel({**span, **about, "events": events}, str(span.get("traceId")), _typed(span)))
    return found


def console(document: Document) -> list[Span] | None:
    """Read a span printed by `ConsoleSpanExporter` (`ReadableSpan.to_json`) or returned by the Phoenix client."""
    context = document.get("context")
    if not isinstance(context, Mapping) or "trace_id" not in context or "attributes" not in document:
        return None
    return [_otel(document, str(context["trace_id"]), mapping(document["attributes"]))]


def phoenix(document: Document) -> list[Span] | None:
    """Read a row of the Phoenix span table, whose columns `attributes.…` hold attributes."""
    if "context.trace_id" not in document:
        return None
    start = "attributes."
    attributes = {k.removeprefix(start): v for k, v in document.items() if k.startswith(start) and v is not None}
    return [_otel(document, str(document["context.trace_id"]), attributes)]


def _otel(span: Document, trace: str, attributes: Document) -> Span:
    status = mapping(span.get("status")) or {"code": span.get("status_code"), "message": span.get("status_message")}
    failed = status.get("code", status.get("status_code")) in (2, "STATUS_CODE_ERROR", "ERROR")
    reason = text(status.get("message", status.get("description"))) or text(attributes.get("error.type")) or "error"
    kind = str(attributes.get("openinference.span.kind") or span.get("span_kind") or "").lower()
    return Span(
        trace=trace,
        start=_time(span.get("start_time")),
        is_root=not span.get("parent_id"),
        name=text(span.get("name")) or "",
        kind=kind if kind in ("llm", "tool") else "",
        attributes=attributes,
        events=[(str(e.get("name")), mapping(e.get("attributes"))) for e in objects(span.get("events"))],
        asked=attributes.get("input.value"),
        said=attributes.get("output.value"),
        error=reason if failed else None,
        model=text(attributes.get("llm.model_name")) or "",
        tokens=whole(attributes.get("llm.token_count.total")),
    )


def mlflow(document: Document) -> list[Span] | None:
    """Read an MLflow trace of version 2 or 3 (`Trace.to_dict`)."""
    info, data = document.get("info"), document.get("data")
    if not isinstance(info, Mapping) or not isinstance(data, Mapping) or not isinstance(data.get("spans"), list):
        return None
    trace = text(info.get("trace_id")) or text(info.get("request_id")) or ""
    about = {**mapping(info.get("tags")), **mapping(info.get("trace_metadata"))}
    about = {k: v for k, v in about.items() if not str(k).startswith("mlflow.")}
    components = {}
    for assessment in objects(info.get("assessments")):
        if (score := number(mapping(assessment.get("feedback")).get("value"))) is not None:
            components[text(assessment.get("assessment_name") or assessment.get("name")) or "score"] = Score(score)
    found = []
    for span in data["spans"]:
        kept = mapping(mapping(span).get("attributes"))  # MLflow stores each value as JSON text
        attributes = {k: value_of(v) if isinstance(v, str) else v for k, v in kept.items()}
        kind = str(attributes.get("mlflow.spanType") or span.get("span_type") or "").lower()
        status = span.get("status") or {}
        code = mapping(status).get("code", span.get("status_code"))
        is_root = not (span.get("parent_span_id") or span.get("parent_id"))
        reason = text(mapping(status).get("message") or span.get("status_message")) or "error"
        usage = mapping(attributes.get("mlflow.chat.tokenUsage"))
        found.append(
            Span(
                trace=trace,
                start=_time(span.get("start_time_unix_nano", span.get("start_time"))),
                is_root=is_root,
                name=text(span.get("name")) or "",
                kind={"chat_model": "llm", "llm": "llm", "tool": "tool"}.get(kind, ""),
                attributes={**attributes, **(about if is_root else {})},
                asked=attributes.get("mlflow.spanInputs", span.get("inputs")),
                said=attributes.get("mlflow.spanOutputs", span.get("outputs")),
                error=reason if code in ("ERROR", "STATUS_CODE_ERROR", 2) else None,
                components=components if is_root else {},
                tokens=whole(usage.get("total_tokens")),
                model=text(mapping(attributes.get("mlflow.spanInputs")).get("model")) or "",
            )
        )
    return found


def langsmith(document: Document) -> list[Span] | None:
    """Read a LangSmith run, including any nested child runs. A bulk export has one run per row."""
    if "run_type" not in document or "inputs" not in document:
        return None
    extra = mapping(document.get("extra"))
    metadata = mapping(extra.get("metadata"))
    inputs, outputs = read_json(document.get("inputs")), read_json(document.get("outputs"))
    kind = {"llm": "llm", "chat_model": "llm", "tool": "tool"}.get(str(document["run_type"]), "")
    components = {
        name: Score(number(mapping(stats).get("avg")))
        for name, stats in mapping(document.get("feedback_stats")).items()
    }
    answer = mapping(mapping(outputs).get("output"))
    call_id = mapping(answer.get("kwargs", answer)).get("tool_call_id") or metadata.get("tool_call_id")
    own = {**metadata, **({"tool_call_id": call_id} if call_id else {})}
    root = Span(
        trace=text(document.get("trace_id")) or text(document.get("id")) or "",
        start=_time(document.get("start_time")),
        is_root=not document.get("parent_run_id"),
        name=text(document.get("name")) or "",
        kind=kind,
        attributes=own,
        asked=inputs,
        said=outputs if outputs is not None else document.get("error") if kind == "tool" else None,
        error=text(document.get("error")),
        components={k: v for k, v in components.items() if v.value is not None},
        model=text(metadata.get("ls_model_name")) or "",
        tokens=whole(document.get("total_tokens")),
    )
    children = objects(document.get("child_runs"))
    return [root, *(span for child in children for span in langsmith(child) or ())]


def langfuse(document: Document) -> list[Span] | None:
    """Read a Langfuse trace, including any nested observations."""
    if not isinstance(document.get("scores"), list) or not ("observations" in document or "projectId" in document):
        return None
    trace = text(document.get("id")) or ""
    all_scores = objects(document["scores"])
    labels = {str(s.get("name")): s.get("stringValue") for s in all_scores if s.get("dataType") == "CATEGORICAL"}
    about = {**mapping(document.get("metadata")), **labels, "gen_ai.conversation.id": trace}
    root = Span(
        trace=trace,
        start=_time(document.get("timestamp")),
        is_root=True,
        name=text(document.get("name")) or "",
        attributes=about,
        asked=document.get("input"),
        said=document.get("output"),
        components=scores([s for s in all_scores if s.get("name") not in labels]),
    )
    observations = objects(document.get("observations"))
    return [root, *(_observation(trace, each) for each in observations)]


def langfuse_rows(document: Document) -> list[Span] | None:
    """Read a row of a Langfuse blob storage export: a trace, an observation or a score."""
    if "project_id" not in document or "environment" not in document:
        return None
    if "bookmarked" in document and "input" in document:
        trace = {**document, "scores": [], "observations": []}
        return langfuse({**trace, "input": read_json(document["input"]), "output": read_json(document.get("output"))})
    if "trace_id" not in document:
        return None
    trace = text(document["trace_id"]) or ""
    if "data_type" in document and "value" in document:
        value = number(document["value"]) if document["data_type"] != "CATEGORICAL" else None
        name = text(document.get("name")) or "score"
        return [Span(trace, kind="other", components={} if value is None else {name: Score(value)})]
    if "parent_observation_id" in document:
        names = {"start_time": "startTime", "status_message": "statusMessage", "provided_model_name": "model"}
        row = {names.get(key, key): value for key, value in document.items()}
        return [_observation(trace, {**row, "usage": row.get("usage_details")})]
    return None


def _observation(trace: str, row: Document) -> Span:
    return Span(
        trace,
        _time(row.get("startTime")),
        name=text(row.get("name")) or "",
        kind={"GENERATION": "llm", "TOOL": "tool"}.get(str(row.get("type")), "other"),
        attributes=mapping(row.get("metadata")),
        asked=read_json(row.get("input")),
        said=read_json(row.get("output")),
        error=(text(row.get("statusMessage")) or "error") if row.get("level") == "ERROR" else None,
        model=text(row.get("model")) or "",
        tokens=whole(mapping(row.get("usage")).get("total", row.get("totalTokens"))),
    )


def _time(value: object) -> float:
    """Convert a time into a sortable number: nanoseconds, seconds, or the digits of an ISO date."""
    found = number(value)
    if found is None:
        found = float((re.sub(r"\D", "", str(value or "")) + "0" * 20)[:20])
    return found


def _typed(span: Document) -> dict[str, object]:
    return {str(a.get("key")): _value(a.get("value")) for a in objects(span.get("attributes"))}


def _value(value: object) -> Any:
    for kind, inner in mapping(value).items():
        match kind:
            case "intValue":
                return whole(inner)
            case "arrayValue":
                return [_value(v) for v in listed(mapping(inner).get("values"))]
            case "kvlistValue":
                return {str(p.get("key")): _value(p.get("value")) for p in objects(mapping(inner).get("values"))}
            case _:
                return inner
    return None


SPANS = (
    traces("OpenTelemetry spans", otlp),
    traces("OpenTelemetry spans of the console", console),
    traces("OpenInference spans", phoenix),
    traces("MLflow traces", mlflow),
    traces("LangSmith runs", langsmith),
    traces("Langfuse traces", langfuse),
    traces("Langfuse rows", langfuse_rows),
)
