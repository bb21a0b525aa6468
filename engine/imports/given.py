"""Check the rollouts passed to a recorder: mappings or objects, with numbers of any type.

The checks run inside the recorder's call, so a wrong value raises there. The error names the key.
"""

from __future__ import annotations

import difflib
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from .formats.tables import COMPLETION_IDS, GENERIC, PROMPT_IDS
from .messages import completion, conversation
from .rollout import Message, Rollout, Score
from .values import Document, number

_NUMBERS = {
    key
    for role in ("reward", "advantage", "seconds", "token_count", "index", "policy_version")
    for key in GENERIC.keys.get(role, ())
}
"""Keys with numeric values."""
_TOTALS = ("reward", "score", "total_reward", "return")
"""Those with one number for the whole rollout."""
_KNOWN = {key.partition(".")[0] for keys in GENERIC.keys.values() for key in keys} | {
    *GENERIC.keys, *PROMPT_IDS, *COMPLETION_IDS,
}  # fmt: skip


def step_of(step: Any) -> int:
    """Return a training step as an integer. Raises TypeError for anything else."""
    try:
        found = operator.index(step) if hasattr(step, "__index__") else _integer("step", step)
        if not 0 <= found < 2**62:
            raise TypeError
        return found
    except TypeError:
        raise TypeError(f"step={step!r} is not a training step; expected a whole number such as 1") from None


def checked(rollout: object) -> Rollout | Document:
    """Return a rollout with plain numbers and messages. Raises a TypeError that names the key of a wrong value."""
    if isinstance(rollout, Rollout):
        return _of_object(rollout)
    if not isinstance(rollout, Mapping):
        right = "expected a mapping such as {'prompt': …, 'completion': …}, or a Rollout"
        raise TypeError(f"{_short(rollout)} is not a rollout; {right}")
    return {key: _checked(key, value) for key, value in zip(map(str, rollout), rollout.values(), strict=True)}


def _checked(key: str, value: object) -> object:
    if key in ("completions", "responses") and isinstance(value, list | tuple):
        raise TypeError(f"{key}={_short(value)}: expected one mapping for each rollout, with its {key[:-1]!r}")
    components = key in GENERIC.keys["components"]
    if key in _NUMBERS or (components and isinstance(value, Mapping)):
        found = _numbers(key, value)
        if key in _TOTALS and isinstance(found, list) and len(found) != 1:
            raise TypeError(f"{key}={_short(value)} is not a number; expected the number of this rollout")
        return found
    plain = _plain(value)
    if components and isinstance(plain, list) and not all(isinstance(each, Mapping) for each in plain):
        raise TypeError(f"{key}={_short(value)} has no names; expected a mapping such as {{'accuracy': 1.0}}")
    return plain


def misspelt(rollout: Document) -> dict[str, str]:
    """Return the keys that would become columns but resemble a known key, each with that known key."""
    unknown = [key for key in rollout if key not in _KNOWN and not key.startswith(GENERIC.prefixes)]
    near = {key: difflib.get_close_matches(key, _KNOWN - rollout.keys(), 1, 0.8) for key in unknown}
    return {key: found[0] for key, found in near.items() if found}


def _of_object(rollout: Rollout) -> Rollout:
    scores = {name: s if isinstance(s, Score) else Score(s) for name, s in rollout.components.items()}
    integers = {name: getattr(rollout, name) for name in ("token_count", "index", "policy_version")}
    return replace(
        rollout,
        prompt=_messages(rollout.prompt, conversation),
        completion=_messages(rollout.completion, completion),
        reward=_number("reward", rollout.reward),
        advantage=_number("advantage", rollout.advantage),
        step=None if rollout.step is None else step_of(rollout.step),
        seconds=_number("seconds", rollout.seconds) or 0.0,
        components={
            name: Score(_number(f"components[{name!r}]", s.value), _number(f"weight of {name!r}", s.weight))
            for name, s in scores.items()
        },
        extra={name: _plain(value) for name, value in rollout.extra.items()},
        **{name: None if value is None else _integer(name, value) for name, value in integers.items()},
    )


def _messages(messages: tuple[Message, ...], read: Callable[[object], tuple[Message, ...]]) -> tuple[Message, ...]:
    if any(not isinstance(m, Message) for m in messages):
        return read(messages)
    return tuple(
        replace(m, reward=_number("reward of a message", m.reward), advantage=_number("advantage", m.advantage))
        for m in messages
    )


def _numbers(key: str, value: Any) -> object:
    """Convert a number, or one number per component, token or turn."""
    if isinstance(value, Mapping):
        return {str(name): _numbers(f"{key}[{name!r}]", each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_number(key, each) for each in value]
    if getattr(value, "shape", ()) and hasattr(value, "tolist"):
        return value.tolist()
    return _number(key, value)


def _number(key: str, value: Any) -> float | None:
    """Convert anything that `float()` accepts. None stays None. Raises TypeError for anything else."""
    if value is None or type(value) is float:
        return value
    if isinstance(value, int):
        return number(value)
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a tensor of several elements
        raise TypeError(f"{key}={_short(value)} is not a number; expected a number or None") from error


def _integer(key: str, value: object) -> int:
    found = None if isinstance(value, str) else _number(key, value)
    if found is None or not found.is_integer():
        raise TypeError(f"{key}={_short(value)} is not a whole number")
    return int(found)


def _plain(value: Any) -> object:
    """Convert the value of a column. Numbers of numpy, torch and `decimal` become plain numbers."""
    if value is None or isinstance(value, (str, bool, int, float, bytes, Mapping, list, tuple)):
        return value
    if hasattr(value, "tolist"):  # keeps integers and booleans distinct
        return value.tolist()
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) < 60 else f"{shown[:57]}…"
