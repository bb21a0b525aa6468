"""The library itself, imported when an environment of it is made."""

from __future__ import annotations

import importlib
from typing import Any

from ...user_code import one_line


def library() -> Any:
    """`verifiers`, untyped: it resolves its names when they are asked for. Raises ValueError where it is not usable."""
    try:
        found = importlib.import_module("verifiers")
        _ = found.Environment
    except (ImportError, AttributeError) as problem:
        raise ValueError(
            f"the environments of verifiers need its versions 0.2.1 to 0.3 ({one_line(problem)}); "
            "pip install 'grpo-tui[verifiers]'"
        ) from problem
    return found
