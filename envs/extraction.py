"""Extract the answer from a text, so that votes and feedback compare answers instead of wordings.

Voting over extracted answers follows TTRL (Zuo et al., arXiv 2504.16084).
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from decimal import Context, Decimal, InvalidOperation
from functools import cache
from importlib.util import find_spec
from typing import cast

from ..configs.errors import GrpoTuiError
from .guard import guarded
from .user_code import find_object

log = logging.getLogger(__name__)

Extractor = Callable[[str], str | None]
"""Maps a text to its normalised answer, or None if it has none."""

ENVIRONMENT = "environment"
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:,\d{3})+(?:\.\d+)?|(?<![\w.])[-+]?\d+(?:\.\d+)?|(?<!\w)[-+]?\.\d+")
_CHOICE = re.compile(
    r"(?:answer|option|choice)(?:\s+is)?[\s:*(]*([A-J])\b|^[^\w\n]*([A-J])(?:[).:]|[^\w\n]*$)", re.M | re.I
)
_MINUS = str.maketrans("\u2212", "-")
_FUNCTION = re.compile(r"[^:]+\.py:\w+|[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


class AnswerFormError(GrpoTuiError, ValueError):
    """An answer form cannot be used. The message gives the reason."""


def make_extractor(form: str) -> Extractor | None:
    """Return the extractor for a form (`online.answer`), or None for the environment's own. Raises AnswerFormError."""
    known: dict[str, Extractor] = {"boxed": boxed, "last_number": last_number, "choice": choice}
    if form == ENVIRONMENT:
        return None
    if form in known:
        return known[form]
    if form.startswith("json:"):
        return lambda text: json_value(text, form.removeprefix("json:"))
    if _FUNCTION.fullmatch(form):
        return _users(form)
    try:
        pattern = re.compile(form, re.I | re.S)
    except re.error as error:
        raise AnswerFormError(f"the answer format {form!r} is not a regular expression: {error}") from error
    return lambda text: _matched(pattern, text)


def normal(text: str) -> str | None:
    """Normalise equal numbers, and texts that differ in case, white space or a final period, to one form."""
    plain = " ".join(text.translate(_MINUS).split()).strip("$*` ").rstrip(".").casefold()
    try:
        number = Decimal(plain.replace(",", "") if _NUMBER.fullmatch(plain) else plain)
        if number.is_finite() and abs(number.adjusted()) < 50:
            return f"{number.normalize(Context(prec=len(plain))):f}" if number else "0"
    except InvalidOperation:
        pass
    return plain or None


def boxed(text: str) -> str | None:
    r"""Extract the last `\boxed{…}`. Its braces may be nested."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed{")
    for end in range(begin - 1, len(text)):
        depth += (text[end] == "{") - (text[end] == "}")
        if depth == 0:
            return mathematical(text[begin:end])
    return None


def mathematical(text: str) -> str | None:
    r"""Normalise a formula. With math-verify, `\frac{1}{2}` equals `0.5`."""
    plain = normal(text)
    if plain is None or len(text) > 100 or not any(sign in text for sign in "\\^/") or find_spec("math_verify") is None:
        return plain
    from math_verify import parse

    try:
        if threading.current_thread() is threading.main_thread():
            found = parse(f"${text}$", parsing_timeout=1)
        else:  # its timeout needs signals, which only the main thread gets
            found = guarded(lambda t: parse(t, parsing_timeout=cast(int, None)), f"${text}$", 1.0).value or []
    except Exception:  # math-verify's parser and its timeout raise many types
        return plain
    value = next((v for v in found if not isinstance(v, str)), None)
    if value is None:
        return plain
    if getattr(value, "is_Rational", False):
        return normal(str(Decimal(int(value.p)) / Decimal(int(value.q))))
    return str(value).casefold()


def last_number(text: str) -> str | None:
    """Extract the last number in a text."""
    found = _NUMBER.findall(text.translate(_MINUS))
    return normal(found[-1]) if found else None


def choice(text: str) -> str | None:
    """Extract the last letter from A to J that is marked as the choice: `Answer: B`, `(b)`, `B.`"""
    found = _CHOICE.findall(text)
    return (found[-1][0] or found[-1][1]).casefold() if found else None


def json_value(text: str, path: str) -> str | None:
    """Extract the value at `path` (keys and indices, separated by dots) from the last JSON object or list."""
    for value in _json_values(text):
        for key in filter(None, path.split(".")):
            if isinstance(value, list) and key.isdigit() and int(key) < len(value):
                value = value[int(key)]
            else:
                value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            return normal(value if isinstance(value, str) else json.dumps(value, sort_keys=True))
    return None


def _json_values(text: str) -> Iterator[object]:
    """Yield the outermost JSON objects and lists in a text, last first."""
    decoder, found, position = json.JSONDecoder(), [], 0
    while (begin := re.compile(r"[{\[]").search(text, position)) is not None:
        try:
            value, position = decoder.raw_decode(text, begin.start())
            found.append(value)
        except (ValueError, RecursionError):
            position = begin.end()
    return reversed(found)


def _matched(pattern: re.Pattern[str], text: str) -> str | None:
    """Return the first matched group of the last match, or the whole match."""
    found = list(pattern.finditer(text))
    if not found:
        return None
    return normal(next((g for g in found[-1].groups() if g is not None), found[-1][0]))


def _users(path: str) -> Extractor:
    _, function = find_object(path)
    if not callable(function):
        raise AnswerFormError(f"the answer extractor {path} is not a function")

    @cache
    def report(problem: str) -> None:
        log.warning("%s failed (%s). A text on which it fails has no answer.", path, problem)

    def extract(text: str) -> str | None:
        try:
            value = function(text)
            return None if value is None else normal(str(value))
        except (Exception, SystemExit) as error:  # the user's code, such as `text.split("####")[1]`
            return report(type(error).__name__)

    return extract
