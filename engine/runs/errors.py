"""The errors of records. Each message is one sentence for the person who asked."""

from __future__ import annotations

from ...configs.errors import GrpoTuiError


class RecordError(GrpoTuiError):
    """Root of the errors of this room. The message is one sentence: the problem, its place, and the right form."""


class RunNotFound(RecordError, LookupError):
    """No run, or more than one, matches a reference. The message names the nearest ids."""

    exit_code = 3


class RecordDamaged(RecordError, OSError):
    """A part of a record cannot be read: damaged, cut off, or of a version that is not understood."""


class RecordVersion(RecordDamaged):
    """A record was written by another version of this program."""


class FilterError(RecordError, ValueError):
    """A filter or search expression cannot be understood. `position` is the offset of the first wrong character."""

    exit_code = 2

    def __init__(self, message: str, position: int = 0) -> None:
        super().__init__(message)
        self.position = position


class QueryInterrupted(RecordError, TimeoutError):
    """A query was stopped because its reader was closed meanwhile."""
