"""Selects how a session keeps its rows between forward passes.

Positions, masks and recurrent states depend on the model's code, and most errors there are silent. So each form plays a
short conversation with rows of different lengths. The first form whose log-probs equal those of one plain pass over
each row is used.
"""

from __future__ import annotations

import logging

import numpy as np
import torch

from ..policy.patches import short_windows
from ..policy.precision import computed_in
from ..policy.prepared import inference
from ..policy.sources import first_line
from .cached_rows import CachedRows
from .chat_session import TokenHistory
from .decoder import Decoder, UnsupportedModelError
from .padded_rows import PaddedRows, WholeRows

logger = logging.getLogger(__name__)

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-5}
"""The largest allowed KL divergence from a plain pass, in nats."""
COARSE = 0.1
"""The same in half precision, where log-probs of rare tokens differ more but hardly matter."""
PROMPTS = (5, 9)
ANSWERS = 3
OBSERVATIONS = (2, 6)
"""Lengths in tokens of the test conversation."""


Rows = CachedRows | PaddedRows | WholeRows
RowsOf = type[CachedRows] | type[PaddedRows] | type[WholeRows]
SLOWER: dict[RowsOf, str] = {PaddedRows: "each turn", WholeRows: "each token"}


def fitting_rows(decoder: Decoder) -> RowsOf:
    """Return the fastest form in which the model acts correctly. Raises UnsupportedModelError."""
    allowed = TOLERANCE.get(computed_in(decoder.base), COARSE)
    reasons = []
    for form in (CachedRows, *SLOWER):
        try:
            off = difference(decoder, form)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            logger.info("%s of %s", form.__name__, type(decoder.base).__name__, exc_info=True)
            reasons.append(first_line(error))
            continue
        if off <= allowed:
            if form in SLOWER:
                logger.warning(
                    "%s does not support a cache of rows with different lengths (%s): %s encodes its "
                    "conversations again, which is correct but slower",
                    type(decoder.base).__name__,
                    "; ".join(reasons),
                    SLOWER[form],
                )
            return form
        reasons.append(f"{off:.2g} nats of KL, {allowed:g} allowed" if off == off else "NaN, as from damaged weights")
    raise UnsupportedModelError(
        f"{type(decoder.base).__name__} gives different log-probs when it generates token by token than in one pass "
        f"over the same conversation (on a cache of rows: {reasons[0]}; padded on the left: {reasons[1]}; without a "
        f"cache: {reasons[2]}), so it cannot be trained; choose another model"
    )


def difference(decoder: Decoder, form: RowsOf) -> float:
    """Return the largest KL divergence of a token between acting in `form` and one plain pass, in nats.

    During the test the model's attention windows are shorter than the rows. Raises UnsupportedModelError for cached
    rows if that changes nothing: the model then has its own masks, which the cache may lack.
    """
    with short_windows(decoder.base, min(PROMPTS)) as shorter:
        acted = _conversation(Decoder(decoder.model), form)
        plain = [_plain(decoder, ids) for ids, _ in acted]
    if form is CachedRows and shorter:
        longer = [_plain(decoder, ids) for ids, _ in acted]
        if all(map(torch.equal, plain, longer)):
            raise UnsupportedModelError("its attention window cannot be tested on short rows")
    # torch's maximum is NaN if any value is
    return max(float((p.exp() * (p - q)).sum(-1).max()) for p, (_, q) in zip(plain, acted, strict=True))


def _conversation(decoder: Decoder, form: RowsOf) -> list[tuple[np.ndarray, torch.Tensor]]:
    random = np.random.default_rng(0)
    vocabulary = int(decoder.config.vocab_size)
    prompts = [random.integers(0, vocabulary, n).tolist() for n in PROMPTS]
    history = TokenHistory([prompt for prompt in prompts for _ in range(2)])
    rows = form(decoder, history, 2, 64, None)
    with decoder.sampling(cached=form.cached):
        acted = _turn(decoder, rows, history, np.arange(4), random, vocabulary)
        for row, length in zip((0, 3), OBSERVATIONS, strict=True):
            history.append_observation(row, random.integers(0, vocabulary, length).tolist())
        acted += _turn(decoder, rows, history, np.array([0, 3]), random, vocabulary)
    rows.clear()
    return acted


def _turn(
    decoder: Decoder,
    rows: Rows,
    history: TokenHistory,
    acting: np.ndarray,
    random: np.random.Generator,
    vocabulary: int,
) -> list[tuple[np.ndarray, torch.Tensor]]:
    """Write random tokens as a turn. Returns the tokens of each row and its log-probs [ANSWERS, V] in the turn."""
    order, logits = rows.prepare(acting, int(history.length[acting].max()) + ANSWERS)
    answers = random.integers(0, vocabulary, (len(order), ANSWERS))
    found = [logits]
    for step in range(ANSWERS - 1):
        tokens = torch.as_tensor(answers[:, step], device=decoder.device)[:, None]
        positions = torch.as_tensor(history.length[order] + step, device=decoder.device)[:, None]
        found.append(rows.feed(tokens, positions, int(history.length[order].max()) + step + 1))
    history.append_turn(order, answers, np.zeros(answers.shape, np.float32), np.full(len(order), ANSWERS))
    rows.fed(order, history.length[order] - 1)
    logprobs = torch.stack(found, 1).cpu().double().log_softmax(-1)
    return [(history.arrays(int(row)).token_ids, logprobs[index]) for index, row in enumerate(order)]


def _plain(decoder: Decoder, token_ids: np.ndarray) -> torch.Tensor:
    """Return the log-probs of the vocabulary at each of the last ANSWERS tokens, [ANSWERS, V]."""
    ids = torch.as_tensor(token_ids.astype(np.int64), device=decoder.device)[None]
    with inference(decoder.model):
        logits = decoder.base(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    return logits[0, -ANSWERS - 1 : -1].cpu().double().log_softmax(-1)
