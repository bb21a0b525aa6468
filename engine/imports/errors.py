"""The error of unreadable dumps."""

from __future__ import annotations

from ...configs.errors import GrpoTuiError


class DumpError(GrpoTuiError):
    """A dump, or a part of it, cannot be read. The message names the file and the problem."""
