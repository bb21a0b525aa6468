"""Sessions of agents: Claude Code, Codex, Gemini CLI, OpenHands, and a bare list of messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..containers.session import is_claude, is_entry, is_session, is_simple
from ..format import Documents, Origin
from ..mapped import Mapped, at, plain
from ..messages import conversation, error_text, split
from ..rollout import Item, Message, Rollout
from ..values import Document, listed, mapping, number, objects, parsed, summed, text, whole
from .own import session

_ITEMS = ("message", "reasoning")
_EXIT_CODE = re.compile(r"(?:Exit code: |(?:[A-Z][\w ]{1,40}: [^\n]*\n){0,3}Process exited with code )(-?\d+)\n")
Entries = list[Document]


def _session(document: Document, origin: Origin) -> Iterable[Item]:
    """Yield the rollouts of a session file: the session itself, and one rollout per subagent."""
    entries: Entries = objects(document["session"])
    first = entries[0]
    if is_simple(first):
        found = [session(entries)]
    elif "source" in first and not first.keys() & {"role", "models_usage"}:
        found = [Rollout(*split(conversation(openhands_messages(entries))), env="OpenHands")]
    elif any(map(is_claude, entries[:32])):
        found = list(_claude(entries))
    elif is_entry(first) or "projectHash" in first:
        found = [Rollout(*split(conversation(entries)))]
    else:
        found = [_codex(entries)]
    for rollout in found:
        stop = rollout.stop or next((m.stop for m in reversed(rollout.completion) if m.stop), "")
        yield replace(rollout, id=rollout.id or origin.relative, grows=True, stop=stop, split=origin.split)


SESSIONS = Documents(
    "agent session",
    _session,
    lists=("session",),
    when=lambda document, _: is_session(document["session"][:32]) or any(map(is_entry, document["session"][:1])),
)


# --------------------------------------------------------------------------------------------------------- Claude Code


def _claude(entries: Entries) -> Iterable[Rollout]:
    """Read a Claude Code session, or the stream that Claude Code prints (`--output-format stream-json`).

    Entries form a tree, and the branch of the last entry is the conversation. A subagent logged in the same file is a
    separate rollout.
    """
    main = [e for e in entries if not _of_subagent(e)]
    sides: dict[str, Entries] = {}
    branch_of: dict[str, str] = {}
    for entry in entries:
        if _of_subagent(entry) and entry.get("uuid"):
            own = str(entry["uuid"])
            name = text(entry.get("agentId")) or text(entry.get("parent_tool_use_id"))
            branch_of[own] = name or branch_of.get(str(entry.get("parentUuid")), own)
            sides.setdefault(branch_of[own], []).append(entry)
    parts = [("", _branch(main))]
    parts += [(f"agent-{text(side[0].get('agentId')) or i}", side) for i, side in enumerate(sides.values(), 1)]
    session = next((str(s) for e in reversed(entries) if (s := e.get("sessionId") or e.get("session_id"))), "")
    about = next((e for e in entries if e.get("cwd")), {})
    for agent, branch in parts:
        if not any(_is_message(e) for e in branch):
            continue
        answers = [mapping(e.get("message")) for e in branch if e.get("type") == "assistant"]
        usage = mapping(answers[-1].get("usage")) if answers else {}
        keys = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
        end = next((e for e in reversed(branch) if _is_message(e) or e.get("type") == "result"), {})
        failed = end.get("isApiErrorMessage") or end.get("is_error") is True
        yield Rollout(
            *split(conversation(_claude_messages(branch))),
            id=f"{session}:{agent}" if agent and session else session,
            env="Claude Code",
            agent=agent,
            model=next((m for a in answers if (m := text(a.get("model"))) and m != "<synthetic>"), ""),
            token_count=summed([usage[k] for k in keys if k in usage]),
            error=(error_text(end.get("error") or end.get("subtype")) or "API error") if failed else None,
            seconds=(number(end.get("duration_ms")) or 0.0) / 1000,
            extra=plain({k: about.get(k) for k in ("cwd", "version", "gitBranch")}),
        )


def _of_subagent(entry: Document) -> bool:
    return bool(entry.get("isSidechain") or entry.get("parent_tool_use_id"))


def _is_message(entry: Document) -> bool:
    return entry.get("type") in ("user", "assistant")


def _branch(entries: Entries) -> Entries:
    """Return the entries on the path from the root to the last entry, with the results of their calls, because results
    of parallel calls are siblings in the tree.

    After a compaction, entries may be written again with the same id and another parent. The parent of a compaction, or
    of an entry whose parent is missing, is the previous entry in the file.
    """
    first: dict[object, Document] = {}
    parents: dict[str, set[str]] = {}
    last = ""
    for n, entry in enumerate(entries):
        id_ = text(entry.get("uuid"))
        first.setdefault(id_ or n, entry)
        if id_:
            above = {str(entry[k]) for k in ("parentUuid", "logicalParentUuid") if entry.get(k)}
            compacted = entry.get("isCompactSummary") or entry.get("subtype") == "compact_boundary"
            if not above & parents.keys() and (above or compacted) and last:
                above = {last}
            parents.setdefault(id_, set()).update(above)
            last = id_
    ahead = [str(e["uuid"]) for e in entries if e.get("uuid") and _is_message(e)][-1:]
    if not any(parents.values()):
        return list(first.values())
    chain: set[str] = set()
    while ahead:
        if (id_ := ahead.pop()) not in chain:
            chain.add(id_)
            ahead += parents.get(id_, ())
    answers = {mapping(first[u].get("message")).get("id") for u in chain if u in first} - {None}
    kept = [e for u, e in first.items() if u in chain or mapping(e.get("message")).get("id") in answers]
    calls = {p.get("id") for e in kept for p in _parts(e) if p.get("type") == "tool_use"}
    shown = {id(e) for e in kept}
    return [e for e in first.values() if id(e) in shown or any(p.get("tool_use_id") in calls for p in _parts(e))]


def _parts(entry: Document) -> list[Document]:
    return objects(mapping(entry.get("message")).get("content"))


def _claude_messages(entries: Entries) -> Entries:
    """Return the messages. The log holds one entry per part of an answer, and the answer's id joins them."""
    found: list[dict[str, Any]] = []
    for entry in entries:
        message = mapping(entry.get("message"))
        queued = mapping(entry.get("attachment"))
        if queued.get("type") == "queued_command":  # a user message sent while the agent worked
            found.append({"role": "user", "content": queued.get("prompt")})
        if not _is_message(entry) or not message or entry.get("isApiErrorMessage"):
            continue
        id_ = message.get("id")
        same = next((m for m in reversed(found) if id_ and m.get("id") == id_), None)
        if same is not None and isinstance(message.get("content"), list) and isinstance(same["content"], list):
            same["content"] = [*same["content"], *message["content"]]
            same["stop_reason"] = message.get("stop_reason") or same.get("stop_reason")
        else:
            found.append({"role": entry["type"], **message})
    return list(found)


# --------------------------------------------------------------------------------------------------------------- Codex


def _codex(entries: Entries) -> Rollout:
    """Read a Codex session: Responses items, each wrapped in an entry with a type (bare in older versions)."""
    wrapped = entries[0].get("type") == "session_meta"
    about = mapping(entries[0].get("payload")) if wrapped else entries[0]
    items = [mapping(e.get("payload")) for e in entries if e.get("type") == "response_item"] if wrapped else entries[1:]
    kept = [i for i in items if (kind := str(i.get("type"))) in _ITEMS or kind.endswith(("_call", "_call_output"))]
    rules = text(at(about, "base_instructions.text")) or text(about.get("instructions"))
    opening: Entries = [{"role": "system", "content": rules}] if rules else []
    events = [mapping(e.get("payload")) for e in entries if e.get("type") == "event_msg"]
    usage = [at(e, "info.total_token_usage.total_tokens") for e in events if e.get("type") == "token_count"]
    turns = [mapping(e.get("payload")) for e in entries if e.get("type") == "turn_context"]
    return Rollout(
        *split(conversation([*opening, *map(_codex_item, kept)])),
        id=text(about.get("id")) or "",
        env="Codex",
        model=next((m for t in reversed(turns) if (m := text(t.get("model")))), ""),
        stop="aborted" if any(e.get("type") == "turn_aborted" for e in events[-2:]) else "",
        token_count=next((n for u in reversed(usage) if (n := whole(u)) is not None), None),
        extra=plain({k: about.get(k) for k in ("cwd", "cli_version", "originator")}),
    )


def _codex_item(item: Document) -> Document:
    """Add the error of a command, whose output begins with its exit code or is JSON that contains it."""
    output = item.get("output")
    if isinstance(output, str) and (found := _EXIT_CODE.match(output)):
        return {**item, "error": f"exit code {found[1]}" if found[1] != "0" else None}
    inner = parsed(output) if isinstance(output, str) and output[:1] == "{" else output
    if not isinstance(inner, Mapping) or not isinstance(inner.get("output", inner.get("content")), str):
        return item
    code = number(at(inner, "metadata.exit_code"))
    failed = f"exit code {code:g}" if code else "the tool failed" if inner.get("success") is False else None
    return {**item, "output": inner.get("output", inner.get("content")), "error": failed}


# ----------------------------------------------------------------------------------------------------------- OpenHands

_SILENT = ("agent_state_changed", "change_agent_state", "null", "recall", "condensation", "condensation_request")
_META = ("thought", "confirmation_state", "security_risk", "hidden", "is_confirmed", "blocking", "timeout")


def _history(value: object) -> Entries:
    """Return the events. Older outputs hold (action, observation) pairs."""
    return objects([event for each in listed(value) for event in (each if isinstance(each, list) else [each])])


def _of_openhands(rollout: Rollout, document: Document, origin: Origin) -> Rollout:
    prompt, instruction = rollout.prompt, text(document.get("instruction"))
    if instruction and not any(m.role == "user" for m in prompt):
        prompt = (*prompt, Message("user", instruction))
    finish = next((e for e in reversed(_history(document["history"])) if e.get("action") == "finish"), {})
    usage = mapping(at(document, "metrics.accumulated_token_usage"))
    attempt = f":{text(document['attempt']) or 1}" if "attempt" in document else ""
    return replace(
        rollout,
        prompt=prompt,
        id=f"{rollout.prompt_id}{attempt}",
        env=rollout.env or "OpenHands",
        answer=text(at(finish, "args.final_thought")) or rollout.answer or None,
        stop="finish" if finish else "",
        token_count=summed([usage.get(k) for k in ("prompt_tokens", "completion_tokens")]),
        extra=plain({"cost": at(document, "metrics.accumulated_cost"), "report": at(document, "test_result.report")}),
    )


OPENHANDS = Mapped(
    name="OpenHands outputs",
    needs=("instance_id",),
    when=lambda document: isinstance(document.get("history"), list),
    keys={
        "messages": ("history",),
        "prompt_id": ("instance_id",),
        "env": ("metadata.dataset",),
        "agent": ("metadata.agent_class",),
        "model": ("metadata.llm_config.model", "metadata.llm.model"),
        "answer": ("test_result.git_patch",),
        "correct": ("test_result.report.resolved",),
        "error": ("error",),
    },
    read_prompt=lambda value: conversation(openhands_messages(_history(value))),
    split="eval",
    finish=_of_openhands,
    unknown={"reward": "OpenHands writes test results, and no reward"},
)
"""Lines of OpenHands evaluations (`output.jsonl`), with events of versions 0 and 1."""


def openhands_messages(events: Entries) -> Entries:
    """Return the messages of OpenHands events. Calls of one answer share its id."""
    found: list[dict[str, Any]] = []
    for event in events:
        converted, answer = _sdk_event(event) if isinstance(event.get("kind"), str) else _event(event)
        if converted is None:
            continue
        same = next((m for m in found if answer and m["answer"] == answer), None)
        if same is None:
            found.append({**converted, "answer": answer})
            continue
        same["tool_calls"] = [*same.get("tool_calls", ()), *converted.get("tool_calls", ())]
        if same is found[-1]:
            same["content"] = same.get("content") or converted.get("content")
    return [{k: v for k, v in m.items() if k != "answer"} for m in found]


def _event(event: Document) -> tuple[dict[str, Any] | None, str]:
    """Return the message of a version 0 event, and the id of the model's answer."""
    args, tool = mapping(event.get("args")), mapping(event.get("tool_call_metadata"))
    call_id = text(tool.get("tool_call_id"))
    action, observation = event.get("action"), event.get("observation")
    if observation is not None:
        if observation in _SILENT:
            return None, ""
        extras = mapping(event.get("extras"))
        code = number(at(extras, "metadata.exit_code") if "metadata" in extras else extras.get("exit_code"))
        failed = "the tool failed" if observation == "error" or extras.get("error") is True else None
        failed = failed or (f"exit code {code:g}" if code not in (None, 0, -1) else None)
        id_ = call_id or f"event-{text(event.get('cause'))}"
        return {"role": "tool", "content": text(event.get("content")) or "", "tool_call_id": id_, "error": failed}, ""
    if action is None or action in _SILENT:
        return None, ""
    content = text(args.get("content")) or ""
    if action == "system":
        return {"role": "system", "content": content}, ""
    if event.get("source") == "user":
        return {"role": "user", "content": content}, ""
    if action == "message":
        return {"role": "assistant", "content": content}, ""
    answer = mapping(tool.get("model_response"))
    message = mapping(at(next(iter(listed(answer.get("choices"))), {}), "message"))
    name = text(tool.get("function_name")) or str(action)
    recorded = next((c for c in map(mapping, listed(message.get("tool_calls"))) if c.get("id") == call_id), None)
    call = recorded or {"id": call_id or f"event-{text(event.get('id'))}", "name": name}
    if recorded is None:
        call = {**call, "arguments": {k: v for k, v in args.items() if k not in _META}}
    words = text(message.get("content")) if message else text(args.get("thought"))
    converted = {"role": "assistant", "content": words or "", "tool_calls": [call]}
    return {**converted, "reasoning_content": message.get("reasoning_content")}, text(answer.get("id")) or ""


def _sdk_event(event: Document) -> tuple[dict[str, Any] | None, str]:
    """Return the message of an SDK event (version 1), and the id of the model's answer."""
    match event["kind"]:
        case "SystemPromptEvent":
            return {"role": "system", "content": at(event, "system_prompt.text")}, ""
        case "MessageEvent":
            message = mapping(event.get("llm_message"))
            role = message.get("role") or event.get("source")
            return {**message, "role": role}, text(event.get("llm_response_id")) or ""
        case "ActionEvent":
            call = {"id": event.get("tool_call_id"), "name": event.get("tool_name")}
            recorded = mapping(event.get("tool_call"))
            call["arguments"] = recorded.get("arguments", at(recorded, "function.arguments"))
            converted = {"role": "assistant", "content": event.get("thought"), "tool_calls": [call]}
            converted["reasoning_content"] = event.get("reasoning_content")
            return converted, text(event.get("llm_response_id")) or ""
        case "ObservationEvent" | "AgentErrorEvent" | "UserRejectObservation":
            seen = mapping(event.get("observation"))
            failed = text(event.get("error")) or ("the tool failed" if seen.get("is_error") is True else None)
            content = seen.get("content", seen.get("output", event.get("error", event.get("rejection_reason"))))
            return {"role": "tool", "content": content, "tool_call_id": event.get("tool_call_id"), "error": failed}, ""
    return None, ""
