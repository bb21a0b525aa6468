"""The formats, the most particular first: the first that knows a document reads it."""

from __future__ import annotations

from ..format import Format
from .agents import MiniSweAgent, Rllm, SweAgent
from .atif import Atif, HarborTrials
from .evaluations import BATCH, HARNESS, PROMPTFOO, TAU, TAU2, Pairs
from .generic import Columns, Groups, Metrics, Table, Wrapped
from .inspect_ai import Inspect
from .sessions import OpenHands, Sessions
from .span_writers import SPANS
from .tables import AGENTLIGHTNING, AREAL, GENERIC, OPENENV, SKYRL, VERL
from .tinker import TinkerSummaries
from .trainers import Art, NemoRl, Trackio, Zipped
from .trl import TrainerState, Trl
from .verifiers import Annotations, Episodes, Results, StreamIndex, Traces

_ROWS: tuple[Format, ...] = (Trl(), VERL, SKYRL, AREAL, AGENTLIGHTNING)
_LOOSE: tuple[Format, ...] = (Columns(), Groups(), Pairs(), GENERIC)

FORMATS: tuple[Format, ...] = (
    *_ROWS,
    Episodes(),
    Traces(),
    Annotations(),
    StreamIndex(),
    Results(),
    TrainerState(),
    Inspect(),
    Atif(),
    HarborTrials(),
    Art(),
    OPENENV,
    MiniSweAgent(),
    SweAgent(),
    NemoRl(),
    Trackio(),
    Rllm(),
    TinkerSummaries(),
    *SPANS,
    Sessions(),
    OpenHands(),
    *(TAU, TAU2, HARNESS, PROMPTFOO, BATCH),
    Table((*_ROWS, GENERIC)),
    *(Zipped(each) for each in (*_ROWS, *_LOOSE)),
    *_LOOSE,
    Wrapped((*_ROWS, *_LOOSE)),
    Metrics(),
)
