"""Encode and decode trajectories and token arrays as compressed bytes: JSON and arrays of plain types, never pickle.

Sixteen neighbours share a blob. Rollouts of one prompt repeat most of each other's text, so a shared blob is smaller
and cheaper to compress, and reading a page takes a fraction of a millisecond.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from itertools import compress as selected
from struct import calcsize
from typing import Any, Literal

import orjson

from ...configs.plain_data import from_plain
from ...envs.tools import ToolSpec
from ...envs.trajectory import TokenArrays, Trajectory
from .labels import clean
from .types import TrajectoryRecord
from .zstd import ZstdDecompressor, ZstdError, get_frame_info, zstd_compress

CHUNK = 16
CHUNK_BYTES = 1 << 20
SEARCH_LIMIT = 100_000
"""The number of searchable characters per column of a trajectory. The text itself is stored whole."""
MAX_BLOB = 1 << 30

_TRAJECTORY_FIELDS = tuple(f for f in Trajectory.__dataclass_fields__ if f != "tools")
_RECORD_FIELDS = tuple(f for f in TrajectoryRecord.__dataclass_fields__ if f != "tokens")
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
_ARRAYS = (("token_ids", "i"), ("agent_mask", "?"), ("logprobs", "f"), ("turn", "h"), ("advantages", "f"))
"""Names and `struct` element types (little-endian: int32, bool, float32, int16, float32), in storage order."""


def encode_body(record: TrajectoryRecord) -> bytes:
    """Encode a trajectory with its results as one line of JSON, without tools and tokens."""
    document = {name: getattr(record, name) for name in _RECORD_FIELDS}
    document["trajectory"] = {name: getattr(record.trajectory, name) for name in _TRAJECTORY_FIELDS}
    return encode_json(document, finite=all(n is None or math.isfinite(n) for n in _numbers(record)))


def _numbers(record: TrajectoryRecord) -> Iterator[float | None]:
    """Yield the numbers of a record that may be NaN or infinite."""
    trajectory, breakdown, use = record.trajectory, record.breakdown, record.use
    yield from (trajectory.env_reward, record.advantage, *record.step_advantages, record.log_ratio_sum)
    yield from (value for value in trajectory.extra.values() if isinstance(value, float))
    for turn in trajectory.steps:
        yield from (turn.reward, *(score.value for score in turn.scores))
    if breakdown is not None:
        yield breakdown.total
        for by in breakdown.normalized_by.values():
            yield from (by.mean, by.std)
        for step in breakdown.steps:
            yield step.total
            for value in step.components.values():
                yield from (value.raw, value.normalized, value.weight, value.contribution)
    for terms in record.formula.steps if record.formula is not None else ():
        for term in terms:
            yield from (term.value, term.mean, term.std, term.weight)
    if use is not None:
        yield from (use.weight, use.advantage)
        if use.loss is not None:
            yield from (*use.loss.ratio, use.loss.policy, use.loss.kl, use.loss.entropy)


def decode_body(line: bytes, tools: tuple[ToolSpec, ...] = ()) -> TrajectoryRecord:
    """Invert `encode_body`. Raises ValueError or TypeError if the bytes are not such a document."""
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError:
        data = json.loads(line)
    record = from_plain(TrajectoryRecord, data)
    return replace(record, trajectory=replace(record.trajectory, tools=tools)) if tools else record


def encode_tokens(tokens: Sequence[TokenArrays[Any] | None]) -> bytes | None:
    """Encode the arrays of consecutive trajectories: a line of JSON (lengths, presence), then the arrays by name, each
    for all trajectories."""
    present = [t for t in tokens if t is not None]
    if not present:
        return None
    header: dict[str, object] = {
        "lengths": [None if t is None else len(t) for t in tokens],
        "advantages": [t is not None and t.advantages is not None for t in tokens],
        "overlays": [sorted(t.overlays) if t is not None else [] for t in tokens],
    }
    parts = [orjson.dumps(header), b"\n"]
    for name, kind in _ARRAYS:
        for one in present:
            values = getattr(one, name)
            if values is not None:
                # only agent tokens have a log-prob
                parts.append(_packed(values, kind, one.agent_mask if name == "logprobs" else None))
    for one in present:  # last, so that blobs written before overlays existed still decode
        parts += [_packed(one.overlays[name], "f") for name in sorted(one.overlays)]
    return b"".join(parts)


def _packed(values: Any, kind: str, mask: Any = None) -> bytes:
    """Return the bytes of a one-dimensional array, or only of the elements that `mask` selects."""
    # NumPy arrays convert themselves, so that this module works without NumPy.
    if hasattr(values, "astype") and (mask is None or hasattr(mask, "astype")):
        values = values.astype({"i": "<i4", "?": "|b1", "f": "<f4", "h": "<i2"}[kind], copy=False)
        return (values if mask is None else values[mask.astype(bool)]).tobytes()
    chosen: Iterable[Any] = values if mask is None else selected(values, mask)
    return bytes(map(bool, chosen)) if kind == "?" else array(kind, chosen).tobytes()


def decode_tokens(data: bytes, index: int) -> TokenArrays[memoryview] | None:
    """Return the arrays of trajectory `index` of a chunk, or None if none were recorded."""
    line, payload = data.split(b"\n", 1)
    header = orjson.loads(line)
    if header["lengths"][index] is None:
        return None
    lengths = [length or 0 for length in header["lengths"]]
    view, offset = memoryview(payload), 0

    def cut(sizes: Sequence[int], kind: Literal["i", "?", "f", "h"]) -> memoryview[Any]:
        """Return this trajectory's part of the next array. sizes: the number of elements of each trajectory."""
        nonlocal offset
        width = calcsize(kind)
        start = offset + width * sum(sizes[:index])
        part = view[start : start + width * sizes[index]]
        if len(part) != width * sizes[index]:
            raise ValueError("the block of tokens is too short")
        offset += width * sum(sizes)
        return part.cast(kind)

    token_ids = cut(lengths, "i")
    ends = [offset + end for end in accumulate(lengths)]
    agent_tokens = [payload.count(1, end - length, end) for length, end in zip(lengths, ends, strict=True)]
    mask = cut(lengths, "?")
    written = iter(cut(agent_tokens, "f"))
    logprobs: memoryview[Any] = memoryview(array("f", [next(written) if agent else 0.0 for agent in mask]))
    turn = cut(lengths, "h")
    advantages = cut([length * has for length, has in zip(lengths, header["advantages"], strict=True)], "f")
    names = header.get("overlays") or [[]] * len(lengths)
    values = cut([length * len(own) for length, own in zip(lengths, names, strict=True)], "f")
    size = lengths[index]
    overlays = {name: values[i * size : (i + 1) * size] for i, name in enumerate(names[index])}
    return TokenArrays(token_ids, mask, logprobs, turn, advantages if header["advantages"][index] else None, overlays)


def compress(data: bytes) -> bytes:
    """Return one zstd frame that states its size."""
    return zstd_compress(data, 3)


def decompress(blob: bytes) -> bytes:
    """Invert `compress`. Raises ValueError for a damaged frame, or one that claims more than a gibibyte."""
    try:
        size = get_frame_info(blob).decompressed_size
        if size is not None and size > MAX_BLOB:
            raise ValueError(f"a compressed block claims {size} bytes")
        stream = ZstdDecompressor()
        data = stream.decompress(blob, MAX_BLOB)
    except ZstdError as error:
        raise ValueError(f"a compressed block is damaged ({error})") from error
    if not stream.eof:
        raise ValueError("a compressed block is damaged (it ends too early, or is too large)")
    return data


def search_text(record: TrajectoryRecord) -> tuple[str, ...]:
    """Return the texts of a trajectory for the full-text index, in the order of `SEARCH_COLUMNS`.

    The result depends only on the fields that `decode_body` returns, because removing a row from a contentless index
    needs exactly the same text.
    """
    trajectory = record.trajectory
    penalties = record.breakdown.penalties if record.breakdown is not None else ()
    texts = (
        trajectory.prompt,
        "\n".join([s.text for s in trajectory.steps]),
        "\n".join([s.observation for s in trajectory.steps]),
        trajectory.answer or "",
        "\n".join([f"{p.rule}\n{p.why}" for p in penalties]),
    )
    return tuple([clean(text[:SEARCH_LIMIT]) for text in texts])


def encode_json(value: object, *, finite: bool = True) -> bytes:
    """Encode any data as JSON. Values that JSON lacks become text, and lone surrogates are escaped.

    finite: whether the data has no NaN and no infinity, which orjson would write as null.
    """
    if finite:
        with suppress(TypeError):  # the standard library also writes lone surrogates and integers beyond 64 bits
            return orjson.dumps(value, default=_default, option=_OPTIONS)
    return json.dumps(_plain(value), default=_default).encode("ascii")


def _default(value: Any) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    if hasattr(value, "tolist"):  # a tensor, or an array that is not contiguous
        return value.tolist()
    return str(value)


def _plain(value: Any) -> object:
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
