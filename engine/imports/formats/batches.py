"""Batches of an API. One file holds the requests and another the answers, in any order. An id joins them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..containers import BY_NAME, container_of
from ..containers.base import FoundDocument, cached_by_file
from ..containers.packed_lines import PackedLines
from ..errors import DumpError
from ..format import Documents, Origin
from ..mapped import Mapped, at
from ..messages import error_text
from ..rollout import Expected, Item, Rollout
from ..values import Document, mapping, objects, summed, text, whole
from .tables import GENERIC

_BODIES = ("body", "params", "request")
"""Keys of what a request asks: OpenAI's, Anthropic's and Gemini's."""
_SEVERAL = 8
_KIND = re.compile(r"(?:batch|request|input|output|result|response|error|file)(?:s|es)?")


def _of_batch(rollout: Rollout, document: Document, origin: Origin) -> Rollout:
    kind = text(at(document, "result.type")) or "succeeded"
    paths = ("result.error.error", "result.error", "error", "response.body.error")
    reason = next((e for path in paths if (e := error_text(at(document, path)))), None)
    usage = mapping(at(document, "result.message.usage"))
    tokens = summed([usage.get(k) for k in ("input_tokens", "output_tokens")])
    return replace(
        rollout,
        completion=() if reason and "error" in mapping(at(document, "response.body")) else rollout.completion,
        error=reason or (None if kind == "succeeded" else kind),
        token_count=tokens if rollout.token_count is None else rollout.token_count,
        split=rollout.split or "eval",
    )


_ROW = Mapped(
    name="outputs of a batch",
    needs=("custom_id",),
    keys={
        "id": ("custom_id",),
        "group": ("group",),
        "index": ("rollout",),
        "prompt": ("body", "params"),
        "system": ("params.system", "body.instructions"),
        "tools": ("body.tools", "params.tools"),
        "completion": ("result.message", "response.body"),
        "stop": ("result.message.stop_reason", "response.body.incomplete_details.reason"),
        "model": ("result.message.model", "response.body.model"),
        "token_count": ("response.body.usage.total_tokens",),
    },
    ignored=("id", "result", "response", "error", "method", "url"),
    finish=_of_batch,
)


def rollout_of(document: Document, origin: Origin) -> Rollout:
    """Return the rollout of an answer, or of a request without one."""
    return (_ROW if "custom_id" in document else GENERIC).rollout(document, origin)


def _answered(document: Document, origin: Origin) -> bool:
    gemini = isinstance(document.get("response"), Mapping) and isinstance(document.get("key"), str)
    return "custom_id" in document or (gemini and "request" not in document)


BATCH = Documents(
    _ROW.name,
    lambda document, origin: [rollout_of(with_request(document, origin), origin)],
    when=_answered,
    unknown={"prompt": "no file in its folder, or in one next to it, has its request", "group": "no group is written"},
)


def _requests(document: Any) -> list[Document]:
    """Return the requests of a document: itself, or those in a list of Anthropic's. Empty for other documents."""
    rows = objects(mapping(document).get("requests")) or objects([document])
    asked = all(any(isinstance(row.get(key), Mapping) for key in _BODIES) and _name(row) for row in rows)
    said = (GENERIC.first(row, "completion") or row.keys() & {"result", "error"} for row in rows)
    return rows if asked and not any(said) else []


def _name(document: Document) -> str:
    return text(document.get("custom_id") or document.get("key")) or ""


def _expected(document: Document, origin: Origin) -> Iterable[Item]:
    """Yield a rollout without turns for each answer that a request asks for. Its answer replaces it in lists."""
    for row in _requests(document):
        answers = whole(at(row, "body.n")) or 1
        for i in range(answers):
            names = {"custom_id": f"{_name(row)}:{i}", "group": _name(row), "rollout": i} if answers > 1 else {}
            yield Expected(rollout_of({**row, **names}, origin), format=BATCH.name)


REQUESTS = Documents("requests of a batch", _expected, when=lambda document, _: _requests(document))


def with_request(document: Document, origin: Origin) -> Document:
    """Return an answer with the keys of its request, from a file in the same folder, or in a sibling or parent folder.

    Several batches may count from 0. Then their requests must be alike, or their files be named alike.
    """
    if not (name := _name(document)) or any(key in document for key in _BODIES):
        return document
    folder = origin.path.parent
    places = _requests_in(folder).get(name, [])
    if not places and folder != origin.root and origin.root in folder.parents:
        beside = [folder.parent, *(path for path in folder.parent.glob("*") if path.is_dir())]
        places = [place for path in beside for place in _requests_in(path).get(name, [])]
    alike = [place for place in places if _words(place[0]) == _words(origin.path)]
    found: list[Document] = []
    for path, container, each in places[:_SEVERAL] if len(alike) != 1 else alike:
        with suppress(DumpError, OSError):
            rows = _requests(each.document or BY_NAME[container].read(path, each.offset, each.length))
            found += [row for row in rows if _name(row) == name and row not in found]
    return {**found[0], **document} if len(found) == 1 else document


def _words(path: Path) -> set[str]:
    """Return the words and numbers of a file name that do not name its kind."""
    return {word for word in re.findall(r"[a-z]+|\d+", path.stem.lower()) if not _KIND.fullmatch(word)}


@cached_by_file(maxsize=64)
def _requests_in(folder: Path) -> dict[str, list[tuple[Path, str, FoundDocument]]]:
    """Return the places of the requests in the files of a folder by name. Only packed ones stay in memory, because
    finding them again takes long."""
    found: dict[str, list[tuple[Path, str, FoundDocument]]] = {}
    for path in sorted(folder.glob("*")):
        with suppress(DumpError, OSError):
            if (container := container_of(path)) is None:
                continue
            for each in container.open(path):
                if not (rows := _requests(each.document)) and each.problem is None:
                    break
                kept = each if isinstance(container, PackedLines) else replace(each, document=None)
                for row in rows:
                    found.setdefault(_name(row), []).append((path, container.name, kept))
    return found
