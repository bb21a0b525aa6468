"""Records of agent runs: mini-swe-agent, SWE-agent, ATIF with Harbor's results, rLLM, and OpenTelemetry spans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..format import Origin
from ..mapped import at, plain, scores
from ..messages import call, conversation, error_text, message, split
from ..rollout import Amendment, Item, Message, Rollout, Score, listed, mapping, number, parsed, summed, text, whole

_NO_REWARD = "the writer records no reward"
_NO_ADVANTAGE = "the writer records no advantages"


class MiniSweAgent:
    """`.traj.json` of mini-swe-agent."""

    name = "mini-swe-agent trajectory"
    unknown: Mapping[str, str] = {
        "reward": _NO_REWARD,
        "advantage": _NO_ADVANTAGE,
        "step": "no training step is written",
        "group": "no group is written: rollouts of one prompt are shown as one",
    }

    def detect(self, document: Any, origin: Origin) -> bool:
        """By its keys."""
        return isinstance(document, Mapping) and (
            str(document.get("trajectory_format") or "").startswith("mini-swe-agent")
            or ("messages" in document and isinstance(at(document, "info.model_stats"), Mapping))
        )

    def open(self, document: Any, origin: Origin) -> Iterable[Item]:
        """One rollout."""
        info = mapping(document.get("info"))
        messages, error = [], None
        for data in listed(document.get("messages")):
            if not isinstance(data, Mapping):
                continue
            extra = mapping(data.get("extra"))
            if data.get("role") == "exit":
                error = text(extra.get("exception_str"))
                continue
            made = message(data)
            failed = text(extra.get("exception_info")) or (
                f"exit code {extra['returncode']}" if extra.get("returncode") not in (None, 0) else None
            )
            messages.append(replace(made, error=failed) if failed and not made.is_agent else made)
        prompt, said = split(messages)
        status = text(info.get("exit_status")) or ""
        known = ("submitted", "limitsexceeded", "")
        yield Rollout(
            prompt=prompt,
            completion=said,
            id=text(document.get("instance_id")) or "",
            env=text(at(info, "config.environment_type")) or "",
            model=text(at(info, "config.model.model_name")) or "",
            answer=text(info.get("submission")) or None,
            stop=status,
            error=f"{status}: {error}" if error else status if status.lower() not in known else None,
            extra=plain(
                {
                    **_others(document, "info", "messages", "trajectory_format", "instance_id"),
                    **_others(info, "config", "model_stats", "mini_version", "exit_status", "submission"),
                    **mapping(info.get("model_stats")),
                    "version": info.get("mini_version"),
                }
            ),
        )


class SweAgent:
    """`.traj` of SWE-agent."""

    name = "SWE-agent trajectory"
    unknown = MiniSweAgent.unknown

    def detect(self, document: Any, origin: Origin) -> bool:
        """By its keys."""
        steps = document.get("trajectory") if isinstance(document, Mapping) else None
        return isinstance(steps, list) and "history" in document and "info" in document

    def open(self, document: Any, origin: Origin) -> Iterable[Item]:
        """One rollout. A turn's action is a command; the prompt is what stands before the first action."""
        info = mapping(document.get("info"))
        prompt, _ = split([message(m) for m in listed(document.get("history")) if isinstance(m, Mapping)])
        said: list[Message] = []
        for step in listed(document.get("trajectory")):
            if not isinstance(step, Mapping):
                continue
            action = text(step.get("action")) or ""
            calls = (call({"name": (action.split(maxsplit=1) or [""])[0], "arguments": {"command": action.rstrip()}}),)
            said.append(
                Message(
                    "assistant",
                    text(step.get("response")) or "",
                    thought=(text(step.get("thought")) or "").strip(),
                    calls=calls if action.strip() else (),
                    seconds=number(step.get("execution_time")) or 0.0,
                )
            )
            said.append(Message("tool", text(step.get("observation")) or ""))
        status = text(info.get("exit_status")) or ""
        failed = status.startswith("exit_") or "error" in status.lower()
        name = origin.path.name.removesuffix(".traj")
        yield Rollout(
            prompt=tuple(m for m in prompt if m.text) or prompt,
            completion=tuple(said),
            id=name,
            prompt_id=text(document.get("instance_id")) or name,
            env=text(document.get("environment")) or "",
            answer=text(info.get("submission")) or None,
            stop=status,
            error=status if failed else None,
            extra=plain(
                {
                    **_others(info, "model_stats", "exit_status", "submission"),
                    **mapping(info.get("model_stats")),
                }
            ),
        )


class Atif:
    """ATIF trajectories, with Harbor's `result.json` and `verifier/reward.json` where they stand beside it."""

    name = "ATIF trajectory"
    unknown: Mapping[str, str] = {
        "reward": "ATIF holds no total reward; Harbor's verifier writes components without weights",
        "weight": "Harbor's verifier writes no weights",
        "advantage": _NO_ADVANTAGE,
        "step": "no training step is written; one is shown where a folder's name states it",
        "group": "no group is written: rollouts of one task in one folder are shown as one",
    }

    def detect(self, document: Any, origin: Origin) -> bool:
        """By its version, or its keys."""
        if not isinstance(document, Mapping) or not isinstance(document.get("steps"), list):
            return False
        return str(document.get("schema_version") or "").startswith("ATIF") or (
            "session_id" in document and "agent" in document
        )

    def open(self, document: Any, origin: Origin) -> Iterable[Item]:
        """One rollout."""
        result = origin.beside("../result.json") or origin.beside("result.json")
        rewards = mapping(at(result, "verifier_result.rewards"))
        rewards = rewards or origin.beside("../verifier/reward.json") or origin.beside("verifier/reward.json")
        total = number(rewards.get("reward")) if "reward" in rewards else None
        messages: list[Message] = []
        for step in document["steps"]:
            if isinstance(step, Mapping):
                messages += _atif_step(step)
        prompt, said = split(messages)
        agent = mapping(document.get("agent"))
        final = mapping(document.get("final_metrics"))
        yield Rollout(
            prompt=prompt,
            completion=said,
            id=text(result.get("trial_name")) or text(document.get("session_id")) or "",
            step=origin.step,
            prompt_id=text(result.get("task_name")) or "",
            env=text(result.get("source")) or "",
            agent=text(agent.get("name")) or "",
            model=text(agent.get("model_name")) or "",
            reward=total,
            components={k: v for k, v in scores(rewards).items() if k != "reward"},
            error=_exception(mapping(result.get("exception_info"))),
            token_count=summed([final.get(k) for k in ("total_prompt_tokens", "total_completion_tokens")]),
            extra=plain(
                {
                    **_others(document, "schema_version", "session_id", "agent", "steps", "final_metrics", "extra"),
                    **mapping(document.get("extra")),
                    **final,
                }
            ),
            tools=tuple(t for t in listed(agent.get("tool_definitions")) if isinstance(t, Mapping)),
        )


class Rllm:
    """Episodes of rLLM: one rollout for each trajectory, one trajectory an agent."""

    name = "rLLM episode"
    unknown: Mapping[str, str] = {
        "advantage": _NO_ADVANTAGE,
        "weight": "the weights of an episode's metrics are not written",
        "tokens": "token ids are not written",
        "reward": "the trajectory has no reward",
    }

    def detect(self, document: Any, origin: Origin) -> bool:
        """By its keys."""
        return isinstance(document, Mapping) and isinstance(document.get("trajectories"), list) and "task" in document

    def open(self, document: Any, origin: Origin) -> Iterable[Item]:
        """One rollout a trajectory."""
        trajectories = [t for t in document["trajectories"] if isinstance(t, Mapping)]
        episode = text(document.get("episode_id") or document.get("id")) or ""
        group, _, index = episode.rpartition(":")
        correct = document.get("is_correct")
        task = mapping(document.get("task"))
        ended = text(document.get("termination_reason")) or ""
        error = error_text(at(document, "metadata.error")) or error_text(document.get("error"))
        step = whole(document.get("training_step"))
        more = {**mapping(document.get("metadata")), **mapping(document.get("info"))}
        several = len(trajectories) > 1
        names = [text(t.get("name")) or "" for t in trajectories]
        for i, (name, trajectory) in enumerate(zip(names, trajectories, strict=True)):
            prompt, said = _rllm_messages(listed(trajectory.get("steps")))
            again = f":{names[:i].count(name)}" if name in names[:i] else ""  # two solvers, say, and a judge
            about = {**mapping(trajectory.get("metadata")), **mapping(trajectory.get("info"))}
            yield Rollout(
                prompt=prompt,
                completion=said,
                id=f"{episode}:{name}{again}" if several else episode,
                step=origin.step if step is None else step,
                group=f"{group}:{name}" if several and group else group,
                index=whole(index) if index.isdecimal() else None,
                prompt_id=text(document.get("task_hash")) or "",
                env=text(task.get("data_source")) or "",
                agent=name if several or name != "agent" else "",
                split="eval" if origin.path.parent.name.startswith(("val", "eval")) else "train",
                reward=number(trajectory.get("reward")),
                components=scores(document.get("metrics")),
                expected=text(task.get("ground_truth")) or text(task.get("answer")),
                correct=correct if isinstance(correct, bool) and ended != "error" else None,
                stop=ended,
                error=error or ("the episode ended by an error" if ended == "error" else None),
                extra=plain({**{k: v for k, v in more.items() if k != "error"}, **about}),
                task=task,
            )


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


def _others(document: Mapping[str, Any], *known: str) -> dict[str, Any]:
    """What a writer added of its own."""
    return {k: v for k, v in document.items() if k not in known}


def _atif_step(step: Mapping[str, Any]) -> list[Message]:
    said = message({**step, "content": step.get("message"), "name": "", "error": None})
    calls = tuple(call(c) for c in listed(step.get("tool_calls")))
    reasoning = text(step.get("reasoning_content")) or said.thought
    made = [replace(said, calls=calls or said.calls, thought=reasoning)]
    for result in listed(at(step, "observation.results")):
        if isinstance(result, Mapping):
            body = conversation([{"role": "tool", "content": result.get("content")}])
            made += [replace(m, call_id=text(result.get("source_call_id")) or "") for m in body]
    return made


def _exception(info: Mapping[str, Any]) -> str | None:
    kind, said = text(info.get("exception_type")), text(info.get("exception_message"))
    return ": ".join(p for p in (kind, said) if p) or None


def _rllm_messages(steps: list[Any]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """The last step's conversation is the whole one, unless each step has its own: then a turn is the end of each.
    Turns get the steps' rewards where each step has one."""
    known = [s for s in steps if isinstance(s, Mapping)]
    if not known:
        return (), ()
    chats = [conversation(listed(s.get("chat_completions"))) for s in known]
    if chats[-1]:
        prompt, said = split(chats[-1])
        if sum(m.is_agent for m in said) < len(known) and all(chats):
            prompt = split(chats[0])[0]
            said = tuple(m for i, chat in enumerate(chats) for m in (chat[len(prompt) :] if i == 0 else chat[-2:]))
    else:
        prompt = (Message("user", text(known[0].get("observation")) or ""),)
        said = tuple(Message("assistant", text(s.get("model_response")) or text(s.get("action")) or "") for s in known)
    turns = [i for i, m in enumerate(said) if m.is_agent]
    if len(turns) == len(known):
        rewards = {i: number(s.get("reward")) for i, s in zip(turns, known, strict=True)}
        said = tuple(replace(m, reward=rewards[i]) if i in rewards else m for i, m in enumerate(said))
    return prompt, said


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
