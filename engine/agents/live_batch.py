"""Continuous batching: rows join and leave a running batch between two tokens.

Foreground rows have the first places of the cache, background rows those behind them. A step runs only on the first
places, so background rows wait, without a copy, while a foreground row writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch

from ...envs.seeds import seed_of
from .decoder import Decoder
from .row_cache import RowCache
from .sampling import SamplingSettings, TokenLogprobs, float64_device, sample

KEPT_TOKENS = 2048
"""The most tokens of prompts kept for later rows."""


@dataclass(eq=False)
class LiveRow:
    """One text in progress. limit: maximum tokens to write. on_token: called after each token, and may set `ended`.

    likeliest: number of likeliest tokens whose log-probs are kept for each token; None keeps no scores. keep: store
    this prompt in `Prompts` for later rows.
    """

    prompt: Sequence[int]
    limit: int
    sampling: SamplingSettings
    seed: int
    background: bool = False
    on_token: Callable[[LiveRow], None] | None = None
    likeliest: int | None = None
    keep: bool = False
    scores: list[TokenLogprobs] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ended: bool = False
    """Whether the row wrote a stop token, or `on_token` ended it."""
    cancelled: bool = False
    """Set by the owner: the row leaves the batch at the next step."""

    @property
    def longest(self) -> int:
        """The largest number of tokens that the row may reach."""
        return len(self.prompt) + self.limit

    @property
    def done(self) -> bool:
        return self.ended or self.cancelled or len(self.tokens) >= self.limit


class Prompts(dict[tuple[int, ...], tuple[RowCache, int, torch.Tensor]]):
    """Encoded prompts: a cache, the place of the prompt in it, and the logits `[V]` after it. The oldest are dropped if
    there is no more room."""

    def keep(self, prompt: tuple[int, ...], source: RowCache, slot: int, logits: torch.Tensor) -> None:
        if len(prompt) > KEPT_TOKENS:
            return
        cache = RowCache(len(source.layers), 0, len(prompt))
        cache.reserve(1, len(prompt), like=source)
        cache.copy_row(source, slot, 0)
        self[prompt] = cache, 0, logits.clone()
        while sum(map(len, self)) > KEPT_TOKENS:
            del self[next(iter(self))]


class LiveBatch:
    """The running rows of one policy. The weights must not change while it has rows.

    All calls need the sampling context of the model (`prepared.acting`).
    """

    def __init__(self, decoder: Decoder, stop_ids: Sequence[int]) -> None:
        self._decoder = decoder
        self._stop_ids = frozenset(stop_ids)
        self._cache: RowCache | None = None
        self._prompts = Prompts()
        self._rows: list[LiveRow] = []
        """The row at each place: foreground first."""

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def foreground(self) -> int:
        return sum(not row.background for row in self._rows)

    @property
    def background_tokens(self) -> int:
        """The largest number of tokens that the background rows may reach."""
        return sum(row.longest for row in self._rows if row.background)

    @torch.inference_mode()
    def join(self, rows: Sequence[LiveRow]) -> list[LiveRow]:
        """Encode each distinct prompt once, and draw the first tokens. Returns the rows that are done."""
        if not rows:
            return []
        with self._decoder.sampling(cached=True):
            prompts = dict.fromkeys(tuple(row.prompt) for row in rows)
            known = {p: self._prompts[p] for p in prompts if p in self._prompts}
            new = [p for p in prompts if p not in known]
            if new:
                cache, logits = self._encode(new)
                known |= {p: (cache, slot, logits[slot]) for slot, p in enumerate(new)}
                for prompt in {tuple(row.prompt) for row in rows if row.keep}.intersection(new):
                    self._prompts.keep(prompt, *known[prompt])
            found = [known[tuple(row.prompt)] for row in rows]
            self._draw(rows, torch.stack([logits for _, _, logits in found]))
            for row, (cache, slot, _) in zip(rows, found, strict=True):
                if not row.done:
                    self._enter(row, cache, slot)
        return [row for row in rows if row.done]

    @torch.inference_mode()
    def step(self) -> list[LiveRow]:
        """Write one token for every foreground row, or for the background rows if there are none. Returns the rows that
        are done, which have left the batch."""
        cancelled = [row for row in self._rows if row.cancelled]
        self._leave(cancelled)
        running = self._rows[: self.foreground] or self._rows
        if not running or self._cache is None:
            return cancelled
        device = self._decoder.device
        positions = [len(row.prompt) + len(row.tokens) - 1 for row in running]
        longest = max(positions) + 1
        if longest > self._cache.capacity:
            self._cache.reserve(self._cache.rows, longest)
        with self._decoder.sampling(cached=True):
            logits = self._decoder.forward(
                torch.tensor([[row.tokens[-1]] for row in running], device=device),
                torch.tensor(positions, device=device)[:, None],
                self._cache,
                longest,
            )
            self._draw(running, logits)
        done = [row for row in running if row.done]
        self._leave(done)
        return cancelled + done

    def _encode(self, prompts: Sequence[Sequence[int]]) -> tuple[RowCache, torch.Tensor]:
        """Return a cache with the prompts, and the logits `[n, V]` after each."""
        width = max(map(len, prompts))
        tokens = np.zeros((len(prompts), width), np.int64)
        positions = np.full((len(prompts), width), -1, np.int64)
        for i, prompt in enumerate(prompts):
            tokens[i, width - len(prompt) :] = prompt
            positions[i, width - len(prompt) :] = np.arange(len(prompt))
        cache = RowCache(self._decoder.num_layers, len(prompts), width)
        device = self._decoder.device
        fed, position = torch.as_tensor(tokens, device=device), torch.as_tensor(positions, device=device)
        return cache, self._decoder.forward(fed, position, cache, width)

    def _draw(self, rows: Sequence[LiveRow], logits: torch.Tensor) -> None:
        """Draw the next token of each row from logits `[n, V]`. Rows with equal sampling are drawn together."""
        for sampling in dict.fromkeys(row.sampling for row in rows):
            chosen = [i for i, row in enumerate(rows) if row.sampling == sampling]
            noise = None
            if sampling.temperature > 0:
                drawn = [seed_of(rows[i].seed, len(rows[i].tokens)) % 2**53 / 2**53 for i in chosen]
                noise = torch.tensor(drawn, dtype=torch.float64, device=float64_device(logits.device))
            part = logits if len(chosen) == len(rows) else logits[torch.tensor(chosen, device=logits.device)]
            tokens, logprobs = sample(part, sampling, noise)
            for i, token, logprob in zip(chosen, tokens.tolist(), logprobs.tolist(), strict=True):
                row = rows[i]
                row.tokens.append(token)
                row.logprobs.append(logprob)
                row.ended = token in self._stop_ids
                if row.likeliest is not None:
                    row.scores.append(TokenLogprobs.of(logits[i], token, row.likeliest))
                if row.on_token is not None:
                    row.on_token(row)

    def _enter(self, row: LiveRow, source: RowCache, source_slot: int) -> None:
        """Give a row a place, with keys and values copied from a place of `source`."""
        capacity = len(row.prompt) + min(row.limit, 64)
        if self._cache is None:
            self._cache = RowCache(self._decoder.num_layers, 0, capacity)
        count, front = len(self._rows), self.foreground
        if count == self._cache.rows or capacity > self._cache.capacity:
            self._cache.reserve(max(self._cache.rows, 2 * count, 4), max(capacity, self._cache.capacity), like=source)
        slot = count if row.background else front
        if slot < count:
            self._cache.copy_row(self._cache, slot, count)
            self._rows.append(self._rows[slot])
            self._rows[slot] = row
        else:
            self._rows.append(row)
        self._cache.copy_row(source, source_slot, slot)

    def _leave(self, rows: Sequence[LiveRow]) -> None:
        """Fill the place of each finished row with the last foreground row, and that one's place with the last row."""
        for row in rows:
            slot, front, last = self._rows.index(row), self.foreground - 1, len(self._rows) - 1
            holes = [slot, last] if row.background else [slot, front, last]
            for to, origin in pairwise(holes):
                if to != origin and self._cache is not None:
                    self._cache.copy_row(self._cache, origin, to)
                    self._rows[to] = self._rows[origin]
            self._rows.pop()
        if not self._rows:
            self._cache = None
