"""A batch of conversations of one model: the `AgentSession` of `TransformersAgent`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ...envs.agent import AgentTurn
from ...envs.seeds import seed_of
from ..runs.control.live import BatchTexts
from .acting_rows import RowsOf
from .chat_session import ChatSession, SessionStart, seeds_of
from .decoder import Decoder
from .sampling import float64_device, sample
from .seen_rows import SeenRows

COMPACT_BELOW = {"cpu": 0.75, "cuda": 0.5}
"""Finished rows leave the batch once at most this share is still writing. On CUDA a pass over fewer rows is hardly
faster, and each number of rows needs another graph."""

SEEN_TOKENS = 160
"""Newest tokens of a text that a watcher receives."""

CHECK_EVERY = 8
"""Steps between checks for finished rows on an accelerator, where a check synchronises the device."""


class TransformersSession(ChatSession):
    """An `AgentSession` with prompt-major rows. rows_of: makes their cache.

    Rows that do not act with the others lose their place in the cache when it is rebuilt, and are encoded again if they
    act later.
    """

    def __init__(self, decoder: Decoder, start: SessionStart, rows_of: RowsOf) -> None:
        super().__init__(start)
        self.decoder = decoder
        chat = start.chat
        vision_model = None if chat.vision is None else decoder.seeing
        self._seen = None if vision_model is None else SeenRows(vision_model, self.history, self._shown)
        self._seeds = seeds_of(start.seed, len(start.prompts))
        limit = start.settings.max_trajectory_tokens
        self._rows = rows_of(decoder, self.history, start.num_rollouts, limit, self._seen)
        self._never = None if chat.vision is None else torch.tensor(chat.vision.never, device=decoder.device)
        self._stop_ids = torch.tensor(chat.stop_ids, device=decoder.device)

    def act(self, rows: Sequence[int]) -> list[AgentTurn]:
        """Let these rows write their next turn together. Returns one `AgentTurn` per row, in order.

        A row without room for another token writes nothing and stops with `token_limit`.
        """
        accepted = [row for row in rows if row not in self._refused]
        turns = dict(zip(accepted, self._act(np.asarray(accepted, dtype=np.int64)), strict=True))
        for row in set(rows) - set(accepted):
            end = int(self.history.length[row])
            turns[row] = AgentTurn("", (end, end), "refused", self._refused[row])
        return [turns[row] for row in rows]

    def _act(self, rows: np.ndarray) -> list[AgentTurn]:
        starts = self.history.length[rows]
        self._exhausted[rows[self._room(rows) <= 0]] = True
        active = rows[~self._exhausted[rows]]
        ended = np.zeros(len(self.history.length), dtype=bool)
        if active.size:
            with self.decoder.sampling(cached=self._rows.cached):
                ended[active] = self._write_turn(active)
        turns = []
        for row, start in zip(rows.tolist(), starts.tolist(), strict=True):
            end = int(self.history.length[row])
            full = end == start or self._room(np.array([row]))[0] <= 0
            reason = "stop" if ended[row] else "token_limit" if full else "turn_limit"
            text = self.chat.decode(self.history.ids[row, start:end].tolist())
            turns.append(AgentTurn(text, (start, end), reason))
            if self._watched is not None:
                self._watched.wrote(row, end - start, text)
        return turns

    def close(self) -> None:
        self._rows.clear()
        if self._watched is not None:
            self._watched.close()

    def _images_came(self, row: int) -> None:
        assert self._seen is not None, "only a model that sees is shown pictures"
        self._seen.images_came(row)

    def _write_turn(self, rows: np.ndarray) -> np.ndarray:
        """Decode until all `rows` (int64 `[n]`) have ended their turn, and append it. Returns which rows wrote a stop
        token.

        All per-token work is on tensors. Place p of the batch writes column `column[p]` of the outputs. Places move
        when finished rows leave the batch, columns do not.
        """
        device = self.decoder.device
        remaining = np.minimum(self.settings.max_turn_tokens, self._room(rows))
        order, logits = self._rows.prepare(rows, int((self.history.length[rows] + remaining).max()))
        n, lengths = len(order), self.history.length[order]
        remaining = np.minimum(self.settings.max_turn_tokens, self._room(order))
        steps = int(remaining.max())
        uniform = self._uniform(order, steps)

        limit = torch.as_tensor(remaining, device=device)
        position = torch.as_tensor(lengths, device=device)
        column = torch.arange(n, device=device)
        alive = torch.ones(n, dtype=torch.bool, device=device)
        tokens = torch.zeros(steps, n, dtype=torch.long, device=device)
        logprobs = torch.zeros(steps, n, device=device)
        counts = torch.zeros(n, dtype=torch.long, device=device)
        ended = torch.zeros(n, dtype=torch.bool, device=device)
        look = 1 if device.type == "cpu" else CHECK_EVERY
        if self._watched is not None:
            self._watched.turn()
            for row in order.tolist():
                self._watched.goes_on(row)

        seen = self._seen_tokens(order, logits.shape[-1])
        for step in range(steps):
            noise = None if uniform is None else uniform[step, column.to(uniform.device)]
            token, logprob = sample(logits, self.settings, noise, self._never, None if seen is None else seen[column])
            if seen is not None:
                seen[column, token] = True
            tokens[step, column] = token
            logprobs[step, column] = logprob
            counts[column] += alive
            stop = torch.isin(token, self._stop_ids) & alive
            ended[column] |= stop
            alive = alive & ~stop & (limit > step + 1)
            if step + 1 == steps:
                break
            if step % look == look - 1:
                if self._watched is not None and self._watched.due():
                    self._report(self._watched, order, tokens[: step + 1], counts, ended | (counts <= step), steps)
                num_alive = int(alive.sum())
                if num_alive == 0:
                    break
                if num_alive <= COMPACT_BELOW.get(device.type, 0.75) * alive.numel():
                    kept = self._rows.compact(alive, num_alive)
                    column, token, position, limit, alive = (x[kept] for x in (column, token, position, limit, alive))
            # A row that has ended keeps its place. Its next turn overwrites what it writes there now.
            logits = self._rows.feed(token[:, None], position[:, None], int(lengths.max()) + step + 1)
            position = position + alive

        self.history.append_turn(order, tokens.T.cpu().numpy(), logprobs.T.cpu().numpy(), counts.cpu().numpy())
        # The last token of a turn has not been fed yet. It is fed together with the observation.
        self._rows.fed(order, self.history.length[order] - 1)
        return np.isin(rows, order[ended.cpu().numpy()])

    def _seen_tokens(self, order: np.ndarray, vocabulary: int) -> torch.Tensor | None:
        """Return the tokens of each row so far, bool `[n, V]`, if their repetition is penalised."""
        if self.settings.repetition_penalty == 1:
            return None
        seen = np.zeros((len(order), vocabulary), dtype=bool)
        for index, row in enumerate(order.tolist()):
            seen[index, self.history.ids[row, : self.history.length[row]]] = True
        return torch.from_numpy(seen).to(self.decoder.device)

    def _report(
        self,
        watched: BatchTexts,
        order: np.ndarray,
        tokens: torch.Tensor,
        counts: torch.Tensor,
        over: torch.Tensor,
        steps: int,
    ) -> None:
        """Report the progress of a turn.

        tokens `[t, n]`, counts and over `[n]` are by column; `order` has the row of each column.
        """
        with watched.look(len(tokens), steps):
            written, done = counts.tolist(), over.tolist()
            for column, row in enumerate(order.tolist()):
                count, text = written[column], None
                if watched.wants(row):
                    text = self.chat.decode(tokens[max(0, count - SEEN_TOKENS) : count, column].tolist()).strip(
                        "\ufffd"
                    )
                watched.writes(row, count, text, cut=count > SEEN_TOKENS, over=done[column])

    def _uniform(self, order: np.ndarray, steps: int) -> torch.Tensor | None:
        """Return the random numbers of one turn, float64 `[steps, n]`.

        They depend on the seed of the prompt, the row's index in its group and the turn, not on other rows.
        """
        if self.settings.temperature == 0:
            return None
        drawn = torch.empty(len(order), self.settings.max_turn_tokens, dtype=torch.float64)
        generator = torch.Generator()
        for index, row in enumerate(order.tolist()):
            torch.rand(drawn.shape[1], generator=generator.manual_seed(self._turn_seed(row)), out=drawn[index])
        return drawn[:, :steps].T.contiguous().to(float64_device(self.decoder.device))

    def _turn_seed(self, row: int) -> int:
        prompt, rollout = divmod(row, self.num_rollouts)
        return seed_of(self._seeds[prompt], rollout, int(self.history.turns[row]))
