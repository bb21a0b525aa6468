"""Formats defined as tables of keys and read by one function.

A key is a dotted path (`env_extras.reward_spec.ground_truth`). The first path with a value wins. Keys without a role
become columns `extra.<name>` or components of the reward.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any, Literal

from .containers.csv_rows import CsvRow
from .format import Origin
from .frameworks import langchain
from .messages import completion, conversation, error_text, message, split
from .rollout import Item, Message, Rollout, Score
from .values import Document, mapping, number, objects, text, whole

Reader = Callable[[object], tuple[Message, ...]]

_ALL_COUNT = ("components", "extra", "messages", "tools")
"""Roles that use every path instead of only the first with a value."""
_TOTALS = ("total", "total_reward", "reward", "overall", "score")
"""Keys of the total inside an object of rewards."""
WORDS = {"true": True, "false": False}
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,17})(?:\.\d+)?(?:[eE][+-]?\d{1,3})?|nan|-?inf", re.I)
_COLUMN_TEXT = 400
_COLUMNS = 100


@dataclass(frozen=True, eq=False)
class Mapped:
    """A format defined as a table of keys."""

    name: str
    keys: Mapping[str, tuple[str, ...]]
    """The paths that may hold each role."""
    needs: tuple[str, ...] = ()
    """Paths that every document must have."""
    when: Callable[[Document], object] | None = None
    """A further condition on a document."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    prefixes: tuple[str, ...] = ()
    """Prefixes of keys that hold components."""
    numbers: Literal["component", "extra"] = "extra"
    """The meaning of numbers under keys without a role."""
    by_token: bool = False
    """Whether a list as reward holds one number per token. Otherwise the total of a list is unknown."""
    ignored: tuple[str, ...] = ()
    """Paths that do not become columns."""
    read_prompt: Reader = conversation
    read_completion: Reader = completion
    rows: tuple[str, ...] = ()
    """Paths of a list of rollouts in a document. Each row holds the document under the key `^`."""
    split: str = ""
    """The split of rollouts that name none."""
    finish: Callable[[Rollout, Document, Origin], Rollout] | None = None
    """Adds values that no key can express."""

    def detect(self, document: object, origin: Origin) -> bool:
        """Return whether a document, or its first row, has the required keys."""
        return self._is_row(document) or any(self._is_row(row) for row in self._inner(document)[:1])

    def _inner(self, document: object) -> list[Any]:
        if not isinstance(document, Mapping):
            return []
        found = next((inner for path in self.rows if isinstance(inner := at(document, path), list)), [])
        return [{**row, "^": document} for row in found if isinstance(row, Mapping)]

    def _is_row(self, document: object) -> bool:
        return (
            isinstance(document, Mapping)
            and all(at(document, key, self) is not self for key in self.needs)
            and (self.when is None or bool(self.when(document)))
            and (bool(self.needs or self.when) or self._says_something(document))
        )

    def _says_something(self, document: Document) -> bool:
        """Return whether there is a completion, or a null completion with a prompt."""
        plan = self._plan(tuple(document))
        if plan.first(document, "completion") is not None or plan.first(document, "messages") is not None:
            return True
        return "completion" in plan.roles and plan.first(document, "prompt") is not None

    def open(self, document: Any, origin: Origin) -> Iterable[Item]:
        """Yield the rollout of a document, or one rollout per row."""
        for row in [document] if self._is_row(document) else self._inner(document):
            yield self.rollout(row, origin)

    def rollout(self, document: Document, origin: Origin) -> Rollout:
        plan = self._plan(tuple(document))
        found = {role: plan.first(document, role) for role in plan.roles}
        get = found.get
        prompt, answers = self._conversation(found)
        components, extra = self._columns(document, plan)
        reward, correct = get("reward"), get("correct")
        for rewards in (at(document, path) for path in plan.roles.get("reward", ())):
            if isinstance(rewards, Mapping):  # `rewards: {name: value}`, also next to a `reward`
                total_key = next(
                    (k for k in _TOTALS if k in rewards and (reward is rewards or rewards[k] == reward)), None
                )
                components = {**scores({k: v for k, v in rewards.items() if k != total_key}), **components}
                if reward is rewards:
                    reward = None if total_key is None else rewards[total_key]
        tools, stop = get("tools"), get("stop")
        stop = stop.get("type") if isinstance(stop, Mapping) else stop  # a list holds the stop sequences of a request
        correct = WORDS.get(correct.lower(), number(correct)) if isinstance(correct, str) else correct
        read: dict[str, Any] = {
            "reward": (total if self.by_token else number)(reward),
            "advantage": mean(get("advantage")),
            "step": whole(get("step")),
            "index": whole(get("index")),
            "correct": bool(correct) if correct in (True, False) else None,  # partial credit is not a verdict
        }
        unread = [role for role, value in read.items() if value is None and get(role) is not None]
        if unread or plan.several:
            extra = {**plain(plan.left_over(document, found, unread)), **extra}
        if read["step"] is None:
            read["step"] = origin.step
        named = ("id", "group", "prompt_id", "env", "agent", "model")
        names: dict[str, Any] = {role: text(get(role)) or "" for role in named}
        rollout = Rollout(
            prompt=prompt,
            completion=answers,
            **names,
            **read,
            split=text(get("split")) or origin.split or self.split,
            components=components,
            answer=text(get("answer")),
            expected=text(get("expected")),
            stop=(stop if isinstance(stop, str) else "") or next((m.stop for m in reversed(answers) if m.stop), ""),
            error=error_text(get("error")),
            token_count=whole(get("token_count")),
            policy_version=whole(get("policy_version")),
            seconds=number(get("seconds")) or 0.0,
            extra=extra,
            task=mapping(get("task")),
            tools=tuple(objects(tools)) if tools is not None else (),
            unknown={"advantage": SEVERAL} if read["advantage"] is None and several(get("advantage")) else {},
        )
        return rollout if self.finish is None else self.finish(rollout, document, origin)

    def _conversation(self, found: Document) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
        question, answered, messages, system = map(found.get, ("prompt", "completion", "messages", "system"))
        chat = self.read_prompt(messages) if messages is not None else ()
        if chat and question is not None and answered is None and isinstance(messages, str) and not split(chat)[1]:
            prompt, answers = self.read_prompt(question), self.read_completion(messages)  # "trajectory": "a text"
        elif chat and (answered is None or (question is None and chat[-1].is_agent)):
            prompt, answers = split(chat)
            if not prompt and question is not None:
                prompt = self.read_prompt(question)
        else:  # messages next to a completion are its prompt
            prompt = self.read_prompt(question) if question is not None else chat
            answers = self.read_completion(answered)
        if (system.strip() if isinstance(system, str) else system) and not any(m.role == "system" for m in prompt):
            about = langchain(system) if isinstance(system, Mapping) else {"content": system}
            prompt = (message({**about, "role": "system"}), *prompt)
        return prompt, answers

    def first(self, document: Document, role: str) -> Any:
        return self._plan(tuple(document)).first(document, role)

    @lru_cache(maxsize=4096)  # noqa: B019 - the formats live as long as the process
    def _plan(self, present: tuple[str, ...]) -> _Plan:
        """Return the plan for a document's keys. Documents of one file mostly share their keys, so plans are cached."""
        available = set(present)
        roles = {}
        for role, keys in self.keys.items():
            paths = tuple(
                key for key in keys if key in available or ("." in key and key.partition(".")[0] in available)
            )
            if paths:
                roles[role] = paths
        mapped_keys = {key.partition(".")[0] for role, keys in self.keys.items() if role != "extra" for key in keys}
        mapped_keys.update(key.partition(".")[0] for key in (*self.ignored, *self.keys.get("extra", ())))
        columns = []
        for key in present:
            if key not in mapped_keys and key != "^":
                prefix = next((p for p in self.prefixes if key.startswith(p) and len(key) > len(p)), None)
                columns.append((key, None if prefix is None else key[len(prefix) :]))
        return _Plan(roles, tuple(columns), tuple(r for r, p in roles.items() if len(p) > 1 and r not in _ALL_COUNT))

    def _columns(self, document: Document, plan: _Plan) -> tuple[dict[str, Score], dict[str, object]]:
        components: dict[str, Score] = {}
        extra: dict[str, object] = {}
        for key in plan.roles.get("components", ()):
            components.update(scores(at(document, key)))
        for key in plan.roles.get("extra", ()):
            paths = [*self.ignored, *(k for r, keys in self.keys.items() if r != "extra" for k in keys)]
            read = {k.removeprefix(f"{key}.") for k in paths if k.startswith(f"{key}.")}
            values = mapping(at(document, key))
            extra.update(plain({k: v for k, v in values.items() if k not in read}))
        is_text = isinstance(document, CsvRow)
        for key, component in plan.columns:
            value = document[key]
            if is_text and value is not None:
                value = WORDS.get(value.lower(), number(value) if _NUMBER.fullmatch(value) else value)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if component is not None and (is_number or value is None or isinstance(value, str)):
                if (score := number(value)) is not None or value is None:
                    components[component] = Score(score)
            elif self.numbers == "component" and (is_number or value == "NaN") and not key.startswith("num_"):
                components[key] = Score(number(value))
            else:
                extra.update(plain({key: value}))
        return components, extra


@dataclass(frozen=True)
class _Plan:
    """The meaning of a document's keys: the paths of each role, and the keys without a role. A key whose prefix makes
    it a component comes with the component's name."""

    roles: Mapping[str, tuple[str, ...]]
    columns: tuple[tuple[str, str | None], ...]
    several: tuple[str, ...] = ()
    """Roles that more than one path may hold."""

    def first(self, document: Document, role: str) -> Any:
        for path in self.roles.get(role, ()):
            found = document[path] if path in document else at(document, path)
            if found is not None:
                return found
        return None

    def left_over(self, document: Document, found: Document, unread: Sequence[str]) -> dict[str, object]:
        """Return, by path, the role values that the rollout does not use: unreadable values (a reward in words), and
        values that differ from the one that counts."""
        left: dict[str, object] = {}
        for role in unread:
            if not isinstance(value := found[role], Mapping):
                left.update((path, value) for path in self.roles[role] if at(document, path) is value)
        for role in self.several:
            for path in self.roles[role]:
                value = at(document, path)
                if value is not None and value != found[role] and not (role == "reward" and isinstance(value, Mapping)):
                    left[path] = value
        return left


def at(document: Document, key: str, missing: object = None) -> Any:
    """Return the value at a dotted path, or `missing`."""
    if key in document:
        return document[key]
    head, dot, rest = key.partition(".")
    inner = document.get(head) if dot else None
    return at(inner, rest, missing) if isinstance(inner, Mapping) else missing


def scores(value: object) -> dict[str, Score]:
    """Return the components of `{name: number}` or `{name: {score, weight}}`. Null is a component without a value."""
    found: dict[str, Score] = {}
    if isinstance(value, list):  # `[{"name", "value"}, …]`
        value = {str(v["name"]): v for v in value if isinstance(v, Mapping) and "name" in v}
    for name, entry in mapping(value).items():
        if isinstance(entry, Mapping):
            raw = next((entry[k] for k in ("score", "value", "reward") if k in entry), None)
            found[str(name)] = Score(number(raw), number(entry.get("weight")))
        elif entry is None or number(entry) is not None:
            found[str(name)] = Score(number(entry))
    return found


def plain(values: Document) -> dict[str, object]:
    """Return the values that a column can show: numbers, short texts, short lists as JSON. Values inside an object are
    named by their path (`judge.score`)."""
    return dict(islice(_flat(values, "", 0), _COLUMNS))


def _flat(values: Document, prefix: str, depth: int) -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, (bool, int, float)):
            yield f"{prefix}{name}", value
        elif isinstance(value, str) and value:
            yield f"{prefix}{name}", value[:_COLUMN_TEXT]
        elif isinstance(value, Mapping) and depth < 2:
            yield from _flat(value, f"{prefix}{name}.", depth + 1)
        elif isinstance(value, list) and len(value) <= 16:
            known = [v for v in value if v is not None]
            if known and all(isinstance(v, (bool, int, float, str)) for v in known):
                yield f"{prefix}{name}", (text(value) or "")[:_COLUMN_TEXT]


def total(value: object) -> float | None:
    """Return a reward: a number, or the sum of one number per token."""
    if isinstance(value, (list, tuple)) and len(value) > 1:
        parts = [number(v) for v in value]
        return None if any(p is None for p in parts) else math.fsum(p for p in parts if p is not None)
    return number(value)


SEVERAL = "its tokens have different advantages: there is none for the whole rollout"
"""The reason for a missing advantage when tokens have different advantages."""


def several(value: object) -> bool:
    """Return whether a value holds one advantage per token and they differ."""
    return isinstance(value, (list, tuple)) and len({p for v in value if (p := number(v)) is not None and p != 0}) > 1


def mean(value: object) -> float | None:
    """Return an advantage: a number, or the value shared by all tokens that have one."""
    if isinstance(value, (list, tuple)) and len(value) > 1:
        parts = {p for v in value if (p := number(v)) is not None and p != 0}
        return parts.pop() if len(parts) == 1 else 0.0 if not parts else None
    return number(value)
