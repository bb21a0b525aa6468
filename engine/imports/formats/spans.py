"""Build rollouts from traces of spans.

`span_writers.py` converts the document of each writer into a list of `Span`. The rollout of a trace is its longest
conversation, plus the tool results and scores that other spans hold.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..format import Documents, Origin
from ..mapped import plain
from ..messages import completion, conversation, split
from ..rollout import Amendment, Item, Message, Rollout, Score
from ..values import Document, listed, mapping, number, parsed, summed, text, whole

_REWARDS = ("training.reward", "reward")
_SHOWN = ("gen_ai.", "training.", "llm.", "input.", "output.", "openinference.", "mlflow.", "tool.")
_INDEXED = re.compile(r"(?:gen_ai|llm)\.(prompt|completion|input_messages|output_messages)\.\d+\.")


@dataclass(frozen=True)
class Span:
    """One span. `kind` is `llm`, `tool`, or empty. `asked` and `said` are the input and output of the operation if the
    writer stores them outside the attributes."""

    trace: str
    start: float = 0.0
    is_root: bool = False
    name: str = ""
    kind: str = ""
    attributes: Document = field(default_factory=dict)
    events: Sequence[tuple[str, Document]] = ()
    asked: object = None
    said: object = None
    error: str | None = None
    components: Mapping[str, Score] = field(default_factory=dict)
    model: str = ""
    tokens: int | None = None

    def talk(self) -> tuple[Message, ...]:
        """Read the span's conversation from lists of messages in attributes or events, numbered attributes
        (`gen_ai.prompt.0.content`), one event per message, or the input and output of the operation."""
        for attributes in (self.attributes, *(about for _, about in self.events)):
            inputs, outputs = (read_json(attributes.get(f"gen_ai.{k}.messages")) for k in ("input", "output"))
            if inputs is not None or outputs is not None:
                instructions = read_json(attributes.get("gen_ai.system_instructions"))
                rules = conversation([{"role": "system", "content": instructions}])
                found = (*conversation(inputs), *_with_stop(conversation(outputs), attributes))
                return found if any(m.role == "system" for m in found) or not rules[0].text else (*rules, *found)
        if found := _numbered(self.attributes):
            return _with_stop(found, self.attributes)
        outputs = []
        for name, about in self.events:
            role = name.removeprefix("gen_ai.").removesuffix(".message")
            if name.startswith("gen_ai.") and (role == "choice" or name.endswith(".message")):
                inner = mapping(read_json(about.get("message")))
                outputs.append({"role": "assistant" if role == "choice" else role, **about, **inner})
        if outputs:
            return conversation(outputs)
        if self.kind == "llm" or (self.is_root and not self.kind):
            prompt, answered = conversation(_messages(self.asked)), completion(_messages(self.said))
            return answered if prompt and answered[: len(prompt)] == prompt else (*prompt, *answered)
        return ()


_UNKNOWN = {
    "reward": "its spans have no unnamed score and no attribute `reward`",
    "components": "its spans have no named score",
}


def traces(name: str, read: Callable[[Document], list[Span] | None]) -> Documents:
    """Return the format of one span writer. `read` returns the spans of a document, or None for other documents."""

    def open_(document: Document, origin: Origin) -> Iterable[Item]:
        """Yield a rollout for each trace with a conversation, and an amendment for the others."""
        by_trace: dict[str, list[Span]] = defaultdict(list)
        for span in read(document) or ():
            by_trace[span.trace].append(span)
        for trace, spans in by_trace.items():
            rollout = _rollout(trace, sorted(spans, key=lambda s: s.start), origin)
            if rollout is not None:
                yield rollout
            # Spans are exported as they end, so another document may hold more of this conversation but not the root.
            if (more := _amendment(trace, spans)) is not None and (rollout is None or len(spans) == 1):
                yield more

    return Documents(name, open_, when=lambda document, _: read(document) is not None, unknown=_UNKNOWN)


def _rollout(trace: str, spans: list[Span], origin: Origin) -> Rollout | None:
    conversations = [span.talk() for span in spans]
    longest = max(range(len(spans)), key=lambda i: (len(conversations[i]), i))
    if not conversations[longest]:
        return None
    source = spans[longest]
    messages = _with_tools(conversations[longest], spans)
    root = next((s for s in spans if s.is_root), spans[0])
    known = root.attributes
    prompt, answers = split(messages)
    reward, evaluated = _scores(spans, known)
    usage = summed([source.attributes.get(f"gen_ai.usage.{k}_tokens") for k in ("input", "output")])
    step = whole(known.get("training.step", known.get("step")))
    return Rollout(
        prompt=prompt,
        completion=answers,
        id=_conversation(spans) or trace,
        grows=True,
        step=origin.step if step is None else step,
        group=text(known.get("training.group")) or text(known.get("group")) or "",
        env=text(known.get("gen_ai.agent.name")) or (root.name if root.said is not None else ""),
        split=origin.split,
        model=next((m for s in spans if (m := text(s.attributes.get("gen_ai.request.model")) or s.model)), ""),
        reward=reward,
        components=evaluated,
        error=root.error,
        stop=next((m.stop for m in reversed(answers) if m.stop), ""),
        token_count=source.tokens if usage is None else usage,
        extra=_columns(known),
    )


def _with_tools(messages: tuple[Message, ...], spans: list[Span]) -> tuple[Message, ...]:
    """Add tool errors from their spans, and tool results that are missing from the messages."""
    extended = list(messages)
    waiting = {call.id for m in extended for call in m.calls if call.id} - {m.call_id for m in extended}
    for span in spans:
        about = span.attributes
        if span.kind != "tool" and about.get("gen_ai.operation.name") != "execute_tool":
            continue
        call_id = text(about.get("gen_ai.tool.call.id")) or text(about.get("tool_call_id")) or ""
        result = about.get("gen_ai.tool.call.result", span.said)
        if call_id in waiting and result is not None:
            extended.append(Message("tool", text(_content(result)) or "", call_id=call_id, name=span.name))
            waiting.remove(call_id)
        if span.error:
            extended = [
                replace(m, error=m.error or span.error) if call_id and m.call_id == call_id else m for m in extended
            ]
    return tuple(extended)


def _amendment(trace: str, spans: list[Span]) -> Amendment | None:
    """Return the values that spans without a conversation add to another document's rollout, or None."""
    known = {k: v for span in spans for k, v in span.attributes.items()}
    reward, evaluated = _scores(spans, known)
    step = whole(known.get("training.step"))
    error = next((span.error for span in spans if span.is_root and span.error), None)
    if not evaluated and step is None and reward is None and error is None:
        return None
    extra = _columns(known) | {f"component.{name}": score.value for name, score in evaluated.items()}
    return Amendment(_conversation(spans) or trace, step=step, reward=reward, extra=extra, error=error)


def _columns(attributes: Document) -> dict[str, object]:
    shown = (*_REWARDS, "step", "group")
    return plain({k: v for k, v in attributes.items() if not k.startswith(_SHOWN) and k not in shown})


def _conversation(spans: list[Span]) -> str:
    key = "gen_ai.conversation.id"
    return next((str(span.attributes[key]) for span in spans if key in span.attributes), "")


def _scores(spans: list[Span], attributes: Document) -> tuple[float | None, dict[str, Score]]:
    """Return the reward and the scores by name, from span attributes or events (`gen_ai.evaluation.result`). The reward
    is the score without a name, else the attribute `reward`."""
    found: dict[str, Score] = {}
    for span in spans:
        for values in (span.attributes, *(about for _, about in span.events)):
            if "gen_ai.evaluation.score.value" in values:
                name = text(values.get("gen_ai.evaluation.name")) or "reward"
                found[name] = Score(number(values["gen_ai.evaluation.score.value"]))
        found.update(span.components)
    reward = found.pop("reward", Score(None)).value
    if reward is None:
        reward = number(next((attributes[k] for k in _REWARDS if k in attributes), None))
    return reward, found


def _with_stop(messages: tuple[Message, ...], attributes: Document) -> tuple[Message, ...]:
    """Set the last message's stop reason to the span's finish reason if it has none."""
    reasons = read_json(attributes.get("gen_ai.response.finish_reasons"))
    reason = text(next(iter(listed(reasons)), None)) or ""
    if not messages or not reason or messages[-1].stop or not messages[-1].is_agent:
        return messages
    return (*messages[:-1], replace(messages[-1], stop=reason))


def _numbered(attributes: Document) -> tuple[Message, ...]:
    tree: dict[str, object] = {}
    for key, value in attributes.items():
        if _INDEXED.match(key):
            _put(tree, key.split(".")[1:], value)
        elif key in ("llm.input_messages", "llm.output_messages"):  # an export of Phoenix: a list in one attribute
            tree[key.removeprefix("llm.")] = listed(value)
    parts = sorted(tree, key=lambda name: name in ("completion", "output_messages"))
    return tuple(m for name in parts for m in conversation(_unwrapped(tree[name])))


def _put(tree: dict[str, object], path: list[str], value: object) -> None:
    """Set a value at a path in a tree of objects. Lists are objects with numeric keys."""
    for name in path[:-1]:
        below = tree.setdefault(name, {})
        if not isinstance(below, dict):
            return
        tree = below
    tree[path[-1]] = value


_WRAPPERS = ("message", "tool_call", "message_content")


def _unwrapped(value: object) -> object:
    """Remove OpenInference's wrappers (`message.role`), nested or in dotted names. Numbered values become lists."""
    if isinstance(value, list):
        return [_unwrapped(v) for v in value]
    if not isinstance(value, dict):
        return value
    tree: dict[str, Any] = {}
    for key, inner in value.items():
        _put(tree, key.split("."), inner)
    if tree and all(map(str.isdecimal, tree)):
        return [_unwrapped(inner) for _, inner in sorted(tree.items(), key=lambda item: int(item[0]))]
    inner = next((tree[name] for name in _WRAPPERS if isinstance(tree.get(name), dict)), None)
    tree = {key: _unwrapped(each) for key, each in (tree if inner is None else inner).items()}
    return {**tree, "content": tree.pop("contents")} if "contents" in tree else tree


def read_json(value: object) -> Any:
    """Parse a list or object that is written as text. Return anything else unchanged."""
    return parsed(value) if isinstance(value, str) and value[:1] in ("[", "{") else value


def _content(value: object) -> object:
    """Return the text of a tool's output, which is bare or inside an object with one value."""
    value = read_json(value)
    for key in ("output", "content", "result"):
        if isinstance(value, Mapping) and key in value:
            return _content(value[key])
    if isinstance(value, Mapping) and isinstance(value.get("kwargs"), Mapping):
        return _content(value["kwargs"])
    return value


def _messages(value: object) -> object:
    """Return the messages in an operation's input or output: a chat API, LangChain, or plain text."""
    value = read_json(value)
    if not isinstance(value, Mapping):
        return value
    if isinstance(generations := value.get("generations"), list):  # LangChain: a list of choices per prompt
        first = generations[0] if generations else []
        first = first[0] if isinstance(first, list) and first else first
        about = mapping(mapping(first).get("generation_info"))
        message = mapping(first).get("message", mapping(first).get("text"))
        stop = about.get("finish_reason") or about.get("stop_reason")
        if isinstance(message, Mapping) and stop:
            return [{"message": message, "finish_reason": stop}]
        return message
    if isinstance(value.get("message"), (Mapping, str)) and "role" not in value:
        return [value["message"]]
    if len(value) == 1 and "messages" not in value and "choices" not in value:
        (only,) = value.values()
        return _messages(only) if isinstance(only, (str, Mapping)) else only
    for key in ("question", "query", "input", "prompt", "answer", "output"):
        if isinstance(value.get(key), str) and "messages" not in value and "role" not in value:
            return value[key]
    return value
