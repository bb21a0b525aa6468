"""The formats, the most particular first: the first that knows a document reads it."""

from __future__ import annotations

from ..format import Format
from .generic import Columns, Groups, Metrics, Table
from .tables import AGENTLIGHTNING, AREAL, GENERIC, OPENENV, SKYRL, VERL
from .trl import TrainerState, Trl

_ROWS: tuple[Format, ...] = (Trl(), VERL, SKYRL, AREAL, AGENTLIGHTNING)

FORMATS: tuple[Format, ...] = (
    *_ROWS,
    TrainerState(),
    OPENENV,
    Table((*_ROWS, GENERIC)),
    Columns(),
    Groups(),
    GENERIC,
    Metrics(),
)
BY_NAME: dict[str, Format] = {f.name: f for f in FORMATS}
