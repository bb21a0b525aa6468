"""Check values that an environment author's code returned, so that a fault affects only its own rollout.

Values that pass can be recorded and trained on. Others raise TypeError or ValueError, in the author's terms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import UnionType
from typing import TypeVar

import numpy as np

from .base import Picture, StepResult, Verdict
from .calls import ToolCall
from .guard import describe
from .trajectory import DISPLAYS, Call, Display, Overlay, StepContext

T = TypeVar("T")
LONGEST = 2_000_000
"""Maximum characters of a prompt or an observation. More would fill any context, and the record."""


def checked_call(call: ToolCall) -> ToolCall:
    """Return `call` if it is a valid ToolCall from `parse`."""
    _expect(call, ToolCall, "parse returned {}, not a ToolCall")
    _expect(call.name, str | None, "parse returned {} as the name of a call, not text")
    _expect(call.thought, str, "parse returned {} as the thought, not text")
    if not isinstance(call.arguments, Mapping) or not all(isinstance(k, str) for k in call.arguments):
        raise TypeError("parse returned arguments that are not a mapping from names")
    return call


def checked_context(context: StepContext) -> StepContext:
    """Return `context` if it is a valid StepContext."""
    _expect(context, StepContext, "context returned {}, not a StepContext")
    _expect(context.modality, str, "the context's modality is {}, not text")
    _expect(context.facts, Mapping, "the context's facts are {}, not a mapping")
    _check_ids(context.resources, "the context's resources")
    return context


def checked_pictures(pictures: object) -> tuple[Picture, ...]:
    """Return `pictures` as a tuple if every item is a Picture."""
    return _all(pictures, Picture, "pictures")


def checked_result(result: StepResult) -> StepResult:
    """Return `result`, with plain Python numbers and texts of limited length, if it is a valid StepResult."""
    _expect(result, StepResult, "step returned {}, not a StepResult")
    _expect(result.observation, str, "the observation is {}, not text")
    _expect(result.answer, str | None, "the answer is {}, not text")
    _expect(result.error, str | None, "the error is {}, not text")
    _expect(result.done, bool | np.bool_, "done is {}, not a bool")
    _expect(result.correct, bool | np.bool_ | None, "correct is {}, not a bool")
    _expect(result.mask, Picture | None, "mask is {}, not a Picture")
    _expect(result.on_image, Picture | None, "on_image is {}, not a Picture")
    _expect(result.overlay, Overlay | None, "overlay is {}, not an Overlay")
    if isinstance(result.reward, bool) or not isinstance(result.reward, (int, float, np.number)):
        raise TypeError(f"the reward is {describe(result.reward)}, not a number")
    if not math.isfinite(float(result.reward)):
        raise ValueError(f"the reward is {result.reward}")
    _check_ids(result.produced, "produced")
    checked_pictures(result.images)
    _all(result.calls, Call, "calls")
    if any(d.kind not in DISPLAYS or not isinstance(d.content, str) for d in _all(result.display, Display, "display")):
        raise TypeError(f"display must contain text of a kind among {', '.join(DISPLAYS)}")
    result = shortened(result)
    if type(result.reward) is float and type(result.done) is bool and type(result.correct) in (bool, type(None)):
        return result
    return replace(
        result,
        reward=float(result.reward),
        done=bool(result.done),
        correct=None if result.correct is None else bool(result.correct),
    )


def shortened(result: StepResult, limit: int = LONGEST) -> StepResult:
    """Cut the observation and the error to `limit` characters each."""
    length, error = len(result.observation), result.error or ""
    if max(length, len(error)) <= limit:
        return result
    observation = result.observation if length <= limit else f"{result.observation[:limit]} … ({length} characters)"
    return replace(result, observation=observation, error=error[:limit] or None)


def checked_verdicts(verdicts: object, n: int) -> list[Verdict | None]:
    """Return `verdicts` as a list if they are `n` valid ones."""
    if not isinstance(verdicts, (list, tuple)) or len(verdicts) != n:
        raise TypeError(f"finish returned {describe(verdicts)}, not a list of {n} verdicts")
    return [None if verdict is None else _checked_verdict(verdict) for verdict in verdicts]


def _checked_verdict(verdict: Verdict) -> Verdict:
    """Return the verdict. A wrong value in it fails only its own rollout."""
    _expect(verdict, Verdict, "finish returned {} among its verdicts")
    if not isinstance(verdict.correct, bool | np.bool_ | None):
        return Verdict(error=f"finish returned {describe(verdict.correct)} as correct, not a bool")
    for score in verdict.scores:
        if score.value is not None and not math.isfinite(score.value):
            return Verdict(error=f"finish returned {score.value} as the score {score.name}")
    return verdict


def _check_ids(resources: object, what: str) -> None:
    if not isinstance(resources, Mapping) or not all(isinstance(ids, (tuple, list)) for ids in resources.values()):
        raise TypeError(f'{what} must map a kind to ids, such as {{"mask": ("1",)}}')


def _all(values: object, kind: type[T], name: str) -> tuple[T, ...]:
    if not isinstance(values, (tuple, list)) or not all(isinstance(value, kind) for value in values):
        raise TypeError(f"{name} must be a tuple of {kind.__name__}")
    return tuple(values)


def _expect(value: object, kind: type | UnionType, problem: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(problem.format(describe(value)))
