"""The error of unreadable dumps."""

from __future__ import annotations

from ...configs.errors import GrpoTuiError


class DumpError(GrpoTuiError):
    """A dump, or a part of it, cannot be read. The message names the file and the problem."""


def reason_of(error: Exception) -> str:
    """Return the message of an error, without the number and the path of the system's errors."""
    return getattr(error, "strerror", None) or str(error)
