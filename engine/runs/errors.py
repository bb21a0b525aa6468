"""The errors of records. Each message is one sentence for the user."""

from __future__ import annotations

from ...configs.errors import GrpoTuiError


class RecordError(GrpoTuiError):
    """The base of this room's errors. The message is one sentence: the problem, its place, and the right form."""


class RunNotFound(RecordError, LookupError):
    """No run, or more than one, matches a reference. The message names the nearest ids."""

    exit_code = 3


class RecordDamaged(RecordError, OSError):
    """A part of a record cannot be read: it is damaged, truncated, or has an unsupported version."""


class RecordVersion(RecordDamaged):
    """Another version of this program wrote the record."""


class FilterError(RecordError, ValueError):
    """A filter or search expression is invalid. `position` is the offset of the first wrong character."""

    exit_code = 2

    def __init__(self, message: str, position: int = 0) -> None:
        super().__init__(message)
        self.position = position


class QueryInterrupted(RecordError, TimeoutError):
    """A query was interrupted because its reader was closed."""
