"""The formats, most specific first. The first format that recognises a document reads it."""

from __future__ import annotations

from ..format import Format
from .agents import MINI_SWE_AGENT, RLLM, SWE_AGENT
from .atif import ATIF, HARBOR
from .evaluations import BATCH, HARNESS, PAIRS, PROMPTFOO, TAU, TAU2, TERMINAL_BENCH
from .generic import (
    BATCHES,
    CONVERSATIONS,
    GROUPS,
    METRICS,
    RESPONSES,
    TENSORBOARD,
    WANDB_LOG,
    renamed,
    wandb_table,
    wrapped,
    zipped,
)
from .inspect_ai import INSPECT
from .own import OWN, OWN_TABLE
from .sessions import OPENHANDS, SESSIONS
from .span_writers import SPANS
from .tables import AGENTLIGHTNING, AREAL, GENERIC, OPENENV, SKYRL, TOKEN_IDS, VERL
from .tinker import TINKER
from .trainers import ART, NEMO_RL, TRACKIO
from .trl import TRAINER_STATE, TRL
from .verifiers import ANNOTATIONS, EPISODES, RESULTS, STREAM_INDEX, TRACES

_ROWS: tuple[Format, ...] = (TRL, VERL, SKYRL, AREAL, AGENTLIGHTNING)
_LOOSE: tuple[Format, ...] = (BATCHES, GROUPS, PAIRS, RESPONSES, TOKEN_IDS, GENERIC, renamed(GENERIC), CONVERSATIONS)
_WRAPPED = wrapped((*_ROWS, *SPANS, *_LOOSE))

FORMATS: tuple[Format, ...] = (
    *(OWN, OWN_TABLE),
    *_ROWS,
    *(EPISODES, TRACES, ANNOTATIONS, STREAM_INDEX, RESULTS),
    *(TRAINER_STATE, TENSORBOARD, WANDB_LOG),
    INSPECT,
    *(ATIF, HARBOR),
    ART,
    OPENENV,
    *(MINI_SWE_AGENT, SWE_AGENT),
    NEMO_RL,
    TRACKIO,
    RLLM,
    TINKER,
    *SPANS,
    *(SESSIONS, OPENHANDS),
    *(TAU, TAU2, TERMINAL_BENCH, HARNESS, PROMPTFOO, RESPONSES, BATCH),
    wandb_table((*_ROWS, GENERIC)),
    *(zipped(each) for each in (*_ROWS, *_LOOSE, _WRAPPED)),
    *_LOOSE,
    _WRAPPED,
    METRICS,
)
