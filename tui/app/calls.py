"""A tool call for display: the main argument in one line, the others as texts, and the outcome.

Arguments may hold megabytes, so only the visible part is written out. Agents write thoughts in a field, in tags or in a
channel. `said` finds all of them.
"""

from __future__ import annotations

import difflib
import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from ...engine.runs.types import Call, Step, Trajectory
from ..format import count
from ..text import FIELD_LIMIT, width
from .kinds import by_path

_TAGS = re.compile(r"<(think|thinking|thought|reasoning)>(.*?)(?:</\1>|\Z)", re.S)
_CHANNEL = re.compile(
    r"(?:<\|start\|>\w*)?<\|channel\|>(\w*+)[^<]*+<\|message\|>(.*?)(?:<\|(?:end|return|call)\|>|(?=<\|start\|>)|\Z)",
    re.S,
)
_WRITTEN = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.S)
_BLOCK = re.compile(r"```[^\n`]*\n(?P<fenced>.*?)```|<(execute\w*|bash|code|command)>(?P<tagged>.*?)</\2>", re.S)


def said(step: Step) -> tuple[str, str]:
    """Return thought and text of a step, without calls. Thoughts come from a field, tags or a channel. A thought that
    the text repeats is left out."""
    thoughts = [step.thought] if step.thought else []
    words = "" if step.action is not None and not step.calls and not step.is_text else step.text
    if step.thought and "<think" in step.thought:
        thoughts = [found[2] for found in _TAGS.finditer(step.thought)] or thoughts
    if "<|channel|>" in words and (found := _CHANNEL.findall(words)):
        thoughts += [text for channel, text in found if channel == "analysis"]
        words = "\n\n".join(text for channel, text in found if channel != "analysis")
    if "</think" in words or "<think" in words or "<reasoning>" in words or "<thought>" in words:
        before, end, after = words.partition("</think>")
        if end and "<think>" not in before:  # the prompt ended with <think>
            thoughts, words = [*thoughts, before], after
        thoughts += [found[2] for found in _TAGS.finditer(words)]
        words = _TAGS.sub("", words)
    if step.calls:
        words = _WRITTEN.sub("", words)
        words = _BLOCK.sub(lambda block: "" if _is_argument(block, step.calls) else block[0], words)
        if words == "\n".join(written(call) for call in step.calls):
            words = ""
    distinct = dict.fromkeys(text.strip() for text in thoughts)
    return "\n\n".join(text for text in distinct if text not in words), words.strip("\n")


def _is_argument(block: re.Match[str], calls: Sequence[Call]) -> bool:
    """Return whether a block of text is a command or code that a call shows as well."""
    text = (block["fenced"] or block["tagged"] or "").strip()
    given = [call.arguments for call in calls if isinstance(call.arguments, Mapping)]
    return any(isinstance(v, str) and v.strip() == text for arguments in given for v in arguments.values())


def written(call: Call) -> str:
    """Return a call in the importers' notation, for agents that wrote no text."""
    from ...engine.imports.convert import call_text

    return call_text(call)


_COMMAND = ("command", "cmd", "bash_command", "shell_command", "keystrokes", "script", "commands")
_CODE = ("code", "python_code", "source_code", "cell_source")
_PATH = ("path", "file_path", "file", "filename", "filepath", "target_file", "notebook_path", "file_name")
_URL = ("url", "uri", "endpoint")
_ASKED = ("query", "pattern", "question", "q", "search", "regex", "expression", "name", "task", "prompt", "action")
_CONTENT = ("content", "file_text", "contents", "new_content", "text", "body", "message", "thought")
_CHANGES = (
    ("old_str", "new_str"), ("old_string", "new_string"), ("old_text", "new_text"), ("search", "replace"),
    ("old", "new"), ("before", "after"),
)  # fmt: skip
_PATCH = ("patch", "diff", "input")
_VERBS = {
    "str_replace_editor": "edit", "str_replace_based_edit_tool": "edit", "str_replace": "edit", "text_editor": "edit",
    "edit_file": "edit", "apply_patch": "edit", "create_file": "write", "write_file": "write",
}  # fmt: skip
_VALUE = 24
"""Maximum number of characters of an argument in a heading."""
_JSON: dict[object, str] = {True: "true", False: "false", None: "null"}
_SHORT = 120
"""Longest one-line value, in characters, that goes in the call's line."""

_EXIT = re.compile(
    r"(?:exit(?:ed)?[ _-]?(?:code|status)|return[ _-]?code|exited with(?: code)?|exit status)\W{1,4}?(-?\d{1,4})", re.I
)
_ERROR = re.compile(r"\A\s*(?:<error>|\[?error\b|\w*(?:Error|Exception): |fatal: |command not found)", re.I)
_FIELD = re.compile(
    r'"(?:is_?error|isError)"\s*:\s*true|"(?:success|ok)"\s*:\s*false|"error"\s*:\s*(?:"[^"]|\{\s*"|true|[1-9])', re.I
)
_FINE = re.compile(r'"(?:success|ok)"\s*:\s*true|"error"\s*:\s*null', re.I)
_TIMEOUT = re.compile(
    r"timed[ -]?out (?:after|waiting)|TimeoutE(?:rror|xpired)|\btimeout expired|command timed out", re.I
)
_TESTS = re.compile(r"(?<!\d)[1-9]\d* failed\b|\bFAILED \(|^test result: FAILED", re.M)
_ELEMENTS = re.compile(
    r"\s*<returncode>-?\d+</returncode>\s*<output>\n?(?P<output>(?:(?!</output>).)*?)\n?</output>\s*", re.S
)
_LOOK = 1_500
"""Characters at both ends of a result that are searched for signs of a failure."""


@dataclass(frozen=True)
class CallArgument:
    """A part of a call with its own text block: name, text and kind (see `kinds.py`)."""

    name: str
    text: str
    kind: str = ""


@dataclass(frozen=True)
class Shown:
    """A call for display. `head` is its verb, `text` the main argument of `kind`."""

    head: str
    text: str = ""
    kind: str = "plain"
    note: str = ""
    arguments: Sequence[CallArgument] = ()
    result_kind: str = ""

    @property
    def line(self) -> str:
        text = self.text
        if not text and not self.note:  # code: its first line, unless that is long
            block = next((a.text for a in self.arguments if not a.name), "").lstrip()
            text = block if "\n" in block[:_SHORT] or len(block) <= _SHORT else ""
        first, more, _ = text.lstrip().partition("\n")
        return " ".join(part for part in (self.head, first + " …" * bool(more), self.note) if part)

    def fitted(self, cells: int) -> str:
        """Return the line. A path or URL that is too long loses its beginning."""
        spare = width(self.line) - cells
        if spare <= 0 or "/" not in self.text or any(map(str.isspace, self.text)) or len(self.text) < spare + 8:
            return self.line
        return " ".join(part for part in (self.head, "…" + self.text[spare + 1 :], self.note) if part)


def calls_of(step: Step) -> Sequence[Call]:
    """Return the calls of a step with their results. Plain text taken as the answer is not a call."""
    if step.calls:
        return step.calls
    if step.action is None or step.is_text:
        return ()
    return (Call(step.action, step.arguments, result=step.observation or None, error=step.error),)


def shown(call: Call, root: str = "") -> Shown:
    """Prepare a call for display. Removes `root` from its paths."""
    arguments = call.arguments
    if isinstance(arguments, Mapping):
        return _shown(call.name, dict(arguments), root)
    text = arguments if isinstance(arguments, str) else "" if arguments is None else brief(arguments, as_json=True)
    return Shown(call.name, arguments=[CallArgument("", text)]) if "\n" in text else Shown(call.name, text)


def _shown(name: str, values: dict[str, Any], root: str) -> Shown:
    path = _text(values, _PATH)
    where = relative(values.get(path, "") if path else "", root)
    verb = _VERBS.get(name, name)
    word = values.get("command") if path else None
    if isinstance(word, str) and word.isidentifier():  # an editor tool with subcommands
        verb = {"str_replace": "edit", "create": "write", "insert": "insert", "view": "view"}.get(word, word)
        values = {key: value for key, value in values.items() if key != "command"}
    if changed := _changes(values):
        keys, before, after = changed
        diff = difference(before, after)
        rest = _others(values, {path, *keys})
        return Shown(verb, where, note=_counted(diff), arguments=[*rest, CallArgument("", diff, "diff")])
    patch = _text(values, _PATCH)
    if patch and re.search(r"^(?:\*\*\* |@@|\+\+\+ |diff --git )", values[patch], re.M):
        found = re.findall(r"^(?:\*\*\* \w+ File: |\+\+\+ (?:b/)?)(.+)$", values[patch], re.M)
        where = where or ", ".join(relative(f, root) for f in dict.fromkeys(found))
        arguments = [*_others(values, {path, patch}), CallArgument("", values[patch], "diff")]
        return Shown(verb, where, note=_counted(values[patch]), arguments=arguments)
    command = _text(values, _COMMAND)
    if command and not path:
        kind = by_path(values[command].rsplit(None, 1)[-1]) if values[command].startswith(("cat ", "sed -n")) else ""
        view = Shown("$", values[command].strip("\n"), "bash", arguments=_others(values, {command}), result_kind=kind)
        return _with_small(view)
    if code := _text(values, _CODE):
        language = values.get("language")
        kind = language.lower() if isinstance(language, str) else "python"
        return Shown(name, "", arguments=[*_others(values, {code, "language"}), CallArgument("", values[code], kind)])
    if path:
        content = _text(values, _CONTENT)
        rest = _others(values, {path, content})
        if content:
            lines = values[content].count("\n") + 1
            return Shown(verb, where, note=count(lines, "line"), arguments=[
                *rest, CallArgument("", values[content], by_path(values[path]))])  # fmt: skip
        return _with_small(Shown(verb, where, arguments=rest, result_kind=by_path(values[path])))
    if url := _text(values, _URL):
        method = next(
            (v.upper() for k, v in values.items() if k.lower() in ("method", "verb") and isinstance(v, str)), ""
        )
        method = method or next((m for m in ("POST", "PUT", "PATCH", "DELETE") if m.lower() in name.lower()), "GET")
        return Shown(method, re.sub(r"^https?://", "", values[url]), arguments=_others(values, {url, "method", "verb"}))
    text_key = _text(values, (*_ASKED, *_CONTENT)) if len(values) > 1 else ""
    if text_key and "\n" not in values[text_key] and any(isinstance(v, str) and "\n" in v for v in values.values()):
        return Shown(name, values[text_key], arguments=_others(values, {text_key}))
    if any(isinstance(v, str) and ("\n" in v or len(v) > _SHORT) for v in values.values()):
        return _with_small(Shown(name, arguments=_others(values, set())))
    return Shown(name + arguments_text(values))


def _with_small(call: Shown) -> Shown:
    small = [a for a in call.arguments if a.name and "\n" not in a.text and len(a.text) <= 40]
    rest = [a for a in call.arguments if a not in small]
    return replace(call, note=" ".join(f"{a.name}={a.text}" for a in small), arguments=rest)


def _text(arguments: Mapping[str, object], names: Sequence[str]) -> str:
    return next((name for name in names if isinstance(arguments.get(name), str) and arguments[name]), "")


def _others(arguments: Mapping[str, object], used: set[str]) -> list[CallArgument]:
    rest = ((key, value) for key, value in arguments.items() if key not in used)
    return [CallArgument(key, v if isinstance(v, str) else brief(v, as_json=True)) for key, v in rest]


def _changes(arguments: Mapping[str, Any]) -> tuple[set[str], str, str] | None:
    for old, new in _CHANGES:
        if isinstance(arguments.get(old), str) and isinstance(arguments.get(new), str):
            return {old, new}, arguments[old], arguments[new]
    edits = arguments.get("edits")
    if isinstance(edits, list) and edits and all(isinstance(edit, Mapping) for edit in edits):
        found = [_changes(edit) for edit in edits]
        if all(found):
            return {"edits"}, "\n".join(f[1] for f in found if f), "\n".join(f[2] for f in found if f)
    return None


@lru_cache(maxsize=512)
def difference(before: str, after: str) -> str:
    """Return a unified diff without its header."""
    a, b = before.strip("\n").split("\n"), after.strip("\n").split("\n")
    if len(a) + len(b) > 600:  # comparing so many lines takes too long
        return "\n".join([f"-{line}" for line in a] + [f"+{line}" for line in b])
    lines = list(difflib.unified_diff(a if before else [], b if after else [], lineterm="", n=3))[2:]
    return "\n".join(line for index, line in enumerate(lines) if index or not line.startswith("@@"))


def _counted(diff: str) -> str:
    lines = diff.split("\n")
    added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
    removed = sum(line.startswith("-") and not line.startswith("---") for line in lines)
    return f"+{added} −{removed}"


def relative(path: object, root: str) -> str:
    """Return a path relative to `root` if it is inside."""
    text = str(path)
    return text[len(root) + 1 :] if root and text.startswith(root + "/") else text


def root_of(trajectory: Trajectory) -> str:
    """Return the common folder of all absolute paths in the calls of a rollout, or an empty string."""
    found: set[str] = set()
    for step in trajectory.steps:
        for call in calls_of(step):
            if isinstance(call.arguments, Mapping):
                path = call.arguments.get(_text(call.arguments, _PATH))
                if isinstance(path, str) and path.startswith("/") and len(path) < 400:
                    found.add(path)
    root = posixpath.commonpath([posixpath.dirname(path) for path in found]) if found else ""
    return root if root != "/" else ""


def bare(result: str) -> str:
    """Return a result without the elements that mini-swe-agent puts around exit code and output."""
    found = _ELEMENTS.fullmatch(result)
    return result if found is None else found["output"]


def ended(call: Call) -> tuple[bool | None, str]:
    """Return whether a call worked (None if the record does not show it), and a short reason."""
    if call.problem:
        return False, "unread"
    result = call.result
    if result is None:
        return (False, "error") if call.error else (None, "")
    ends = result if len(result) <= 2 * _LOOK else f"{result[:_LOOK]}\n{result[-_LOOK:]}"
    codes = _EXIT.findall(ends) or _EXIT.findall(call.error or "")
    if codes and int(codes[-1]):
        return False, f"exit {codes[-1]}"
    if call.error:
        return False, "error"
    if codes:
        return True, ""
    if _TIMEOUT.search(ends[:_LOOK]) and len(result) < _LOOK:
        return False, "timeout"
    if _FIELD.search(ends) and not _FINE.search(ends):
        return False, "error"
    if result.rstrip().count("\n") < 400 and re.search(r"^Traceback \(most recent call last\):", ends, re.M):
        return False, "traceback"
    if _ERROR.search(ends):
        return False, "error"
    return (False, "failed") if _TESTS.search(ends) else (True, "")


def failed(step: Step) -> bool:
    """Return whether a call of the step failed or could not be read."""
    calls = calls_of(step)
    return any(ended(call)[0] is False for call in calls) or (not calls and step.label == "?")


def summary(step: Step, root: str = "") -> str:
    """Summarise a step in one line: its calls, or the first line of its text."""
    calls = calls_of(step)
    if calls:
        return " ‖ ".join(shown(call, root).line for call in calls)
    thought, words = said(step)
    lines = [line.strip() for text in (words, thought) for line in text[:2000].splitlines() if line.strip()]
    return lines[0] if lines else "? no call" if step.label == "?" else "(nothing)"


def brief(value: object, limit: int = FIELD_LIMIT, *, as_json: bool = False) -> str:
    """Format a value like `repr`, or as JSON, in at most `limit` characters. The rest is never formatted."""
    pieces: list[str] = []
    room = limit
    for piece in _pieces(value, limit, as_json):
        pieces.append(piece)
        room -= len(piece)
        if room < 0:
            break
    text = "".join(pieces)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _pieces(value: object, limit: int, as_json: bool, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield json.dumps(value[: limit + 1], ensure_ascii=False) if as_json else repr(value[: limit + 1])
    elif depth > 20:
        yield "…"
    elif isinstance(value, Mapping):
        yield "{"
        for index, (key, inner) in enumerate(value.items()):
            yield ", " if index else ""
            yield from _pieces(key, limit, as_json, depth + 1)
            yield ": "
            yield from _pieces(inner, limit, as_json, depth + 1)
        yield "}"
    elif isinstance(value, (list, tuple)):
        yield "["
        for index, inner in enumerate(value):
            yield ", " if index else ""
            yield from _pieces(inner, limit, as_json, depth + 1)
        yield "]"
    else:
        yield _JSON.get(value, repr(value)) if as_json and isinstance(value, bool | None) else repr(value)


def arguments_text(arguments: Mapping[str, object], limit: int = _VALUE) -> str:
    """Format arguments as `(mask=7)` with at most `limit` characters per value."""
    shown: list[str] = []
    room = max(400, limit)  # characters of the whole call
    for key, value in arguments.items():
        if room <= 0:
            shown.append("…")
            break
        shown.append(f"{key if len(key) <= limit else key[: limit - 1] + '…'}={brief(value, limit)}")
        room -= len(shown[-1])
    return f"({', '.join(shown)})"
