"""Writers of agents, evaluations and traces."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import chat
from .compare import Writer
from .scenario import FINITE, Episode, Limits
from .trainers import NO_ADVANTAGE, NO_ERROR, NO_GROUP, NO_PARTS, NO_STOP, NO_TOOL_ERROR, lines

NO_REWARD = "rewards are not written"
NO_STEP = "training steps are not written"
NOTHING = {
    "reward": NO_REWARD, "components": NO_REWARD, "advantage": NO_ADVANTAGE, "step": NO_STEP, "group": NO_GROUP,
    "split": "splits are not written",
}  # fmt: skip
ALONE = Limits(evaluations=False)


def claude_code(episodes: list[Episode], folder: Path) -> None:
    """Claude Code: an entry for each part of an answer; the result of a call follows the part that calls.

    Attachments and notices are entries of the same tree. A compaction starts a new root, and repeats the last entry
    with a new parent. A request that failed is an answer of a `<synthetic>` model.
    """
    for n, e in enumerate(episodes):
        session = f"{n:08}-{e.id}"
        rows: list[dict[str, Any]] = [{"type": "queue-operation", "operation": "dequeue", "sessionId": session}]

        def add(kind: str, after: str | None, rows: list[Any] = rows, name: str = session, **more: Any) -> str:
            uuid = f"u{len(rows)}"
            rows.append({"parentUuid": after, "isSidechain": False, "type": kind, "uuid": uuid, "cwd": "/w",
                         "sessionId": name, "version": "2.1.220", "userType": "external", **more})  # fmt: skip
            return uuid

        def user(content: Any, after: str | None, add: Any = add, **more: Any) -> str:
            return str(add("user", after, message={"role": "user", "content": content}, **more))

        def answer(message: dict[str, Any], after: str | None, add: Any = add, **more: Any) -> str:
            made = {"type": "message", "role": "assistant", "model": "claude", **message}
            return str(add("assistant", after, message=made, **more))

        first = user(e.question, None)
        parent: str | None = add("attachment", first, attachment={"type": "task_reminder", "content": []})
        lost = answer({"id": "lost", "content": [{"type": "text", "text": "an answer that was taken back"}]}, parent)
        user("never mind", lost)
        for i, turn in enumerate(e.turns):
            parts = [{"type": "thinking", "thinking": turn.thought}] if turn.thought else []
            parts += [{"type": "text", "text": turn.text}] if turn.text or not turn.calls else []
            parts += [{"type": "tool_use", "id": c.id, "name": c.name, "input": dict(c.arguments)} for c in turn.calls]
            reason = "tool_use" if i < len(e.turns) - 1 and turn.calls else turn.stop
            spoke = {}
            for part in parts:
                message = {"id": f"msg_{i}", "content": [part], "stop_reason": reason}
                parent = answer({**message, "usage": {"input_tokens": 3, "output_tokens": 2}}, parent)
                spoke[part.get("id")] = parent
            for c in turn.calls:
                result = {"type": "tool_result", "tool_use_id": c.id, "content": c.result}
                content = [{**result, "is_error": True} if c.failed else result]
                parent = user(content, spoke[c.id], toolUseResult={"stdout": c.result, "interrupted": False})
            if turn.heard and i % 2:
                parent = add("attachment", parent, attachment={"type": "queued_command", "prompt": turn.heard})
            elif turn.heard:
                kept = rows[-1]
                boundary = add("system", None, subtype="compact_boundary", logicalParentUuid=parent, content="c")
                summary = user(turn.heard, boundary, isCompactSummary=True)
                rows.append({**kept, "parentUuid": summary})
        if e.error:
            said = {"id": "e", "model": "<synthetic>", "content": [{"type": "text", "text": "API Error: 529"}]}
            answer(said, parent, isApiErrorMessage=True, error="server_error")
        rows.append({"type": "ai-title", "aiTitle": "A session", "sessionId": session})
        lines(folder / f"{n:08}.jsonl", rows)


def codex(episodes: list[Episode], folder: Path) -> None:
    """Codex: items of Responses, each in an entry."""
    for n, e in enumerate(episodes):
        about = {"id": e.id, "cwd": "/w", "cli_version": "0.50", "instructions": e.system or None}
        rows: list[dict[str, Any]] = [{"type": "session_meta", "payload": about}]
        rows.append({"type": "turn_context", "payload": {"model": "gpt", "cwd": "/w"}})

        def item(payload: dict[str, Any], rows: list[Any] = rows) -> None:
            rows.append({"timestamp": "t", "type": "response_item", "payload": payload})

        item({"type": "message", "role": "user", "content": [{"type": "input_text", "text": e.question}]})
        rows.append({"type": "event_msg", "payload": {"type": "user_message", "message": e.question}})
        for turn in e.turns:
            if turn.thought:
                item({"type": "reasoning", "summary": [{"type": "summary_text", "text": turn.thought}]})
            if turn.text or not turn.calls:
                content = [{"type": "output_text", "text": turn.text}]
                item({"type": "message", "role": "assistant", "content": content})
            for c in turn.calls:
                item({"type": "function_call", "name": c.name, "arguments": json.dumps(c.arguments), "call_id": c.id})
            for c in turn.calls:
                output = json.dumps({"output": c.result, "metadata": {"exit_code": int(c.failed)}})
                item({"type": "function_call_output", "call_id": c.id, "output": output})
            if turn.heard:
                item({"type": "message", "role": "user", "content": [{"type": "input_text", "text": turn.heard}]})
        lines(folder / f"rollout-{n:04}.jsonl", rows)


def openhands(episodes: list[Episode], folder: Path) -> None:
    """OpenHands 0.59: `event_to_dict` of each event, in lines of `output.jsonl`."""
    for e in episodes:
        events: list[dict[str, Any]] = []
        if e.system:
            events.append({"source": "agent", "action": "system", "args": {"content": e.system}})
        events.append({"source": "user", "action": "message", "args": {"content": e.question}})
        events.append({"source": "environment", "observation": "agent_state_changed", "content": "", "extras": {}})
        for i, turn in enumerate(e.turns):
            said = {"role": "assistant", "content": turn.text, "tool_calls": [chat.openai_call(c) for c in turn.calls]}
            response = {"id": f"r{i}", "choices": [{"message": said, "finish_reason": "tool_calls"}]}
            for c in turn.calls:
                tool = {"function_name": c.name, "tool_call_id": c.id, "model_response": response}
                tool["total_calls_in_response"] = len(turn.calls)
                args = {"thought": turn.text, "command": "x"}
                events.append({"source": "agent", "action": "run", "args": args, "tool_call_metadata": tool})
                seen = {"metadata": {"exit_code": int(c.failed)}}
                events.append({"source": "agent", "observation": "run", "content": c.result, "extras": seen,
                               "tool_call_metadata": tool})  # fmt: skip
            if not turn.calls:
                events.append({"source": "agent", "action": "message", "args": {"content": turn.text}})
            if turn.heard:
                events.append({"source": "user", "action": "message", "args": {"content": turn.heard}})
        row = {
            "instance_id": e.id,
            "instruction": e.question,
            "history": events,
            "metrics": {},
            "error": e.error or None,
        }
        lines(folder / "output.jsonl", [{**row, "metadata": {}, "test_result": {"report": {"resolved": True}}}])


def messages_file(episodes: list[Episode], folder: Path) -> None:
    """A conversation a file: a list of messages."""
    for n, e in enumerate(episodes):
        talk = [*chat.asked(e), *chat.said(e, errors=True)]
        (folder / f"{n:04}.json").write_text(json.dumps(talk, indent=1))


def tau(episodes: list[Episode], folder: Path) -> None:
    """`tau_bench.run.run`: a list of `EnvRunResult`. Of a failed one only the error is kept."""
    tasks = {g: i for i, g in enumerate(dict.fromkeys(e.group for e in episodes))}
    rows = []
    for e in episodes:
        row = {"task_id": tasks[e.group], "reward": e.reward, "trial": e.index, "info": {"task": {}, "source": "user"}}
        row["traj"] = [*chat.asked(e), *chat.said(e)]
        if e.error:
            row |= {"reward": 0.0, "info": {"error": e.error, "traceback": "…"}, "traj": []}
        rows.append(row)
    (folder / "results.json").write_text(json.dumps(rows, indent=2))


def tau2(episodes: list[Episode], folder: Path) -> None:
    """tau2-bench: `Results` with simulations; a tool's message has the call's id."""
    found = []
    for e in episodes:
        talk = []
        for m in [*chat.asked(e), *chat.said(e)]:
            if m["role"] == "tool":
                failed = next(c.failed for t in e.turns for c in t.calls if c.id == m["tool_call_id"])
                m = {
                    "id": m["tool_call_id"],
                    "role": "tool",
                    "content": m["content"],
                    "requestor": "assistant",
                    "error": failed,
                }
            elif "tool_calls" in m:
                calls = [{"id": c["id"], "name": c["function"]["name"], 
                          "arguments": json.loads(c["function"]["arguments"]),
                          "requestor": "assistant"} for c in m["tool_calls"]]  # fmt: skip
                m = {**m, "tool_calls": calls}
            talk.append(m)
        scored = None if e.reward is None else {"reward": e.reward, "reward_breakdown": dict(e.components)}
        found.append({"id": e.id, "task_id": e.group, "trial": e.index, "messages": talk, "reward_info": scored,
                      "termination_reason": e.stop, "duration": 1.0, "agent_cost": None})  # fmt: skip
    info = {"environment_info": {"domain_name": "retail"}, "agent_info": {"llm": "m"}}
    (folder / "sim.json").write_text(json.dumps({"info": info, "tasks": [], "simulations": found}, indent=2))


def harness(episodes: list[Episode], folder: Path) -> None:
    """lm-eval with `--log_samples`."""
    for n, e in enumerate(episodes):
        answer = e.turns[0].text
        prompt: Any = json.dumps(chat.asked(e))
        if n % 2:  # of a chat API: `JsonChatStr`, a tuple with one text
            prompt = [prompt]
        row = {"doc_id": n, "doc": {"question": e.question}, "target": e.answer, "resps": [[answer]]}
        row |= {"arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": {"until": []}}}, "filtered_resps": [answer]}
        row |= {"filter": "none", "metrics": [*e.components], "doc_hash": e.id, "prompt_hash": "p", "target_hash": "t"}
        lines(folder / "samples_gsm8k_2026-01-01.jsonl", [{**row, **e.components}])


def promptfoo(episodes: list[Episode], folder: Path) -> None:
    """promptfoo: `results.results` of its JSON."""
    tests = {g: i for i, g in enumerate(dict.fromkeys(e.group for e in episodes))}
    found = []
    for e in episodes:
        response = {"output": e.turns[0].text, "finishReason": e.stop, "tokenUsage": {"total": 5}}
        row = {
            "id": e.id,
            "prompt": {"raw": json.dumps(chat.asked(e)), "label": "p"},
            "promptIdx": e.index,
            "response": response,
        }
        row |= {"testIdx": tests[e.group], "success": False, "score": e.reward, "namedScores": dict(e.components)}
        row |= {
            "failureReason": 2 if e.error else 1,
            "error": e.error or "Expected output to contain x",
            "vars": {"q": 1},
        }
        found.append({**row, "provider": {"id": "m"}, "latencyMs": 5})
    (folder / "out.json").write_text(json.dumps({"evalId": "e", "results": {"version": 3, "results": found}}))


def batch_openai(episodes: list[Episode], folder: Path) -> None:
    """Output of OpenAI's batches."""
    for e in episodes:
        message = chat.said(e)[0]
        body = {
            "object": "chat.completion",
            "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": e.stop}],
        }
        error = {"code": "x", "message": e.error} if e.error else None
        response = {"status_code": 200, "body": body}
        lines(folder / "out.jsonl", [{"id": e.id, "custom_id": e.id, "response": response, "error": error}])


def batch_anthropic(episodes: list[Episode], folder: Path) -> None:
    """Results of Anthropic's message batches."""
    for e in episodes:
        message = {
            "type": "message",
            "model": "m",
            **chat.anthropic(e)[0],
            "stop_reason": e.stop,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
        lines(folder / "out.jsonl", [{"custom_id": e.id, "result": {"type": "succeeded", "message": message}}])


def pairs(episodes: list[Episode], folder: Path) -> None:
    """DPO as TRL documents it: conversations with the answers that were chosen and rejected."""
    for e in episodes[::2]:
        sides = {s: [{"role": "assistant", "content": f"{s} {e.id}"}] for s in ("chosen", "rejected")}
        lines(folder / "pairs.jsonl", [{"prompt": chat.asked(e), **sides, "score_chosen": 1.0, "score_rejected": 0.5}])


def table(episodes: list[Episode], folder: Path) -> None:
    """CSV of Python's writer."""
    names = ["id", "step", "group", "prompt", "completion", "reward", "advantage", "split", "finish_reason", "error"]
    with (folder / "rollouts.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names, *(f"reward_{n}" for n in episodes[0].components)])
        for e in episodes:
            row = [e.id, e.step, e.group, json.dumps(chat.asked(e)), json.dumps(chat.said(e, errors=True)), e.reward]
            writer.writerow([*row, e.advantage, e.split, e.stop, e.error, *e.components.values()])


# --------------------------------------------------------------------------------------------------------------- traces


def gen_ai(e: Episode) -> dict[str, Any]:
    def parts(m: dict[str, Any]) -> dict[str, Any]:
        if m["role"] == "tool":
            part = {"type": "tool_call_response", "id": m["tool_call_id"], "response": m["content"]}
            return {"role": "tool", "parts": [part]}
        found: list[Any] = (
            [{"type": "reasoning", "content": m["reasoning_content"]}] if "reasoning_content" in m else []
        )
        found.append({"type": "text", "content": m["content"]})
        found += [{"type": "tool_call", "id": c["id"], "name": c["function"]["name"],
                   "arguments": json.loads(c["function"]["arguments"])} for c in m.get("tool_calls", ())]  # fmt: skip
        return {"role": m["role"], "parts": found}

    talk = [parts(m) for m in [*chat.asked(e), *chat.said(replace(e, turns=e.turns[:-1])), chat.said(e)[_last(e)]]]
    heard, spoken = talk[:-1], {**talk[-1], "finish_reason": e.stop}
    return {"gen_ai.input.messages": json.dumps(heard), "gen_ai.output.messages": json.dumps([spoken])}


def _last(e: Episode) -> int:
    return max(i for i, m in enumerate(chat.said(e)) if m["role"] == "assistant")


def root_attributes(e: Episode) -> dict[str, Any]:
    about: dict[str, Any] = {"training.step": e.step, "training.group": e.group}
    return about if e.reward is None else {**about, "training.reward": e.reward}


def console(episodes: list[Episode], folder: Path) -> None:
    """opentelemetry-sdk 1.45: what `ConsoleSpanExporter` prints; spans end from the inside out."""
    with (folder / "spans.txt").open("w") as file:
        for n, e in enumerate(episodes):
            for i, (name, own, parent) in enumerate((("chat", gen_ai(e), "0xa"), ("run", root_attributes(e), None))):
                failed = (
                    {"status_code": "ERROR", "description": e.error}
                    if e.error and parent is None
                    else {"status_code": "UNSET"}
                )
                span = {"name": name, "context": {"trace_id": f"0x{n:032x}", "span_id": f"0x{i}", "trace_state": "[]"}}
                span |= {
                    "kind": "SpanKind.INTERNAL",
                    "parent_id": parent,
                    "start_time": f"2026-01-01T00:00:0{1 - i}.000000Z",
                }
                span |= {"status": failed, "attributes": own, "events": [], "links": [], "resource": {}}
                file.write(json.dumps(span, indent=4) + "\n")


def phoenix(episodes: list[Episode], folder: Path) -> None:
    """Arize Phoenix: `get_spans_dataframe().to_json(lines=True)` with OpenInference's attributes."""
    for n, e in enumerate(episodes):

        def flat(m: dict[str, Any]) -> dict[str, Any]:
            found = {"message.role": m["role"], "message.content": m["content"]}
            if "tool_call_id" in m:
                found["message.tool_call_id"] = m["tool_call_id"]
            if "tool_calls" in m:
                found["message.tool_calls"] = [
                    {"tool_call.id": c["id"], "tool_call.function.name": c["function"]["name"],
                     "tool_call.function.arguments": c["function"]["arguments"]} for c in m["tool_calls"]]  # fmt: skip
            return found

        talk = [flat(m) for m in [*chat.asked(e), *chat.said(e)[: _last(e) + 1]]]
        row = {
            "name": "llm",
            "span_kind": "LLM",
            "parent_id": None,
            "start_time": 1,
            "status_code": "ERROR" if e.error else "OK",
        }
        row |= {"status_message": e.error, "context.trace_id": f"t{n}", "context.span_id": "s", "events": []}
        row |= {"attributes.llm.input_messages": talk[:-1], "attributes.llm.output_messages": talk[-1:]}
        lines(folder / "spans.jsonl", [{**row, **{f"attributes.{k}": v for k, v in root_attributes(e).items()}}])


def mlflow(episodes: list[Episode], folder: Path) -> None:
    """mlflow 3.17: `Trace.to_dict`; attributes are JSON text."""
    for n, e in enumerate(episodes):
        talk = [*chat.asked(e), *chat.said(e)[: _last(e) + 1]]
        choice = {"message": talk[-1], "finish_reason": e.stop}
        llm = {"mlflow.spanType": "CHAT_MODEL", "mlflow.spanInputs": {"messages": talk[:-1], "model": "m"}}
        llm["mlflow.spanOutputs"] = {"choices": [choice]}
        spans = []
        for i, (own, parent) in enumerate((({"mlflow.spanType": "AGENT", **root_attributes(e)}, None), (llm, "a"))):
            status = (
                {"code": "STATUS_CODE_ERROR", "message": e.error} if e.error and not i else {"code": "STATUS_CODE_OK"}
            )
            spans.append({"trace_id": "x", "span_id": str(i), "parent_span_id": parent, "name": "n",
                          "start_time_unix_nano": i, "events": [],
                          "status": status, "attributes": {k: json.dumps(v) for k, v in own.items()}})  # fmt: skip
        scored = [{"assessment_name": k, "feedback": {"value": v}} for k, v in e.components.items() if v is not None]
        info = {"trace_id": f"tr-{n}", "state": "OK", "assessments": scored, "tags": {}, "trace_metadata": {}}
        lines(folder / "traces.jsonl", [{"info": info, "data": {"spans": spans}}])


def langsmith(episodes: list[Episode], folder: Path) -> None:
    """langsmith 0.4: runs as `list_runs` returns them, with LangChain's serialised messages."""
    kinds = {"system": "system", "user": "human", "assistant": "ai", "tool": "tool"}
    for n, e in enumerate(episodes):

        def message(m: dict[str, Any], e: Episode = e) -> dict[str, Any]:
            kwargs = {"content": m["content"], "type": kinds[m["role"]]}
            if "tool_calls" in m:
                kwargs["tool_calls"] = [{"id": c["id"], "name": c["function"]["name"], "type": "tool_call",
                                         "args": json.loads(c["function"]["arguments"])}
                                        for c in m["tool_calls"]]  # fmt: skip
            if "tool_call_id" in m:
                failed = next(c.failed for t in e.turns for c in t.calls if c.id == m["tool_call_id"])
                kwargs |= {"tool_call_id": m["tool_call_id"], "status": "error" if failed else "success"}
            return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "X"], "kwargs": kwargs}

        talk = [message(m) for m in [*chat.asked(e), *chat.said(e)[: _last(e) + 1]]]
        said = {"text": "", "message": talk[-1], "generation_info": {"finish_reason": e.stop}}
        about = {"trace_id": f"t{n}", "session_id": "s", "start_time": "2026-01-01T00:00:00"}
        metadata = {"metadata": {k.removeprefix("training."): v for k, v in root_attributes(e).items()}}
        stats = {k: {"n": 1, "avg": v} for k, v in e.components.items() if v is not None}
        root = {
            **about,
            "id": f"t{n}",
            "name": "agent",
            "run_type": "chain",
            "inputs": {},
            "outputs": {},
            "extra": metadata,
        }
        root |= {"parent_run_id": None, "error": e.error or None, "feedback_stats": stats}
        llm = {
            **about,
            "id": f"l{n}",
            "name": "chat",
            "run_type": "llm",
            "parent_run_id": f"t{n}",
            "extra": {},
            "error": None,
        }
        llm |= {"inputs": {"messages": [talk[:-1]]}, "outputs": {"generations": [[said]]}}
        lines(folder / "runs.jsonl", [{**root, "child_runs": [llm]}])


def langfuse(episodes: list[Episode], folder: Path) -> None:
    """Langfuse: traces of its API, with observations and scores."""
    for n, e in enumerate(episodes):
        talk = [*chat.asked(e), *chat.said(e)[: _last(e) + 1]]
        scored = [{"name": k, "value": v, "dataType": "NUMERIC"} for k, v in e.components.items() if v is not None]
        seen = {
            "type": "GENERATION",
            "name": "chat",
            "input": talk[:-1],
            "output": {**talk[-1], "finish_reason": e.stop},
        }
        seen |= {"startTime": "2026-01-01T00:00:01Z", "model": "m"}
        row = {"id": f"t{n}", "timestamp": "2026-01-01T00:00:00Z", "projectId": "p", "name": "agent", "input": None}
        about = {k.removeprefix("training."): v for k, v in root_attributes(e).items()}
        lines(
            folder / "traces.jsonl",
            [{**row, "metadata": about, "output": None, "scores": scored, "observations": [seen]}],
        )


def known_values(e: Episode) -> Episode:
    """The episode with the components that have a value, and without results behind the last turn."""
    last = replace(e.turns[-1], calls=tuple(replace(c, result=None, failed=False) for c in e.turns[-1].calls))  # type: ignore[arg-type]
    return replace(e, components={k: v for k, v in e.components.items() if v is not None}, turns=(*e.turns[:-1], last))


def _first(e: Episode) -> Episode:
    """The first turn of an episode, of which no result is known."""
    first = replace(e.turns[0], calls=tuple(replace(c, result=None, failed=False) for c in e.turns[0].calls), heard="")  # type: ignore[arg-type]
    return replace(e, turns=(first,))


_SCORED = {"advantage": NO_ADVANTAGE, "step": NO_STEP, "split": "evaluations only"}
_TRACE = {"advantage": NO_ADVANTAGE, "tool errors": NO_TOOL_ERROR, "split": "splits are not written"}
_ONE = Limits(turns=1, calls=False, thoughts=False, evaluations=False)
_ROOT = Limits(evaluations=False, reward=FINITE)

AGENTS = (
    Writer(
        "Claude Code",
        "Claude Code 2.1.220 (its files)",
        claude_code,
        NOTHING,
        Limits(evaluations=False, system=False),
    ),
    Writer("Codex", "codex 001cb8e2", codex, {**NOTHING, "error": NO_ERROR, "stop": NO_STOP}, ALONE),
    Writer("OpenHands", "0.59", openhands, {
        **NOTHING, "stop": "only that the agent finished", "thoughts": "thoughts are not written"}, ALONE,
        group=lambda e: e.id),
    Writer("a list of messages", "OpenAI's messages", messages_file, {**NOTHING, "error": NO_ERROR, "stop": NO_STOP},
           ALONE),
    Writer("tau-bench", "tau-bench 01ed5e31", tau, {
        **_SCORED, "components": NO_PARTS, "stop": NO_STOP, "tool errors": NO_TOOL_ERROR}, ALONE,
        seen=lambda e: replace(e, question="", system="", turns=(), reward=0.0) if e.error else e),
    Writer("tau2-bench", "2e2a017b", tau2, {**_SCORED, "error": NO_ERROR}, Limits(evaluations=False, reward=FINITE)),
    Writer("lm-eval-harness", "lm-eval 034ab036", harness, {
        **_SCORED, "reward": NO_REWARD, "group": "one a document", "error": NO_ERROR, "stop": NO_STOP}, _ONE,
        group=lambda e: e.id),
    Writer("promptfoo", "promptfoo 0011eb02", promptfoo, _SCORED, _ONE),
    Writer("OpenAI batches", "v1", batch_openai, {
        **NOTHING, "prompt": "requests are not repeated", "tool errors": NO_TOOL_ERROR},
           ALONE, seen=_first, group=lambda e: e.id),
    Writer("Anthropic batches", "2023-06-01", batch_anthropic, {
        **NOTHING, "prompt": "requests are not repeated", "error": NO_ERROR, "tool errors": NO_TOOL_ERROR}, ALONE,
        seen=_first, group=lambda e: e.id),
    Writer("CSV", "Python's `csv`", table, {}, Limits(component=FINITE)),
    Writer("OpenTelemetry console", "opentelemetry-sdk 1.45", console, {
        **_TRACE, "components": "one score", "group": "the group is on another span"}, _ROOT, seen=known_values,
        group=lambda e: (e.system, e.question)),
    Writer("OpenInference (Phoenix)", "openinference 0.1.42", phoenix, {
        **_TRACE, "components": "one score", "stop": NO_STOP, "thoughts": "thoughts are not written"}, _ROOT,
        seen=known_values),
    Writer("MLflow", "mlflow 3.17", mlflow, _TRACE, _ROOT, seen=known_values),
    Writer("LangSmith", "langsmith 0.15", langsmith, {
        "advantage": NO_ADVANTAGE, "split": "splits are not written", "thoughts": "thoughts are not written"}, _ROOT,
        seen=known_values),
    Writer("Langfuse", "langfuse 01ed630b", langfuse, {**_TRACE, "error": NO_ERROR}, _ROOT, seen=known_values),
)  # fmt: skip
