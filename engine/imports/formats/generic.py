"""Documents with several rollouts or none: groups, columns, tables, lists, metrics, zip members."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, takewhile
from typing import Any

from ..containers.csv_rows import CsvRow
from ..format import Documents, Format, Origin
from ..mapped import at
from ..messages import CHOICES, conversation
from ..rollout import Item, Numbers, Rollout
from ..values import Document, mapping, number, objects, whole
from .batches import BATCH, rollout_of, with_request
from .evaluations import PAIRS
from .tables import GENERIC, TOKEN_IDS
from .trl import metric_name

_PLURAL = ("completions", "responses", "outputs", "generations", "samples", "candidates")
_COMPLETIONS = (*_PLURAL, "completion", "response", "output", "model_response.text")
_MEASURED = ("entropy", "gen_step", "num_turns", "lengths")
"""Numbers that trainers write but that are not reward functions."""
_SINGULARS = frozenset([
    "prompt", "completion", "response", "output", "generation", "reward", "advantage", "score", "answer", "solution",
    "completion_id", "label", "step", "id", "group", "group_id", "message", "error", "token_count", "finish_reason",
    "stop_reason",
])  # fmt: skip


def _group(document: Document, origin: Origin) -> Iterable[Item]:
    """Yield one rollout per completion. Lists of the same length hold one value per completion."""
    size = _completions(document)
    has_name = bool(GENERIC.first(document, "group"))
    for i in range(size or 0):
        row: dict[str, object] = {"rollout": i} if has_name else {}
        for name, value in document.items():
            if isinstance(value, Mapping):  # `"rewards": {"accuracy": [1, 0], …}`
                row[name] = {k: v[i] if isinstance(v, list) and len(v) == size else v for k, v in value.items()}
            elif not isinstance(value, list) or name in ("prompt", "messages", "tools"):
                row[name] = value
            elif len(value) == size:
                row[_singular(name)] = value[i]
            else:  # with two values for three rollouts, the assignment is unknown
                row[f"group.{name}"] = value
        yield GENERIC.rollout(row, origin)


def _lists(document: Document) -> Document:
    """Return the columns as lists. `DataFrame.to_json` writes each as `{"0": …, "1": …}`."""
    by_index = document and all(isinstance(v, Mapping) and "0" in v for v in document.values())
    return {name: list(column.values()) for name, column in document.items()} if by_index else document


def _is_batch(document: Document, origin: Origin) -> bool:
    document = _lists(document)
    size = _completions(document)
    return bool(size) and _is_column(document.get("prompt", document.get("prompts", document.get("input"))), size)


def _batch(document: Document, origin: Origin) -> Iterable[Item]:
    """Yield one rollout per position in the lists. Numbers without another meaning are reward functions."""
    document, known = _lists(document), {k for keys in GENERIC.keys.values() for k in keys}
    size = _completions(document) or 0
    numbers = {name for name, value in document.items() if _is_numbers(value, size)}
    for i in range(size):
        row: dict[str, object] = {}
        for name, value in document.items():
            one = value[i] if isinstance(value, list) and len(value) == size else value
            is_number = name in numbers
            name = _singular(name) if name not in known or is_number else name
            # a column of floats under a name such as `correct` is a reward function
            taken = (name in known and name not in GENERIC.keys["correct"]) or name in _MEASURED
            row[f"reward_{name}" if is_number and not taken else name] = one
        yield GENERIC.rollout(row, origin)


def _answers(document: Document) -> list[Document]:
    """Return a document for each answer of an API's response: the response itself, or one of several next to its
    request. Return an empty list for other documents."""
    message = document.get("type") == "message" and "usage" in document  # Anthropic
    alone = message or any(isinstance(document.get(key), list) for key in CHOICES)
    if alone:
        document = {**{k: v for k, v in document.items() if k in ("id", "model")}, "response": document}
    for path in _RESPONSES:
        head, _, inner = path.partition(".")
        response = mapping(at(document, path))
        for key in CHOICES:
            choices = [c for c in objects(response.get(key)) if c.keys() & {"message", "content", "text"}]
            if len(choices) > (not alone):
                name = {k: document[k] for k in ("custom_id", "id") if document.get(k)}
                group = {"group": next(iter(name.values()))} if name else {}
                counts = {} if len(choices) == 1 else {"usage": None, "usageMetadata": None}  # of all answers
                answers = [{**response, **counts, key: [choice]} for choice in choices]
                return [
                    {**group, **document, head: {**document[head], inner: answer} if inner else answer, "rollout": i}
                    | {k: f"{value}:{i}" for k, value in name.items() if len(choices) > 1}
                    for i, answer in enumerate(answers)
                ]
    return [document] if message else []


_RESPONSES = ("response.body", "response", "output", "outputs")
RESPONSES = Documents(
    "API responses",
    lambda document, origin: [rollout_of(row, origin) for row in _answers(with_request(document, origin))],
    when=lambda document, _: _answers(document),
    unknown=BATCH.unknown,
)
"""Responses of OpenAI's, Anthropic's and Gemini's APIs, and of their batches if a request has several answers."""


def _talk(document: Document) -> str | None:
    """Return the key of the longest conversation in a document: a list of messages or of an environment's steps, or a
    text with the marks of a chat template."""
    lists = (k for k, v in document.items() if isinstance(v, list) and v and all(isinstance(i, Mapping) for i in v))
    talks = [*lists, *(["text"] if isinstance(document.get("text"), str) else [])]
    turns = {key: sum(m.is_agent for m in conversation(document[key])) for key in talks}
    return max((key for key in turns if turns[key]), key=turns.__getitem__, default=None)


def _with_talk(document: Document, origin: Origin) -> Iterable[Item]:
    key = _talk(document)
    rest = {k: v for k, v in document.items() if k != key}
    yield GENERIC.rollout({**rest, "messages": document[str(key)]}, origin)


CONVERSATIONS = Documents(
    "conversations", _with_talk, when=lambda document, _: _talk(document), unknown=GENERIC.unknown
)
"""Rollouts whose messages or steps are under another key (`turns`, `steps`, `history`, …)."""
GROUPS = Documents(
    "groups in JSON",
    _group,
    when=lambda row, _: (size := _completions(row)) is not None and not _is_column(row.get("prompt"), size),
    unknown=GENERIC.unknown,
)
"""One group per document: a prompt, and lists of completions, rewards, advantages."""
BATCHES = Documents("batches of columns", _batch, when=_is_batch, unknown=GENERIC.unknown)
"""One batch per document: every key holds a list with one value per rollout (ms-swift, datasets)."""


def wandb_table(formats: Sequence[Format]) -> Documents:
    """Return the format of a wandb table file whose rows each have one of `formats`."""

    def read(document: Document, origin: Origin) -> Iterable[Item]:
        columns = [str(c) for c in document["columns"]]
        rows: list[Document] = [dict(zip(columns, v, strict=False)) for v in document["data"] if isinstance(v, list)]
        yield from table_rows(rows, formats, origin)

    return Documents("wandb table", read, lists=("columns", "data"))


def table_rows(rows: list[Document], formats: Iterable[Format], origin: Origin) -> Iterable[Item]:
    """Yield the rollouts of a table's rows, each read by the first format that recognises it.

    A table may be logged twice, at the last step and at the end of training. Ids derived from its content identify the
    duplicate.
    """
    digest = hashlib.blake2b(json.dumps(rows, default=str).encode(), digest_size=6).hexdigest()
    for n, row in enumerate(rows, 1):
        for part in _verl_samples(row) or (row,):
            found = next(((f, r) for r in (part, _lower(part)) for f in formats if f.detect(r, origin)), None)
            for item in found[0].open(found[1], origin) if found is not None else ():
                if isinstance(item, Rollout) and not item.id and part is row:
                    item = replace(item, id=f"{digest}-{n}", same_as_id=True)
                yield item


def renamed(inner: Format) -> Documents:
    """Return the format `inner` with display names (`Total Reward`) or `camelCase` in place of its keys."""
    return Documents(
        inner.name,
        lambda document, origin: inner.open(_lower(document), origin),
        when=lambda document, origin: inner.detect(_lower(document), origin),
        unknown=inner.unknown,
    )


def _lower(row: Document) -> dict[str, Any]:
    """Convert names of columns (`Total Reward`, `totalReward`) into names as in code (`total_reward`)."""
    names = {_CAMEL.sub("_", name.strip()).lower().replace(" ", "_"): value for name, value in row.items()}
    return CsvRow(names) if isinstance(row, CsvRow) else names


_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
LOOSE: tuple[Format, ...] = (BATCHES, GROUPS, PAIRS, RESPONSES, TOKEN_IDS, GENERIC, renamed(GENERIC), CONVERSATIONS)
"""Formats of any writer, in the order in which they are tried."""


def _verl_samples(row: Document) -> list[dict[str, object]]:
    """Return the samples of a verl row, which holds `input_1, output_1, score_1, input_2, …` per validation."""
    shared = {k: v for k, v in row.items() if k == "step"}
    numbers = takewhile(lambda n: f"input_{n}" in row and f"output_{n}" in row, count(1))
    return [{k: row.get(f"{k}_{n}") for k in ("input", "output", "score")} | shared for n in numbers]


_AT_STEP = re.compile(r"(?i)(?:(?:global_|training_)?step[ _-]?)?(\d{1,12})")
_ROLLOUTS = ("rollouts", "trajectories", "episodes")
_LISTS = (
    *_ROLLOUTS, "samples", "data", "results", "examples", "records", "items", "rows", "events", "runs", "test_cases",
    "testCases", "steps", "groups", "batches", "completions", "responses",
)  # fmt: skip
"""Keys that may hold a list of rollouts."""
_SHARED = frozenset(
    k for role in ("group", "prompt_id", "step", "prompt", "expected", "env", "model", "split", "policy_version")
    for k in GENERIC.keys[role] if "." not in k
)  # fmt: skip
"""Keys next to such a list whose values apply to each of its rollouts."""


def wrapped(formats: tuple[Format, ...]) -> Documents:
    """Return the format of rollouts in a list inside a document (`{"rollouts": [{…}, …], "step": 3}`) or on a line, or
    in an object by id, step or position (`{"17": {…}, "18": {…}}`).

    The first of `formats` that recognises an item reads it. A list of messages is one rollout. An empty list of
    rollouts is also recognised.
    """

    def items(document: object, origin: Origin, depth: int = 0) -> Iterator[tuple[Format, Document]]:
        if isinstance(document, Mapping):
            rows: Any = next((v for k in _LISTS if isinstance(v := document.get(k), list | Mapping)), [])
            shared = {k: v for k, v in document.items() if k in _SHARED and v is not None}
            if not rows and document and all(isinstance(v, list | Mapping) for v in document.values()):
                rows = document
            rows = list(_named(rows)) if isinstance(rows, Mapping) else rows
        else:
            rows, shared = document if isinstance(document, list) else [], {}
            if rows and all(isinstance(r, Mapping) and ("role" in r or "from" in r) for r in rows):
                rows = [{"messages": rows}]
        for row in rows:
            if isinstance(row, Mapping):
                row = {**shared, **(inner if isinstance(inner := row.get("row"), Mapping) else row)}
                if GENERIC.first(shared, "prompt") is not None and "completion" not in row and "text" in row:
                    row["completion"] = row.pop("text")
                if (reader := next((f for f in formats if f.detect(row, origin)), None)) is not None:
                    yield reader, row
                elif depth < 2:
                    yield from items(row, origin, depth + 1)

    def known(document: object, origin: Origin) -> bool:
        if isinstance(document, Mapping) and any(document.get(k) == [] for k in _ROLLOUTS):
            return True
        return next((True for _ in items(document, origin)), False)

    def read(document: object, origin: Origin) -> Iterable[Item]:
        for reader, row in items(document, origin):
            yield from reader.open(row, origin)

    return Documents("rollouts in a list", read, when=known, unknown=GENERIC.unknown, of_lists=True)


def _named(rows: Document) -> Iterator[Document]:
    """Yield the rollouts of an object by id, step or position. A name with a list of rollouts is their step."""
    for name, row in rows.items():
        step = _AT_STEP.fullmatch(name)
        if isinstance(row, list):
            yield {"rows": row, **({"step": int(step[1])} if step else {})}
        elif isinstance(row, Mapping):
            yield {
                **({} if step else {"id": name}),
                **({"step": int(step[1])} if step and step[0] != step[1] else {}),
                **row,
            }


def zipped(inner: Format) -> Documents:
    """Return the format of zip members that have the format `inner`, such as a wandb artifact of agentlightning.

    Names inside the zip count as folder and file names.
    """
    return Documents(
        f"{inner.name} in a zip",
        lambda document, origin: inner.open(document["document"], _member(document, origin)),
        keys=("member", "document"),
        when=lambda document, origin: (
            len(document) == 2 and inner.detect(document["document"], _member(document, origin))
        ),
        unknown=inner.unknown,
    )


def _member(document: Document, origin: Origin) -> Origin:
    inside = [part for part in str(document["member"]).split("/") if part not in ("", ".", "..")]
    return Origin(origin.path.joinpath(*inside), origin.root)  # never a path outside the zip


def _is_metrics(document: Document, origin: Origin) -> bool:
    """Return whether a document has a step, mostly numbers otherwise, and no lists or objects."""
    document = _unwrapped(document)
    if not 0 < len(document) <= 4096:  # more are a tokenizer's vocabulary, which contains the word `step`
        return False
    if _step(document) is None and (origin.step is None or not all("/" in k for k in document)):
        return False  # the folder's step applies only to names such as `eval/all/score`
    return all(not isinstance(v, (list, Mapping)) for v in document.values()) and (
        sum(number(v) is not None for v in document.values()) * 2 > len(document)
    )


def _unwrapped(document: Document) -> Document:
    """Return the metrics of a line of verl's file logger (`{"step": 3, "data": {…}}`) next to their step."""
    data = document.get("data") if document.keys() == {"step", "data"} else None
    return {**data, "step": document["step"]} if isinstance(data, Mapping) else document


def _metrics(document: Document, origin: Origin) -> Iterable[Item]:
    document = _unwrapped(document)
    step = _step(document)
    step = origin.step if step is None else step
    assert step is not None
    yield Numbers(step, _scalars({str(k): v for k, v in document.items() if k not in _NO_METRIC}))


def _scalars(values: Document) -> dict[str, float]:
    """Return the numbers by metric name. Charts exported from wandb have columns `run - metric`."""
    runs = {name.rpartition(" - ")[0] for name in values}
    cut = f"{runs.pop()} - " if len(runs) == 1 else ""
    kept = {k: n for k, v in values.items() if not k.endswith(_BOUNDS) and (n := number(v)) is not None}
    return {metric_name(name.removeprefix(cut)): n for name, n in kept.items()}


def _logged(document: Document, origin: Origin) -> Iterable[Item]:
    """Read the scalars of a TensorBoard event file or of an offline wandb run."""
    values = document.get("tensorboard") or document["wandb"]
    step = _step(values)
    step = document["step"] if step is None else step
    if step is not None:
        yield Numbers(step, _scalars({k: v for k, v in values.items() if k not in _NO_METRIC}))


TENSORBOARD = Documents("TensorBoard events", _logged, keys=("tensorboard", "step"))
WANDB_LOG = Documents("wandb log", _logged, keys=("wandb", "step"))
METRICS = Documents("metrics", _metrics, when=_is_metrics)
"""Metrics of the run, one step per document."""
_STEPS = (
    "train/global_step", "trainer/global_step", "step", "training_step", "global_step", "iteration", "_step", "Step",
)  # fmt: skip
_NO_METRIC = (*_STEPS, "time", "timestamp", "_timestamp", "_runtime")
_BOUNDS = ("__MIN", "__MAX")
"""Suffixes of columns that hold the range of a point."""


def _step(document: Document) -> int | None:
    return next((found for key in _STEPS if (found := whole(document.get(key))) is not None), None)


def _completions(document: Document) -> int | None:
    """Return the length of a document's list of completions, or None if it has no such list."""
    for key in _COMPLETIONS:
        value = at(document, key)
        if not isinstance(value, list) or (not value and key not in _PLURAL):
            continue
        only_texts = all(isinstance(v, str) or v is None for v in value)
        if only_texts or all(isinstance(v, list) and all(isinstance(m, Mapping) for m in v) for v in value):
            return len(value)
    return None


def _is_column(value: object, size: int) -> bool:
    if not isinstance(value, list) or len(value) != size:
        return False
    return all(isinstance(v, str) for v in value) or all(isinstance(v, list) for v in value)


def _is_numbers(value: object, size: int) -> bool:
    """Return whether a value is a list of `size` numbers. Null and the text "NaN" count as unknown numbers."""
    if not isinstance(value, list) or len(value) != size:
        return False
    known = [v for v in value if v is not None]
    return bool(known) and all(v == "NaN" or (isinstance(v, (int, float)) and not isinstance(v, bool)) for v in known)


def _singular(name: str) -> str:
    if name in ("samples", "candidates"):
        return "completion"
    return name[:-1] if name.endswith("s") and name[:-1] in _SINGULARS else name
