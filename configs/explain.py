"""pydantic's errors as sentences: the key, the value, a correct value, and the nearest valid key."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from .errors import ConfigError, Problem
from .expectations import describe, field_at, section_of, walk
from .trl_fields import OURS, PASSED
from .yaml_source import Path, Source

ELSEWHERE = OURS | {
    "lr": "training.learning_rate",
    "lr_scheduler": "lr_scheduler_type, in training.trl or sft.trl",
    "max_new_tokens": "training.max_turn_tokens",
    "max_length": "training.max_trajectory_tokens",
    "model_name_or_path": "model.base",
    "torch_dtype": "model.weights, model.compute and model.sampling",
    "dtype": "model.weights, model.compute and model.sampling",
    "lora_r": "model.lora.r",
    "rank": "model.lora.r",
    "lora_alpha": "model.lora.alpha",
    "components": "rewards.w_curiosity, rewards.w_coherence and rewards.w_penalty, where 0 switches a component off",
}
"""What TRL and transformers call settings that have another name here."""
_MAX_SHOWN = 60
_NOTHING = object()
Checked = TypeVar("Checked", bound=BaseModel)


def checked(schema: type[Checked], source: Source) -> Checked:
    """Return the data of a source as a section. Strict: `"3"` is not a number. Raises `ConfigError` with all faults."""
    try:
        return schema.model_validate_json(json.dumps(source.data), strict=True)
    except ValidationError as error:
        raise ConfigError(explain(error.errors(include_url=False), schema, source)) from None


def explain(errors: Sequence[ErrorDetails], schema: type[BaseModel], source: Source) -> list[Problem]:
    """Return one `Problem` for each wrong key, in the order of their lines."""
    problems: dict[Path, Problem] = {}
    for error in errors:
        path = _schema_path(error["loc"], schema, source.data)
        if path not in problems:
            problems[path] = _problem(error, path, schema, source)
    order = {path: i for i, path in enumerate(source.places)}
    return [problems[path] for path in sorted(problems, key=lambda p: order.get(p, len(order)))]


def _schema_path(loc: Sequence[str | int], schema: type[BaseModel], data: object) -> Path:
    """Return the part of pydantic's `loc` that a person wrote, without the names of union members at its end."""
    path: list[str | int] = []
    node = data
    for part in loc:
        inner = _inside(node, part)
        if inner is _NOTHING and field_at(schema, (*path, part)) is None:
            break
        node = None if inner is _NOTHING else inner
        path.append(part)
    return tuple(path)


def _inside(node: object, part: str | int) -> object:
    if isinstance(node, dict) and part in node:
        return node[part]
    if isinstance(node, list) and isinstance(part, int) and part < len(node):
        return node[part]
    return _NOTHING


def _problem(error: Mapping[str, object], path: Path, schema: type[BaseModel], source: Source) -> Problem:
    key = ".".join(str(p) for p in path)
    place = source.place(path)
    kind = error["type"]
    if kind == "extra_forbidden":
        return Problem(key, "there is no such key", _nearest_key(path, schema), place)
    if kind == "value_error":
        return Problem(key, str(error["msg"]).removeprefix("Value error, "), "", place)
    field = field_at(schema, path)
    shown = _shown(error.get("input"))
    if kind == "missing":
        return Problem(key, "this key is missing", f"give {describe(field)}" if field else "", place)
    if field is None:  # inside a free dictionary or a list
        return Problem(key, f"{shown}: {str(error['msg'])[:1].lower()}{str(error['msg'])[1:]}", "", place)
    if section_of(field.annotation) is not None and not isinstance(error.get("input"), Mapping):
        names = ", ".join(section_of(field.annotation).model_fields)  # type: ignore[union-attr]
        return Problem(key, f"{shown} is not a section", f"write its keys indented below it: {names}", place)
    right = f"must be {describe(field)}"
    near = difflib.get_close_matches(str(error.get("input")), _choices(field.annotation), n=1)
    if near:
        right += f" (nearest: {near[0]})"
    if not field.is_required() and not callable(field.default_factory):
        right += f"; default: {_shown(field.default)}"
    return Problem(key, f"{shown} is not allowed", right, place)


def _choices(annotation: object) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(v) for v in get_args(annotation)]
    return [c for a in get_args(annotation) for c in _choices(a)]


def _nearest_key(path: Path, schema: type[BaseModel]) -> str:
    """Suggest a key: the name of another library's key here, the nearest key of the section, the nearest anywhere,
    or all keys of the section. Only similar keys are suggested."""
    wrong, parent = str(path[-1]), path[:-1]
    parent_field = field_at(schema, parent)
    section = section_of(parent_field.annotation) if parent_field else schema
    siblings = list(section.model_fields) if section else []
    if wrong.lower() in ELSEWHERE:
        return f"here it is called {ELSEWHERE[wrong.lower()]}"
    if wrong in PASSED and section is not None and "trl" in section.model_fields:
        return f"write it as {'.'.join(map(str, parent))}.trl.{wrong}, which is passed to TRL"
    near = difflib.get_close_matches(wrong, siblings, n=1, cutoff=0.7)
    if near:
        return "nearest valid key: " + ".".join(str(p) for p in (*parent, near[0]))
    everywhere: dict[str, list[str]] = {}
    for known, _ in walk(schema):
        everywhere.setdefault(known[-1], []).append(".".join(known))
    matches = difflib.get_close_matches(wrong, list(everywhere), n=1, cutoff=0.7)
    if matches:
        return "nearest valid key: " + " or ".join(everywhere[matches[0]])
    where = f"`{'.'.join(str(p) for p in parent)}`" if parent else "the top level"
    return f"keys of {where}: {', '.join(siblings)}"


def _shown(value: object) -> str:
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 1] + "…"
