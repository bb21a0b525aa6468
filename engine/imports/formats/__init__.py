"""The formats, most specific first. The first format that recognises a document reads it."""

from __future__ import annotations

from ..format import Format
from .agents import MINI_SWE_AGENT, RLLM, SMOLAGENTS, SWE_AGENT
from .atif import ATIF, HARBOR
from .batches import BATCH, REQUESTS
from .evaluations import HARNESS, PROMPTFOO, TAU, TAU2, TERMINAL_BENCH
from .generic import LOOSE, METRICS, RESPONSES, TENSORBOARD, WANDB_LOG, wandb_table, wrapped, zipped
from .inspect_ai import INSPECT
from .own import OWN, OWN_TABLE
from .sessions import OPENHANDS, SESSIONS
from .span_writers import SPANS
from .tables import AGENTLIGHTNING, AREAL, GENERIC, OPENENV, SKYRL, VERL
from .tinker import TINKER
from .trainers import ART, NEMO_RL, TRACKIO
from .trl import TRAINER_STATE, TRL
from .verifiers import ANNOTATIONS, EPISODES, RESULTS, STREAM_INDEX, TRACES

_ROWS: tuple[Format, ...] = (TRL, VERL, SKYRL, AREAL, AGENTLIGHTNING)
_WRAPPED = wrapped((*_ROWS, *SPANS, *LOOSE))

FORMATS: tuple[Format, ...] = (
    *(OWN, OWN_TABLE),
    *_ROWS,
    *(EPISODES, TRACES, ANNOTATIONS, STREAM_INDEX, RESULTS),
    *(TRAINER_STATE, TENSORBOARD, WANDB_LOG),
    INSPECT,
    *(ATIF, HARBOR),
    ART,
    OPENENV,
    *(MINI_SWE_AGENT, SWE_AGENT, SMOLAGENTS),
    NEMO_RL,
    TRACKIO,
    RLLM,
    TINKER,
    *SPANS,
    *(SESSIONS, OPENHANDS),
    *(TAU, TAU2, TERMINAL_BENCH, HARNESS, PROMPTFOO, RESPONSES, REQUESTS, BATCH),
    wandb_table((*_ROWS, GENERIC)),
    *(zipped(each) for each in (*_ROWS, *LOOSE, _WRAPPED)),
    *LOOSE,
    _WRAPPED,
    METRICS,
)
