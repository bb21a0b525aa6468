"""Shapes that hold several rollouts or none: groups on a line, columns as lists, tables, metrics, user's mappings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..format import Format, Origin
from ..mapped import Mapped
from ..rollout import Item, Numbers, Rollout, number, whole
from .tables import GENERIC

_PLURAL = ("completions", "responses", "outputs", "generations")
_COMPLETIONS = (*_PLURAL, "completion", "response", "output")


class Groups:
    """One line a group: one prompt, lists of completions, rewards, advantages of the same length."""

    name = "groups in JSON"
    unknown = GENERIC.unknown

    def __init__(self, single: Mapped = GENERIC) -> None:
        self.single = single

    def detect(self, document: Any, origin: Origin) -> bool:
        """A prompt that is no list of texts, and a list of completions."""
        key = _list_key(document)
        return key is not None and not _is_column(document.get("prompt"), len(document[key]))

    def open(self, document: Any, origin: Origin) -> Iterable[Item]:
        """Yield a rollout for each completion."""
        key = _list_key(document)
        assert key is not None
        size = len(document[key])
        named = bool(GENERIC.first(document, "group"))
        for i in range(size):
            row: dict[str, Any] = {"rollout": i} if named else {}
            for name, value in document.items():
                if not isinstance(value, list) or name in ("prompt", "messages", "tools"):
                    row[name] = value
                elif len(value) == size:
                    row[_singular(name)] = value[i]
                else:  # one value for two rollouts is nobody's
                    row[f"group.{name}"] = value
            yield self.single.rollout(row, origin)


class Columns:
    """One line a batch: every key a list with one value a rollout (ms-swift, datasets)."""

    name = "batches of columns"
    unknown = GENERIC.unknown

    def __init__(self, single: Mapped = GENERIC) -> None:
        self.single = single

    def detect(self, document: Any, origin: Origin) -> bool:
        """Lists of one length, prompt and completion among them."""
        key = _list_key(document)
        if key is None:
            return False
        size = len(document[key])
        prompts = document.get("prompt", document.get("prompts", document.get("input")))
        return size > 0 and _is_column(prompts, size)

    def open(self, document: Any, origin: Origin) -> Iterable[Item]:
        """One rollout a place in the lists. Numbers that have no other meaning are reward functions."""
        key = _list_key(document)
        assert key is not None
        known = {k for keys in self.single.keys.values() for k in keys}
        size = len(document[key])
        numbers = {name for name, value in document.items() if _is_numbers(value, size)}
        for i in range(size):
            row: dict[str, Any] = {}
            for name, value in document.items():
                one = value[i] if isinstance(value, list) and len(value) == size else value
                is_number = name in numbers
                name = _singular(name) if name not in known or is_number else name
                # a column called as one of our words (`correct`) that holds floats is a reward function's
                taken = (name in known and name not in self.single.keys.get("correct", ())) or name in _MEASURED
                row[f"reward_{name}" if is_number and not taken else name] = one
            yield self.single.rollout(row, origin)


class Table:
    """A wandb table file: `{"columns": […], "data": [[…], …]}`; its rows are of whatever format they are."""

    name = "wandb table"
    unknown: Mapping[str, str] = {
        "reward": "the table has no column of the total reward",
        "advantage": "the table has no column of advantages",
        "weight": "the table has no weights of reward functions",
        "group": "no group is written: rollouts of one prompt in one step are shown as one",
    }

    def __init__(self, formats: Iterable[Format]) -> None:
        self.formats = tuple(formats)

    def detect(self, document: Any, origin: Origin) -> bool:
        """Return whether the document has the keys of this format."""
        return (
            isinstance(document, Mapping)
            and isinstance(document.get("columns"), list)
            and isinstance(document.get("data"), list)
        )

    def open(self, document: Any, origin: Origin) -> Iterable[Item]:
        """The rows, each by the first format that knows it."""
        columns = [str(c) for c in document["columns"]]
        rows: list[Mapping[str, Any]] = [
            dict(zip(columns, v, strict=False)) for v in document["data"] if isinstance(v, list)
        ]
        yield from table_rows(rows, self.formats, origin)


def table_rows(rows: list[Mapping[str, Any]], formats: Iterable[Format], origin: Origin) -> Iterable[Item]:
    """Yield the rollouts of a table's rows, each by the first format that knows it. A table may be logged twice, at the
    last step and when the training ends: ids made of its content show that it is the same one."""
    digest = hashlib.blake2b(json.dumps(rows, default=str).encode(), digest_size=6).hexdigest()
    for n, row in enumerate(rows, 1):
        for part in _verl_samples(row) or (row,):
            found = next(((f, r) for r in (part, _lower(part)) for f in formats if f.detect(r, origin)), None)
            for item in found[0].open(found[1], origin) if found is not None else ():
                if isinstance(item, Rollout) and not item.id and part is row:
                    item = replace(item, id=f"{digest}-{n}", same_as_id=True)
                yield item


class Wrapped:
    """Rollouts in a list inside a document: `{"rollouts": [{…}, …], "step": 3}`, or a list on a line. What stands
    beside the list is said of each that does not say it itself. A list of messages is one rollout."""

    name = "rollouts in a list"
    unknown = GENERIC.unknown

    def __init__(self, formats: Iterable[Format]) -> None:
        self.formats = tuple(formats)

    def detect(self, document: Any, origin: Origin) -> bool:
        """By the first that is in it; an empty list of rollouts is one, too."""
        if isinstance(document, Mapping) and any(document.get(k) == [] for k in _ROLLOUTS):
            return True
        return next((True for _, _ in self._inner(document, origin)), False)

    def open(self, document: Any, origin: Origin) -> Iterable[Item]:
        """The rollouts, each by the first format that knows it."""
        for reader, row in self._inner(document, origin):
            yield from reader.open(row, origin)

    def _inner(self, document: Any, origin: Origin) -> Iterable[tuple[Format, Mapping[str, Any]]]:
        if isinstance(document, Mapping):
            key = next((k for k in _LISTS if isinstance(document.get(k), list)), None)
            rows = document[key] if key is not None else []
            beside = {k: v for k, v in document.items() if k in _SAID_BESIDE and v is not None}
        else:
            rows, beside = document if isinstance(document, list) else [], {}
            if rows and all(isinstance(r, Mapping) and ("role" in r or "from" in r) for r in rows):
                rows = [{"messages": rows}]
        for row in rows:
            if isinstance(row, Mapping):
                row = {**beside, **row}
                if "prompt" in beside and "completion" not in row and "text" in row:
                    row["completion"] = row.pop("text")
                reader = next((f for f in self.formats if f.detect(row, origin)), None)
                if reader is not None:
                    yield reader, row


_ROLLOUTS = ("rollouts", "trajectories", "episodes")
_LISTS = (
    *_ROLLOUTS, "samples", "data", "results", "examples", "records", "items", "rows",
    "completions", "responses",
)  # fmt: skip
"""Keys under which a document holds a list of rollouts."""
_SAID_BESIDE = frozenset(
    k for role in ("group", "prompt_id", "step", "prompt", "expected", "env", "model", "split", "policy_version")
    for k in GENERIC.keys[role] if "." not in k
)  # fmt: skip


class Metrics:
    """One line a step of numbers only: metrics of the run."""

    name = "metrics"
    unknown: Mapping[str, str] = {}

    def detect(self, document: Any, origin: Origin) -> bool:
        """A step, and otherwise mostly numbers; no text of a rollout."""
        if not isinstance(document, Mapping) or not document:
            return False
        if _step(document) is None and (origin.step is None or not all("/" in k for k in document)):
            return False  # a folder's step serves for metrics that are called as metrics are (`eval/all/score`)
        return all(not isinstance(v, (list, Mapping)) for v in document.values()) and (
            sum(number(v) is not None for v in document.values()) * 2 > len(document)
        )

    def open(self, document: Any, origin: Origin) -> Iterable[Item]:
        """Yield the numbers by name."""
        step = _step(document)
        if step is None:
            step = origin.step
        assert step is not None
        skipped = ("step", "training_step", "global_step", "iteration", "time", "timestamp", "_step", "_timestamp")
        yield Numbers(step, {k: n for k, v in document.items() if k not in skipped and (n := number(v)) is not None})


def _step(document: Mapping[str, Any]) -> int | None:
    for key in ("step", "training_step", "global_step", "iteration", "_step"):
        if (found := whole(document.get(key))) is not None:
            return found
    return None


def _list_key(document: Any) -> str | None:
    """The key whose value is a list of completions: of texts, or of conversations."""
    if not isinstance(document, Mapping):
        return None
    for key in _COMPLETIONS:
        value = document.get(key)
        if not isinstance(value, list) or (not value and key not in _PLURAL):
            continue
        if all(isinstance(v, str) or v is None for v in value):
            return key
        if all(isinstance(v, list) and all(isinstance(m, Mapping) for m in v) for v in value):
            return key
    return None


def _is_column(value: Any, size: int) -> bool:
    """Whether a value is one prompt a rollout: a list of texts or of conversations of this length."""
    if not isinstance(value, list) or len(value) != size:
        return False
    return all(isinstance(v, str) for v in value) or all(isinstance(v, list) for v in value)


def _is_numbers(value: Any, size: int) -> bool:
    """Whether a column holds numbers; where one is not known it is null or the text "NaN"."""
    if not isinstance(value, list) or len(value) != size:
        return False
    known = [v for v in value if v is not None]
    return bool(known) and all(v == "NaN" or (isinstance(v, (int, float)) and not isinstance(v, bool)) for v in known)


_MEASURED = ("entropy", "gen_step", "num_turns", "lengths")
"""Numbers that trainers put beside those of reward functions."""


def _singular(name: str) -> str:
    return name[:-1] if name.endswith("s") and name[:-1] in _SINGULARS else name


_SINGULARS = {"prompt", "completion", "response", "output", "generation", "reward", "advantage", "score", "answer"} | {
    "completion_id",
    "solution",
    "label",
    "step",
    "id",
    "group",
    "group_id",
    "message",
    "error",
    "token_count",
    "finish_reason",
    "stop_reason",
}


def _lower(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row under names as people write them in code: tables are made for screens (`Total Reward`)."""
    return {name.strip().lower().replace(" ", "_"): value for name, value in row.items()}


def _verl_samples(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """verl logs one row a validation with `input_1, output_1, score_1, input_2, …`: the samples of a row."""
    found = []
    number_ = 1
    while f"input_{number_}" in row and f"output_{number_}" in row:
        sample = {k: row.get(f"{k}_{number_}") for k in ("input", "output", "score")}
        found.append({**sample, **({"step": row["step"]} if "step" in row else {})})
        number_ += 1
    return found
