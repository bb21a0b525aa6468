"""Token arrays of dumps, created when they are shown."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from math import nan

from ..runs.types import TokenArrays
from .values import Document, listed, number, whole

Maker = Callable[[], TokenArrays[memoryview] | None]


def token_arrays(
    ids: Sequence[object],
    mask: Sequence[object],
    logprobs: Sequence[object] = (),
    advantages: Sequence[object] = (),
    overlays: Mapping[str, Sequence[object]] | None = None,
) -> TokenArrays[memoryview] | None:
    """Return the arrays of one conversation, or None if the ids are not numbers.

    Turns are runs of the agent's tokens. Overlays (see `TokenArrays`) with another length are dropped.
    """
    token_ids = [whole(i) for i in ids]
    if not token_ids or any(i is None or not 0 <= i < 2**31 for i in token_ids):
        return None
    by_agent = [bool(number(m)) for m in mask][: len(token_ids)]
    by_agent += [False] * (len(token_ids) - len(by_agent))
    begins = [now and not before for before, now in pairwise([False, *by_agent])]
    return TokenArrays(
        memoryview(array("i", [i or 0 for i in token_ids])),
        memoryview(bytes(by_agent)),
        memoryview(array("f", _fitted(logprobs, len(token_ids)))),
        memoryview(array("h", [min(count - 1, 32767) for count in accumulate(begins)])),
        memoryview(array("f", _fitted(advantages, len(token_ids)))) if advantages else None,
        _overlays(overlays or {}, by_agent),
    )


def tokens_of_nodes(nodes: Sequence[Document]) -> TokenArrays[memoryview] | None:
    """Return the arrays of verifiers nodes, which hold log-probs of their sampled tokens."""
    ids: list[object] = []
    mask: list[object] = []
    logprobs: list[object] = []
    advantages: list[object] = []
    for node in nodes:
        tokens = listed(node.get("token_ids"))
        mask_of_node = listed(node.get("mask")) or [bool(node.get("sampled"))] * len(tokens)
        ids += tokens
        mask += mask_of_node
        logprobs += _spread(listed(node.get("logprobs")), mask_of_node)
        advantages += _spread(listed(node.get("advantages")), mask_of_node)
    return token_arrays(ids, mask, logprobs, advantages if any(advantages) else ())


def tokens_of_calls(calls: Sequence[tuple[Sequence[object], ...]]) -> Maker | None:
    """Return a maker for model calls, each with its input ids, its output ids and their log-probs. Return None if a
    call has no ids. The maker returns None if a call's input does not begin with all earlier tokens."""
    if not calls or not all(read and wrote for read, wrote, _ in calls):
        return None

    def make() -> TokenArrays[memoryview] | None:
        ids: list[object] = []
        mask: list[int] = []
        logprobs: list[object] = []
        for read, wrote, known in calls:
            if list(read[: len(ids)]) != ids:
                return None
            new = len(read) - len(ids)
            ids = [*read, *wrote]
            mask += [0] * new + [1] * len(wrote)
            logprobs += [0.0] * new + (list(known) if len(known) == len(wrote) else [0.0] * len(wrote))
        return token_arrays(ids, mask, logprobs)

    return make


def tokens_with_more(
    make: Maker | None, advantages: Sequence[object], overlays: Mapping[str, Sequence[object]]
) -> Maker | None:
    """Return a maker that adds advantages and overlays with one value per token."""
    if make is None:
        return None

    def arrays() -> TokenArrays[memoryview] | None:
        tokens = make()
        if tokens is None:
            return None
        if len(advantages) == len(tokens):
            tokens = replace(tokens, advantages=memoryview(array("f", _fitted(advantages, len(tokens)))))
        return replace(tokens, overlays={**tokens.overlays, **_overlays(overlays, list(tokens.agent_mask))})

    return arrays


def _overlays(values_by_name: Mapping[str, Sequence[object]], mask: Sequence[int]) -> dict[str, memoryview]:
    """Return the usable overlays by name, with one number per token (NaN: unknown)."""
    found: dict[str, memoryview] = {}
    for name, values in values_by_name.items():
        if len(values) == len(mask) and any(number(v) is not None for v in values):
            known = [n if m and (n := number(v)) is not None else nan for v, m in zip(values, mask, strict=True)]
            found[name] = memoryview(array("f", known))
    return found


def _spread(values: Sequence[object], mask: Sequence[object]) -> list[object]:
    """Return one value per token. If only sampled tokens have values, align them by the mask."""
    if len(values) == len(mask):
        return list(values)
    remaining = iter(values)
    return [next(remaining, 0.0) if m else 0.0 for m in mask]


def _fitted(values: Sequence[object], size: int) -> list[float]:
    found = [0.0 if (n := number(v)) is None else n for v in values][:size]
    return found + [0.0] * (size - len(found))
