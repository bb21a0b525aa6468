"""Record verifiers rollouts (0.4) as they end: `on_complete=grpo_tui.verifiers.on_complete(record)`.

    with Recorder("my-eval") as record:
        hook = grpo_tui.verifiers.on_complete(record)
        await asyncio.gather(*(env.run_slot(slot, ctx, semaphore, hook) for slot in env.slots(task, n)))

The nodes of a trace become turns, with scores, weights, token ids and per-token advantages.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from grpo_tui.engine.imports.format import Origin
from grpo_tui.engine.imports.formats.verifiers import EPISODES
from grpo_tui.engine.imports.rollout import Rollout
from grpo_tui.recorder import Recorder

_NOWHERE = Origin(Path("verifiers"), Path())


OnComplete = Callable[[Any], Awaitable[None]]


def on_complete(recorder: Recorder, then: OnComplete | None = None, *, step: int = 0) -> OnComplete:
    """Return a hook for `run_slot` that records each finished episode and then calls `then`, your own hook.

    step: the training step for episodes that do not name one. An episode is verifiers' `Episode`, a pydantic model.
    """
    recorder.no_rollouts = recorder.no_rollouts or "no episode of verifiers has ended"

    async def record(episode: Any) -> None:
        try:
            text = episode.model_dump_json(exclude_none=True)  # now, because the episode may change afterwards
            recorder.later(lambda: _store(recorder, text, step), 1)
        except Exception as error:
            recorder.failed(error, rows=1)
        if then is not None:
            await then(episode)

    return record


def _store(recorder: Recorder, text: str, step: int) -> None:
    rollouts = [found for found in EPISODES.open(json.loads(text), _NOWHERE) if isinstance(found, Rollout)]
    if not rollouts:
        raise ValueError("an episode of verifiers has no traces")
    for rollout in rollouts:
        recorder.rollouts(step if rollout.step is None else rollout.step, [rollout])
