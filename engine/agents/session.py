"""A batch of conversations of one model under way: the `AgentSession` of `TransformersAgent`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from transformers.generation.stopping_criteria import StopStringCriteria

from ...envs.agent import AgentTurn
from ...envs.content import Picture
from ...envs.seeds import seed_of
from ...envs.trajectory import TokenArrays
from ..policy.sight.processor import Encoded, SightError
from .acting_rows import RowsOf
from .cached_rows import CachedRows
from .chat import ChatBridge
from .decoder import Decoder
from .history import TokenHistory
from .sampling import sample
from .seen_rows import SeenRows, ShownImage
from .settings import AgentSettings
from .watching import WatchedBatch

COMPACT_BELOW = 0.75
"""Rows that have finished their turn leave the batch once at most this share still writes."""

SEEN_TOKENS = 160
"""Newest tokens of a text under way that a watcher is shown."""

CHECK_EVERY = 8
"""Steps between looks at who has finished, on an accelerator, where a look waits for the device."""


class TransformersSession:
    """See `AgentSession`. Rows are prompt-major.

    Rows that do not act with the others lose their place in the cache when it is rebuilt; should one act again, its
    conversation is encoded anew.
    """

    def __init__(
        self,
        decoder: Decoder,
        chat: ChatBridge,
        settings: AgentSettings,
        prompts: Sequence[Encoded | SightError],
        num_rollouts: int,
        seeds: Sequence[int],
        rows_of: RowsOf = CachedRows,
        watched: WatchedBatch | None = None,
    ):
        self.decoder = decoder
        self.chat = chat
        self.settings = settings
        self.num_rollouts = num_rollouts
        self._watched = watched
        rows = len(prompts) * num_rollouts
        by_row = [p for p in prompts for _ in range(num_rollouts)]
        self._refused = {row: str(p) for row, p in enumerate(by_row) if isinstance(p, SightError)}
        begun = [Encoded([chat.stop_ids[0]], ()) if isinstance(p, SightError) else p for p in by_row]
        self.history = TokenHistory([p.ids for p in begun])
        self._seen = None
        if chat.sight is not None and decoder.seeing is not None:
            self._seen = SeenRows(decoder.seeing, self.history, [p.images for p in begun])
        self._seeds = list(seeds)
        self._exhausted = np.zeros(rows, dtype=bool)
        self._rows = rows_of(decoder, self.history, num_rollouts, settings.max_trajectory_tokens, self._seen)
        self._never = None if chat.sight is None else torch.tensor(chat.sight.never, device=decoder.device)
        self._stop_ids = torch.tensor(chat.stop_ids, device=decoder.device)
        self._stop_strings = (
            StopStringCriteria(chat.tokenizer, list(settings.stop_strings)) if settings.stop_strings else None
        )

    def act(self, rows: Sequence[int]) -> list[AgentTurn]:
        """Let these rows write their next turn, all together; one `AgentTurn` per row, in order.

        A row without room for another token writes nothing and stops with `token_limit`.
        """
        if self._refused:
            return self._act_without_refused(rows)
        return self._act(np.asarray(rows, dtype=np.int64))

    def _act_without_refused(self, rows: Sequence[int]) -> list[AgentTurn]:
        able = [row for row in rows if row not in self._refused]
        turns = dict(zip(able, self._act(np.asarray(able, dtype=np.int64)), strict=True))
        for row in set(rows) - set(able):
            end = int(self.history.length[row])
            turns[row] = AgentTurn("", (end, end), "refused", self._refused[row])
        return [turns[row] for row in rows]

    def _act(self, asked: np.ndarray) -> list[AgentTurn]:
        starts = self.history.length[asked]
        self._exhausted[asked[self._room(asked) <= 0]] = True
        able = asked[~self._exhausted[asked]]
        ended = np.zeros(len(self.history.length), dtype=bool)
        if able.size:
            with self._rows.sampling():
                ended[able] = self._write_turn(able)
        turns = []
        for row, start in zip(asked.tolist(), starts.tolist(), strict=True):
            end = int(self.history.length[row])
            full = end == start or self._is_full(row)
            reason = "stop" if ended[row] else "token_limit" if full else "turn_limit"
            text = self.chat.decode(self.history.ids[row, start:end].tolist())
            turns.append(AgentTurn(text, (start, end), reason))
            if self._watched is not None:
                self._watched.wrote(row, end - start, text)
        return turns

    def observe(self, rows: Sequence[int], observations: Sequence[str]) -> None:
        """Append what the environment answered, with what the chat template puts around it.

        An observation that would leave no room for another token of the agent is left out, and the row is exhausted.
        """
        if self._seen is not None:
            return self.observe_seen(rows, observations, [()] * len(rows))
        for row, observation in zip(rows, observations, strict=True):
            if self._exhausted[row]:
                continue
            end = int(self.history.length[row])
            bridge = self.chat.bridge(int(self.history.ids[row, end - 1]), observation)
            if end + len(bridge) >= self.settings.max_trajectory_tokens:
                self._exhausted[row] = True
            else:
                self.history.append_observation(row, bridge)

    def observe_seen(
        self, rows: Sequence[int], observations: Sequence[str], pictures: Sequence[Sequence[Picture]]
    ) -> None:
        """As `observe`; pictures[i] are shown with observation i. One that cannot be shown ends its row alone."""
        assert self._seen is not None, "only a model that sees is shown pictures"
        for row, observation, shown in zip(rows, observations, pictures, strict=True):
            if self._exhausted[row] or row in self._refused:
                continue
            end = int(self.history.length[row])
            try:
                bridge, images = self.chat.answer_seen(int(self.history.ids[row, end - 1]), observation, shown)
            except SightError as problem:
                self._refused[row] = str(problem)
                continue
            most = self.chat.sight.max_images if self.chat.sight is not None else None
            too_many = most is not None and len(self._seen.images[row]) + len(images) > most
            if end + len(bridge) >= self.settings.max_trajectory_tokens or too_many:
                self._exhausted[row] = True
                continue
            self.history.append_observation(row, bridge)
            if images:
                self._seen.append(row, images)

    def shown(self, row: int) -> Sequence[ShownImage]:
        """The images of this row so far, in the order of their tokens."""
        return () if self._seen is None else self._seen.images[row]

    def tokens(self, row: int) -> TokenArrays:
        """Everything of this row so far."""
        return self.history.arrays(row)

    def close(self) -> None:
        """Free what the model keeps."""
        self._rows.clear()
        if self._watched is not None:
            self._watched.close()

    def _room(self, rows: np.ndarray) -> np.ndarray:
        """How many more tokens each of these rows may write, int64 `[n]`."""
        room = self.settings.max_trajectory_tokens - self.history.length[rows]
        if self.settings.max_new_tokens is not None:
            room = np.minimum(room, self.settings.max_new_tokens - self.history.written[rows])
        return room

    def _is_full(self, row: int) -> bool:
        return bool(self._room(np.array([row]))[0] <= 0)

    def _write_turn(self, rows: np.ndarray) -> np.ndarray:
        """Decode until all `rows` (int64 `[n]`) have ended their turn, append it, and say which ended it themselves.

        All per-token work is on tensors: place p of the batch writes column `column[p]` of the outputs; places move
        when finished rows leave the batch, columns do not.
        """
        device = self.decoder.device
        room = np.minimum(self.settings.max_turn_tokens, self._room(rows))
        order, logits = self._rows.prepare(rows, int((self.history.length[rows] + room).max()))
        n, lengths = len(order), self.history.length[order]
        room = np.minimum(self.settings.max_turn_tokens, self._room(order))
        steps = int(room.max())
        uniform = self._uniform(order, steps)

        limit = torch.as_tensor(room, device=device)
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

        for step in range(steps):
            noise = None if uniform is None else uniform[step, column]
            token, logprob = sample(logits, self.settings.sampling, noise, self._never)
            tokens[step, column] = token
            logprobs[step, column] = logprob
            counts[column] += alive
            stop = torch.isin(token, self._stop_ids)
            if self._stop_strings is not None:
                stop |= self._stop_strings(tokens[: step + 1, column].T, None)  # type: ignore[arg-type]
            stop &= alive
            ended[column] |= stop
            alive = alive & ~stop & (limit > step + 1)
            if step + 1 == steps:
                break
            if step % look == look - 1:
                if self._watched is not None and self._watched.due():
                    self._report(self._watched, order, tokens[: step + 1], counts, ended | (counts <= step), steps)
                living = int(alive.sum())
                if living == 0:
                    break
                if living <= COMPACT_BELOW * alive.numel():
                    kept = self._rows.compact(alive, living)
                    column, token, position, limit, alive = (x[kept] for x in (column, token, position, limit, alive))
            # A row that has ended stays where it is; what it writes there now, its next turn overwrites.
            logits = self._rows.feed(token[:, None], position[:, None], int(lengths.max()) + step + 1)
            position = position + alive

        self.history.append_turn(order, tokens.T.cpu().numpy(), logprobs.T.cpu().numpy(), counts.cpu().numpy())
        # The last token of a turn has not been fed yet; it goes in together with the observation.
        self._rows.fed(order, self.history.length[order] - 1)
        by_row = np.zeros(len(self.history.length), dtype=bool)
        by_row[order] = ended.cpu().numpy()
        return by_row[rows]

    def _report(
        self,
        watched: WatchedBatch,
        order: np.ndarray,
        tokens: torch.Tensor,
        counts: torch.Tensor,
        over: torch.Tensor,
        steps: int,
    ) -> None:
        """Tell how far a turn is. tokens `[t, n]`, counts and over `[n]` by column; `order` has the row of each."""
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
        """Random numbers of one turn, float64 `[steps, n]`: a row's depend on the seed of its prompt, its place among
        that prompt's rollouts and the turn alone, not on which other rows there are."""
        if self.settings.temperature == 0:
            return None
        drawn = torch.empty(len(order), self.settings.max_turn_tokens, dtype=torch.float64)
        generator = torch.Generator()
        for place, row in enumerate(order.tolist()):
            torch.rand(drawn.shape[1], generator=generator.manual_seed(self._turn_seed(row)), out=drawn[place])
        return drawn[:, :steps].T.contiguous().to(self.decoder.device)

    def _turn_seed(self, row: int) -> int:
        prompt, rollout = divmod(row, self.num_rollouts)
        return turn_seed(self._seeds[prompt], rollout, int(self.history.turns[row]))


def turn_seed(prompt_seed: int, rollout: int, turn: int) -> int:
    """The seed of one turn of one rollout of a prompt, in [0, 2**62)."""
    return seed_of(prompt_seed, rollout, turn)
