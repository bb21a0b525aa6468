"""The error of a dump."""

from __future__ import annotations

from ...configs.errors import GrpoTuiError


class DumpError(GrpoTuiError):
    """A dump, or a part of it, that cannot be read: one sentence with the file and what is wrong."""
