"""A training whose rollouts are made on servers: what they do is recorded, and losing them costs no step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...configs.errors import GrpoTuiError
from ..agents.remote.agent import RemoteAgent
from ..agents.remote.news import event_of
from ..record.step_recorder import StepRecorder
from .env_trainer import GRPOEnvTrainer


@contextmanager
def served(trainer: GRPOEnvTrainer, recorder: StepRecorder) -> Iterator[None]:
    """For the time of a training. Where the servers end it, the present step is saved before that is said."""
    agent = trainer.agent
    if not isinstance(agent, RemoteAgent):
        yield
        return

    def tell(sentence: str, good: bool) -> None:
        kind, facts = event_of(good)
        recorder.event(kind, sentence, step=trainer.state.global_step, **facts)

    agent.pool.tell = tell
    try:
        yield
    except GrpoTuiError:
        if trainer.checkpoint_of(trainer.state.global_step) is None and trainer.state.global_step:
            trainer.save_checkpoint()
            trainer.tell_saved()
        raise
    finally:
        agent.close()
