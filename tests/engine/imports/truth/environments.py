"""Writers of environments, harnesses and evaluations whose files hold several agents, steps or logs."""

from __future__ import annotations

import io
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from grpo_tui.engine.runs.zstd import ZstdFile, zstd_compress

from . import chat
from .agents import NOTHING, gen_ai, known_values, root_attributes
from .compare import Writer
from .scenario import FINITE, Called, Episode, Limits, Turn
from .trainers import NO_ADVANTAGE, NO_ERROR, NO_GROUP, NO_STOP, NO_TOOL_ERROR, lines

MODEL = "mockllm/model"


def document(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1))


def verifiers_v0(episodes: list[Episode], folder: Path) -> None:
    """`verifiers.utils.save_utils.states_to_outputs`: a folder an evaluation. Calls are JSON text."""
    for e in episodes:
        base = folder / "evals" / f"env--model-step{e.step}" / "00000001"
        said = chat.said(e)
        for m in said:
            if "tool_calls" in m:
                calls = [{"id": c["id"], **c["function"]} for c in m["tool_calls"]]
                m["tool_calls"] = [json.dumps(c) for c in calls]
        row = {"example_id": int(e.prompt_id[1:]), "prompt": chat.asked(e), "completion": said, "answer": e.answer}
        error = {"error": "ModelError", "error_chain_repr": "ModelError('it')", "error_chain_str": "ModelError"}
        row |= {"info": {}, "reward": e.reward, "error": error if e.error else None, "timing": {"total": 0.5}}
        row |= {"is_completed": True, "is_truncated": e.stop == "length", "stop_condition": e.stop, "tool_defs": []}
        row |= {"metrics": {**e.components, "num_turns": float(len(e.turns))}, **e.components}
        row |= {"token_usage": {"input_tokens": 3.0, "output_tokens": 2.0}, "num_turns": float(len(e.turns))}
        lines(base / "results.jsonl", [row])
        (base / "metadata.json").write_text(json.dumps({"env_id": "env", "model": "model", "time": 1.0}))


def _nodes(e: Episode) -> list[dict[str, Any]]:
    """The message graph of a trace, with a branch that was given up after the prompt."""
    nodes: list[dict[str, Any]] = []
    for m in [*chat.asked(e), {"role": "assistant", "content": "taken back"}, *chat.said(e)]:
        parent = len(nodes) - 1
        if nodes and nodes[-1]["message"]["content"] == "taken back":
            parent -= 1
        if "tool_calls" in m:
            m = {**m, "tool_calls": [{"id": c["id"], "type": "function", **c["function"]} for c in m["tool_calls"]]}
        node = {"semantic_parents": [], "message": m, "sampled": m["role"] == "assistant", "timestamp": 1.0}
        nodes.append({**node, **({"parent": parent} if nodes else {})})
    return nodes


def _trace(e: Episode, name: str = "agent") -> dict[str, Any]:
    nodes = _nodes(e)
    spoke = [i for i, n in enumerate(nodes) if n["message"]["role"] == "assistant"]
    calls = [{"node": i, "finish_reason": e.stop if i == spoke[-1] else "tool_calls", "time": {}} for i in spoke]
    errors = [{"type": "ToolServerError", "message": e.error, "traceback": "…"}] if e.error else []
    scored = {n: None if v is None else {"score": v, "weight": 1.0} for n, v in e.components.items()}
    agent = {"config": {"model": "tiny"}, "name": name, "trainable": name == "agent"}
    return {"version": 1, "id": f"{e.id}-{name}", "agent": agent, "tools": [], "nodes": nodes, "calls": calls,
            "rewards": scored, "metrics": {}, "info": {}, "stop_condition": e.stop, "errors": errors,
            "task": {"data": {"name": e.prompt_id, "answer": e.answer}}}  # fmt: skip


def _judge(e: Episode) -> dict[str, Any]:
    said = Turn(f"I judge {e.id}.")
    return _trace(replace(e, turns=(said,), components={"fair": 1.0}, error=""), "judge")


def judged(e: Episode) -> bool:
    """Every second rollout has a judge in its episode."""
    return e.index % 2 == 0


def _episode(e: Episode, run: dict[str, Any], group: bool) -> dict[str, Any]:
    traces = [_trace(e), *([_judge(e)] if judged(e) else [])]
    named = {"group": {"id": e.group}} if group else {}
    task = {"data": {"name": e.prompt_id, "answer": e.answer}, "key": e.prompt_id}
    return {"id": f"{e.id}-episode", "env": {"id": "env", "name": "env"}, "task": task, **named, "run": run,
            "ok": not e.error, "errors": [], "traces": traces}  # fmt: skip


def verifiers_v1(episodes: list[Episode], folder: Path) -> None:
    """`write_episode`: a line an episode."""
    for e in episodes:
        run = {"type": "eval", "id": "eval0", "name": "env--tiny"}
        lines(folder / "env--tiny--null--00000000" / "traces.jsonl", [_episode(e, run, group=False)])


def _work(e: Episode) -> dict[str, Any]:
    work = {"type": e.split, "step": e.step, "policy": {"start": e.step - 1, "end": e.step}}
    return {"type": e.split, "id": "run0", "name": "env", "work": work}


def prime_until_august(episodes: list[Episode], folder: Path) -> None:
    """`FileMonitor.log_episodes`: all episodes of a step, and once more those that the trainer used."""
    for e in episodes:
        made = _episode(e, _work(e), group=True)
        for trace, advantage in zip(made["traces"], (e.advantage, None), strict=False):
            for node in trace["nodes"]:
                if node["sampled"] and advantage is not None:
                    node |= {"token_ids": [1, 2], "mask": [True, True], "logprobs": [-0.5, -0.5]}
                    node["advantages"] = [advantage, advantage]
        parts = ("all", "effective") if e.split == "train" else ("all",)
        for part in parts:
            lines(folder / "rollouts" / f"step_{e.step}" / e.split / part / "traces.jsonl", [made])


def prime(episodes: list[Episode], folder: Path) -> None:
    """`ChunkedJsonl`: chunks with an index, of which finished ones are packed, and annotations of the orchestrator."""
    base = folder / "monitors" / "file" / "traces"
    chunks = [list(given) for _, given in groupby(episodes, key=lambda e: e.step)]
    for number, given in enumerate(chunks):
        data, index = b"", []
        for line, e in enumerate(given):
            made = _episode(e, _work(e), group=True)
            text = json.dumps(made).encode() + b"\n"
            known = [v for v in e.components.values() if v is not None]
            row = {"line": line, "offset": len(data), "id": made["id"], "kind": e.split, "env": "env"}
            row |= {"trace_ids": [t["id"] for t in made["traces"]], "group": e.group, "ok": not e.error}
            row |= {"num_errors": int(bool(e.error)), "reward": sum(known) if known else 0.0, "advantage": None}
            index.append({**row, "stop_condition": e.stop, "chunk": number})
            data += text
        lines(base / "stream.index.jsonl", index)
        path = base / "stream" / f"{number:05}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number < len(chunks) - 1:
            path.with_suffix(".jsonl.zst").write_bytes(_seekable(data))
        else:
            path.write_bytes(data)
    for e in episodes:
        info = {"ship": {"step": e.step}, **({} if e.advantage is None else {"advantage": e.advantage})}
        lines(base / "annotations" / "orch" / "00000.jsonl",
              [{"version": 1, "trace_id": f"{e.id}-agent", "info": info, "branches": [{"index": 0}]}])  # fmt: skip


def _seekable(data: bytes) -> bytes:
    frame = zstd_compress(data)
    table = struct.pack("<II", len(frame), len(data)) + struct.pack("<IBI", 1, 0, 0x8F92EAB1)
    return frame + struct.pack("<II", 0x184D2A5E, len(table)) + table


def _parts_of(e: Episode) -> Episode:
    """The episode whose reward is the sum of its known components, which have a weight of 1 (`Trace.reward`)."""
    known = [v for v in e.components.values() if v is not None]
    return replace(e, reward=math.fsum(known) if known else None)


# ---------------------------------------------------------------------------------------------------------- inspect-ai


def _inspect_messages(e: Episode) -> list[dict[str, Any]]:
    found = []
    failed = {c.id for turn in e.turns for c in turn.calls if c.failed}
    for m in [*chat.asked(e), *chat.said(e)]:
        if m["role"] == "assistant":
            calls = [
                {
                    "id": c["id"],
                    "function": c["function"]["name"],
                    "type": "function",
                    "arguments": json.loads(c["function"]["arguments"]),
                }
                for c in m.get("tool_calls", ())
            ]
            content: Any = m["content"]
            if "reasoning_content" in m:
                content = [
                    {"type": "reasoning", "reasoning": m["reasoning_content"]},
                    {"type": "text", "text": content},
                ]
            m = {
                "role": "assistant",
                "content": content,
                "source": "generate",
                **({"tool_calls": calls} if calls else {}),
            }
        elif m["role"] == "tool" and m["tool_call_id"] in failed:
            m = {**m, "error": {"type": "unknown", "message": "the tool failed"}}
        found.append({"id": f"m{len(found)}", **m})
    return found


def _logs(episodes: list[Episode]) -> Iterable[tuple[int, dict[str, Any], list[dict[str, Any]]]]:
    """Yield the step, header and samples of each log."""
    for step, given in groupby(episodes, key=lambda e: e.step):
        header = {"version": 2, "status": "success", "eval": {"eval_id": f"e{step}", "task": "env", "model": MODEL}}
        samples = []
        for e in given:
            said = _inspect_messages(e)
            last = next(m for m in reversed(said) if m["role"] == "assistant")
            error = {"message": e.error, "traceback": "…", "traceback_ansi": "…"}
            sample = {"id": e.prompt_id, "epoch": e.index, "input": chat.asked(e), "target": e.answer}
            sample |= {"messages": said, "uuid": f"uuid-{e.id}", "metadata": {"step": e.step}, "attachments": {}}
            sample["output"] = {"model": MODEL, "choices": [{"message": last, "stop_reason": e.stop}]}
            sample["scores"] = {n: {"value": v, "answer": e.answer, "history": []} for n, v in e.components.items()}
            sample["model_usage"] = {MODEL: {"total_tokens": 9}, "judge/model": {"total_tokens": 5}}
            samples.append({**sample, **({"error": error} if e.error else {})})
        yield step, header, samples


def inspect_json(episodes: list[Episode], folder: Path) -> None:
    """`write_eval_log(format="json")`."""
    for step, header, samples in _logs(episodes):
        document(folder / f"2026-01-01T00-00-0{step}_env.json", {**header, "samples": samples})


def inspect_eval(episodes: list[Episode], folder: Path) -> None:
    """`EvalRecorder`: a zip whose members are packed with zstd, with summaries of all samples."""
    for step, header, samples in _logs(episodes):
        with zstd_zip(folder / f"2026-01-01T00-00-0{step}_env.eval") as archive:
            archive("_journal/start.json", {"version": 2, "eval": header["eval"], "plan": {}})
            for s in samples:
                archive(f"samples/{s['id']}_epoch_{s['epoch']}.json", s)
            kept = ("id", "epoch", "input", "target", "scores", "metadata", "model_usage", "uuid", "error")
            summaries = [{k: s[k] for k in kept if k in s} for s in samples]
            archive("_journal/summaries/1.json", summaries)
            archive("summaries.json", [{**s, "error": s["error"]["message"]} if "error" in s else s for s in summaries])
            archive("header.json", header)


class zstd_zip:
    """A zip of JSON members that are packed with zstd (method 93), which `zipfile` of Python 3.11 cannot write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.out = io.BytesIO()

    def __enter__(self) -> Any:
        self.archive = zipfile.ZipFile(self.out, "w", zipfile.ZIP_STORED)
        return self.add

    def add(self, name: str, value: Any) -> None:
        self.archive.writestr(name, zstd_compress(json.dumps(value).encode()))

    def __exit__(self, *_: object) -> None:
        self.archive.close()
        data = bytearray(self.out.getvalue())
        for info in self.archive.infolist():  # the sizes and sums of the text before it was packed
            packed = self.out.getvalue()[info.header_offset + 30 + len(info.filename) :][: info.compress_size]
            text = _unpacked(packed)
            name = info.filename.encode()
            for magic, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
                head = info.header_offset if magic == b"PK\x03\x04" else _entry(bytes(data), name)
                struct.pack_into("<H", data, head + at, 93)
                struct.pack_into("<I", data, head + at + 6, zlib.crc32(text))
                struct.pack_into("<I", data, head + at + 14, len(text))
        self.path.write_bytes(bytes(data))


def _entry(data: bytes, name: bytes) -> int:
    at = data.index(b"PK\x01\x02")
    while data[at + 46 : at + 46 + len(name)] != name or struct.unpack_from("<H", data, at + 28)[0] != len(name):
        at = data.index(b"PK\x01\x02", at + 4)
    return at


def _unpacked(packed: bytes) -> bytes:
    return ZstdFile(io.BytesIO(packed)).read()


# -------------------------------------------------------------------------------------------------------------- agents


def mini_swe_agent(episodes: list[Episode], folder: Path) -> None:
    """`DefaultAgent.save`: a file an instance. Commands are calls of one tool, and a last message holds the end."""
    for e in episodes:
        talk = []
        failed = {c.id: c.failed for turn in e.turns for c in turn.calls}
        for m in [*chat.asked(e), *chat.said(e)]:
            if "tool_calls" in m:
                commands = [_command(c["function"]["name"], c["function"]["arguments"]) for c in m["tool_calls"]]
                calls = [{"id": c["id"], "type": "function",
                          "function": {"name": "bash", "arguments": json.dumps({"command": command})}}
                         for c, command in zip(m["tool_calls"], commands, strict=True)]  # fmt: skip
                actions = [
                    {"command": command, "tool_call_id": c["id"]} for c, command in zip(calls, commands, strict=True)
                ]
                m = {**m, "tool_calls": calls, "extra": {"actions": actions, "cost": 0.01, "timestamp": 1.0}}
            elif m["role"] == "tool":
                code = int(failed[m["tool_call_id"]])
                m = {**m, "extra": {"raw_output": m["content"], "returncode": code, "exception_info": ""}}
            talk.append(m)
        status = "RuntimeError" if e.error else _ends(e)
        end = {"exit_status": status, "submission": e.answer, **({"exception_str": e.error} if e.error else {})}
        info = {"model_stats": {"instance_cost": 0.01, "api_calls": 1}, "mini_version": "2.4.6", "exit_status": status}
        info |= {"submission": e.answer, "config": {"model": {"model_name": "tiny"}, "environment_type": "local"}}
        found = {"info": info, "messages": [*talk, {"role": "exit", "content": e.answer, "extra": end}]}
        found |= {"trajectory_format": "mini-swe-agent-1.1", "instance_id": e.id}
        document(folder / e.id / f"{e.id}.traj.json", found)


def _ends(e: Episode) -> str:
    return "LimitsExceeded" if e.stop == "length" else "Submitted"


def _command(name: str, arguments: str) -> str:
    return f"{name} {arguments}"


def _shell(c: Called, name: str) -> Called:
    return replace(c, name=name, arguments={"command": _command(c.name, json.dumps(c.arguments))})


def _as_shell(e: Episode) -> Episode:
    """The episode with commands in place of calls."""
    turns = tuple(replace(t, calls=tuple(_shell(c, "bash") for c in t.calls)) for t in e.turns)
    return replace(e, turns=turns, stop="RuntimeError" if e.error else _ends(e))


def swe_agent(episodes: list[Episode], folder: Path) -> None:
    """`DefaultAgent.save_trajectory`: an action a step; each observation is the next message of the user."""
    for e in episodes:
        steps, history = [], [{**m, "agent": "main"} for m in chat.asked(e)]
        for turn in e.turns:
            action = "".join(_command(c.name, json.dumps(c.arguments)) + "\n" for c in turn.calls)
            seen = turn.calls[0].result if turn.calls else turn.heard
            history += [{"role": "assistant", "content": turn.text, "action": action, "agent": "main"}]
            history += [{"role": "user", "content": f"Observation: {seen}", "agent": "main"}]
            steps.append({"action": action, "observation": seen, "response": turn.text, "thought": turn.thought,
                          "execution_time": 0.1, "state": {}, "query": history[:-2], "extra_info": {}})  # fmt: skip
        status = "exit_error" if e.error else "submitted"
        info = {"swe_agent_version": "1.1.0", "submission": e.answer, "exit_status": status, "model_stats": {}}
        found = {"trajectory": steps, "history": history, "info": info, "replay_config": None, "environment": "main"}
        document(folder / e.id / f"{e.id}.traj", found)


def _as_command(e: Episode) -> Episode:
    turns = tuple(replace(t, calls=tuple(_shell(c, c.name) for c in t.calls)) for t in e.turns)
    return replace(e, turns=turns, stop="exit_error" if e.error else "submitted")


def atif(episodes: list[Episode], folder: Path) -> None:
    """ATIF 1.8 in the folders of Harbor: a trajectory, and the trial's result."""
    for e in episodes:
        steps: list[dict[str, Any]] = []
        for m in chat.asked(e):
            steps.append({"step_id": len(steps) + 1, "source": m["role"], "message": m["content"]})
        for turn in e.turns:
            step = {"step_id": len(steps) + 1, "source": "agent", "model_name": "tiny", "message": turn.text}
            if turn.thought:
                step["reasoning_content"] = turn.thought
            if turn.calls:
                step["tool_calls"] = [{"tool_call_id": c.id, "function_name": c.name, "arguments": dict(c.arguments)}
                                      for c in turn.calls]  # fmt: skip
                results = [{"source_call_id": c.id, "content": c.result} for c in reversed(turn.calls)]
                step["observation"] = {"results": results}
            steps.append({**step, "metrics": {"prompt_tokens": 5, "completion_tokens": 1}})
            if turn.heard:
                steps.append({"step_id": len(steps) + 1, "source": "user", "message": turn.heard})
        agent = {"name": "agent", "version": "0.1", "model_name": "tiny", "tool_definitions": []}
        found = {"schema_version": "ATIF-v1.8", "session_id": f"s-{e.id}", "agent": agent, "steps": steps}
        trial = folder / f"job-step{e.step}" / e.id
        document(trial / "agent" / "trajectory.json", {**found, "final_metrics": {"total_steps": len(steps)}})
        scored = {**e.components, **({} if e.reward is None else {"reward": e.reward})}
        failed = {"exception_type": "RuntimeError", "exception_message": e.error, "exception_traceback": "…"}
        result = {"task_name": e.prompt_id, "trial_name": e.id, "source": "set", "agent_info": {"name": "agent"}}
        result |= {"verifier_result": {"rewards": scored}, "exception_info": failed if e.error else None}
        document(trial / "result.json", result)
        document(trial / "verifier" / "reward.json", scored)


def openenv(episodes: list[Episode], folder: Path) -> None:
    """`RolloutSerializer`: a line an episode, with a trace of its tools in the order of their answers."""
    (folder / "metadata.json").write_text(json.dumps({"env": "env"}))
    for e in episodes:
        said = chat.said(e)
        calls = {c.id: c for turn in e.turns for c in turn.calls}
        answered = [calls[m["tool_call_id"]] for m in said if m["role"] == "tool"]
        trace = [{"tool_name": c.name, "arguments": dict(c.arguments),
                  "result": {"data": c.result, "done": False, "error": "failed" if c.failed else None}}
                 for c in answered]  # fmt: skip
        row = {"episode_id": e.id, "messages": [*chat.asked(e), *said], "reward": e.reward, "done": True}
        row |= {"tool_trace": trace, "metrics": {"turns": len(e.turns), "terminal_reason": e.stop}}
        row |= {"verify_metrics": dict(e.components), "artifacts": {}, "extra": {"step": e.step}}
        lines(folder / "results.jsonl", [{**row, "task": {"id": e.prompt_id, "answer": e.answer}}])


def openhands_sdk(episodes: list[Episode], folder: Path) -> None:
    """`Event.model_dump` of the SDK in `EvalOutput`: an event an action. Parallel ones share the id of the answer."""
    for e in episodes:
        events: list[dict[str, Any]] = []
        if e.system:
            events.append(
                {"kind": "SystemPromptEvent", "source": "agent", "system_prompt": _text(e.system)[0], "tools": []}
            )
        events.append(
            {"kind": "MessageEvent", "source": "user", "llm_message": {"role": "user", "content": _text(e.question)}}
        )
        events.append({"kind": "ConversationStateUpdateEvent", "source": "environment", "key": "x", "value": 1})
        for i, turn in enumerate(e.turns):
            thought = {"reasoning_content": turn.thought or None, "thinking_blocks": []}
            for j, c in enumerate(turn.calls):
                call = {"id": c.id, "name": c.name, "arguments": json.dumps(c.arguments), "origin": "completion"}
                words = (
                    {"thought": _text(turn.text), **thought} if j == 0 else {"thought": [], "reasoning_content": None}
                )
                about = {"tool_name": c.name, "tool_call_id": c.id, "tool_call": call, "llm_response_id": f"r{i}"}
                events.append({"kind": "ActionEvent", "source": "agent", **words, "action": {"kind": "X"}, **about})
            for c in reversed(turn.calls):
                about = {"source": "environment", "tool_name": c.name, "tool_call_id": c.id}
                if c.failed and c.name == "zoom":
                    events.append({"kind": "AgentErrorEvent", **about, "source": "agent", "error": c.result})
                else:
                    seen = {"kind": "X", "content": _text(c.result), "is_error": c.failed}
                    events.append({"kind": "ObservationEvent", **about, "observation": seen, "action_id": "a"})
            if not turn.calls:
                said = {"role": "assistant", "content": _text(turn.text), "tool_calls": None, **thought}
                events.append(
                    {"kind": "MessageEvent", "source": "agent", "llm_message": said, "llm_response_id": f"r{i}"}
                )
            if turn.heard:
                events.append(
                    {
                        "kind": "MessageEvent",
                        "source": "user",
                        "llm_message": {"role": "user", "content": _text(turn.heard)},
                    }
                )
        row = {"instance_id": e.id, "attempt": 1, "instruction": e.question, "history": events, "metrics": None}
        lines(folder / "output.jsonl", [{**row, "error": e.error or None, "test_result": {"git_patch": "diff"}}])


def _text(value: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": value, "cache_prompt": False}]


# -------------------------------------------------------------------------------------------------------------- others


def otlp(episodes: list[Episode], folder: Path) -> None:
    """OTLP JSON of the SDK's exporter: an export request a line, with spans from the inside out."""
    for n, e in enumerate(episodes):
        spans = []
        for i, (name, own, parent) in enumerate((("chat", gen_ai(e), "a1"), ("run", root_attributes(e), ""))):
            failed = {"code": 2, "message": e.error} if e.error and not parent else {}
            spans.append({"traceId": f"{n:032x}", "spanId": f"a{2 - i}", "parentSpanId": parent, "name": name,
                          "kind": 1, "startTimeUnixNano": str(10 - i), "endTimeUnixNano": "20", "status": failed,
                          "attributes": [{"key": k, "value": _value(v)} for k, v in own.items()]})  # fmt: skip
        lines(folder / "traces.jsonl", [{"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": spans}]}]}])


def _value(value: object) -> dict[str, Any]:
    match value:
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case _:
            return {"stringValue": value}


def groups(episodes: list[Episode], folder: Path) -> None:
    """JSON lines as documented: a group a line, with a list of values for each key."""
    for _, given in groupby(episodes, key=lambda e: e.group):
        part = list(given)
        row = {"step": part[0].step, "group": part[0].group, "split": part[0].split, "prompt": chat.asked(part[0])}
        row |= {"completions": [chat.said(e, errors=True) for e in part], "rewards": [e.reward for e in part]}
        row |= {"advantages": [e.advantage for e in part], "stop_reasons": [e.stop for e in part]}
        row |= {f"reward_{n}": [e.components[n] for e in part] for n in part[0].components}
        lines(folder / "groups.jsonl", [{**row, "errors": [e.error or None for e in part], "answer": part[0].answer}])


def _no_results(e: Episode) -> Episode:
    return replace(known_values(e), components={})


_EVALUATIONS = Limits(evaluations=False)
_NO_TOTAL = "the total is not written"

ENVIRONMENTS = (
    Writer("verifiers ≤ 0.3", "verifiers 0.1.14", verifiers_v0, {
        "tool errors": NO_TOOL_ERROR, "advantage": NO_ADVANTAGE, "split": "evaluations only"},
        Limits(evaluations=False, component=FINITE), group=lambda e: (e.step, e.prompt_id)),
    Writer("verifiers", "verifiers 0.4.0", verifiers_v1, {
        "tool errors": NO_TOOL_ERROR, "advantage": NO_ADVANTAGE, "step": "evaluations have no steps",
        "split": "evaluations only"}, _EVALUATIONS, seen=_parts_of, group=lambda e: e.prompt_id, judged=judged),
    Writer("prime-rl until 2026-08", "prime-rl 559b4477", prime_until_august, {"tool errors": NO_TOOL_ERROR},
           seen=_parts_of,
           order=lambda e: (e.step, e.split == "train"), judged=judged),
    Writer("prime-rl", "prime-rl 13e96a12", prime, {"tool errors": NO_TOOL_ERROR}, seen=_parts_of, judged=judged,
           order=judged),
    Writer("inspect-ai `.json`", "inspect-ai 0.3.285", inspect_json, {
        "reward": _NO_TOTAL, "advantage": NO_ADVANTAGE, "split": "evaluations only"}, _EVALUATIONS,
        group=lambda e: (e.step, e.prompt_id)),
    Writer("inspect-ai `.eval`", "inspect-ai 0.3.285", inspect_eval, {
        "reward": _NO_TOTAL, "advantage": NO_ADVANTAGE, "split": "evaluations only"}, _EVALUATIONS,
        group=lambda e: (e.step, e.prompt_id)),
    Writer("mini-swe-agent", "mini-swe-agent 2.4.6", mini_swe_agent, NOTHING, _EVALUATIONS, seen=_as_shell),
    Writer("SWE-agent", "SWE-agent 3ea751c0", swe_agent, {**NOTHING, "tool errors": NO_TOOL_ERROR},
           Limits(evaluations=False, parallel=1), seen=_as_command, group=lambda e: e.id),
    Writer("ATIF with Harbor", "atif 1.8.0", atif, {
        "tool errors": NO_TOOL_ERROR, "advantage": NO_ADVANTAGE, "stop": NO_STOP, "group": NO_GROUP,
        "split": "splits are not written"}, Limits(evaluations=False)),
    Writer("OpenEnv", "openenv 0.10.0", openenv, {
        "advantage": NO_ADVANTAGE, "error": NO_ERROR, "group": NO_GROUP, "split": "splits are not written"},
        _EVALUATIONS),
    Writer("OpenHands SDK", "OpenHands/software-agent-sdk 17555e4a", openhands_sdk, {
        **NOTHING, "stop": "only that the agent finished"}, _EVALUATIONS, group=lambda e: e.id),
    Writer("OpenTelemetry OTLP", "opentelemetry-sdk 1.45", otlp, {
        "advantage": NO_ADVANTAGE, "tool errors": NO_TOOL_ERROR, "components": "one score",
        "split": "splits are not written"}, Limits(evaluations=False, reward=FINITE), seen=_no_results),
    Writer("groups in JSON lines", "docs/importing.md", groups),
)  # fmt: skip
