"""The environment, its tasks and its reward functions."""

from __future__ import annotations

import os
import re
from typing import Any, Literal

from pydantic import Field, field_validator

from .base import Section

_NAME = r"[A-Za-z_]\w*"
_FUNCTION = re.compile(rf"(?:(?:[A-Za-z]:)?[^:]+\.py:{_NAME}(?:\.{_NAME})*|{_NAME}(?:\.{_NAME})+)")


MCP = "mcp:"
"""The prefix of an MCP server."""


class EnvironmentConfig(Section):
    """The environment. It generates its own tasks (`Env.make_tasks`) or takes them from `data.source`."""

    class_path: str = "grpo_tui.engine.demonstration.visual.VisualEnv"
    """`package.module.Class`, `path/to/file.py:Class`, or a plugin: `verifiers`, `openenv`, `textarena`, `gymnasium`,
    `reasoning-gym`."""
    config: dict[str, Any] = Field(default_factory=dict)
    train_tasks: int = Field(default=2048, ge=1)
    """Number of training tasks that the environment generates."""
    eval_tasks: int = Field(default=128, ge=0)
    """Number of held-out tasks for measuring success."""
    reward_funcs: dict[str, float] = Field(default_factory=dict)
    """Reward functions (with TRL's signature) and reward models (classifiers with one label: a folder, or a hub id with
    a slash), each with its weight, such as `rewards.py:accuracy: 1.0`. Each is a reward component under its own name.
    The first also determines success (`success_score`)."""
    tools: list[str] = Field(default_factory=list)
    """Tools for a dataset's tasks: Python functions such as `tools.py:search`, declared by their type hints and
    docstring, and MCP servers, given by a command (`mcp:python server.py`) or a URL (`mcp:http://127.0.0.1:9000/mcp`).
    With tools, a turn without a call is the answer."""
    success_score: float | None = None
    """Minimum score of the first reward function for an answer to count as correct, if the environment itself does not
    decide. null: 1 while that function returns only 0 and 1. With graded rewards, success is then undefined."""
    reward_errors: Literal["stop", "skip"] = "stop"
    """How to handle a reward function that raises or returns an invalid score. `stop`: end the run. `skip`: leave out
    the score."""
    turn_timeout_s: float = Field(default=30.0, gt=0)
    """Maximum duration of one `step` of the environment in seconds. A rollout that exceeds it is abandoned."""

    @field_validator("tools")
    @classmethod
    def _tools(cls, value: list[str]) -> list[str]:
        for path in value:
            if not path.startswith(MCP):
                check_function(path)
            elif not path.removeprefix(MCP).strip():
                raise ValueError(
                    f'{path!r} names no server: write "mcp:python server.py" or "mcp:http://127.0.0.1:9000/mcp"'
                )
        return value

    @field_validator("reward_funcs", mode="before")
    @classmethod
    def _listed(cls, value: object) -> Any:
        """Accept a list, or one text, of `function` or `function:weight` in place of the mapping."""
        if isinstance(value, str):
            value = [value]
        if not isinstance(value, list):
            return value
        weighted = [weighted_function(text) for text in value]
        paths = [path for path, _ in weighted]
        twice = next((path for path in paths if paths.count(path) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice} is listed twice; list it once, with its weight: {twice}:0.5")
        return dict(weighted)

    @field_validator("reward_funcs")
    @classmethod
    def _functions(cls, value: dict[str, float]) -> dict[str, float]:
        names: dict[str, str] = {}
        for path in value:
            if not is_reward_model(path):
                check_function(path)
            name = function_name(path)
            if name in names:
                raise ValueError(
                    f"{names[name]} and {path} are both named {name}: import one under another name in your own file, "
                    "and use that"
                )
            names[name] = path
        return value


def is_reward_model(path: str) -> bool:
    """Return whether a reward is a model (a folder or a hub id) rather than a function."""
    if _FUNCTION.fullmatch(path) or path.endswith(".py"):
        return False
    return os.path.basename(path) != path or os.path.isdir(path)


def function_name(path: str) -> str:
    """Return the name of the function in `file.py:name` or `package.module.name`, or of a model."""
    return os.path.basename(os.path.normpath(path)) if is_reward_model(path) else re.split(r"[.:]", path)[-1]


def weighted_function(text: Any) -> tuple[str, float]:
    """Split `file.py:name` or `file.py:name:0.2` into the function and its weight (1 by default).

    Raises ValueError if the weight is not a number.
    """
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is not a reward function: write file.py:name or package.module.name")
    path, colon, weight = text.rpartition(":")
    if not colon or path.endswith(".py"):
        return text, 1.0
    try:
        return path, float(weight)
    except ValueError:
        raise ValueError(
            f"{text!r}: the weight {weight!r} is not a number: write file.py:name:0.5, or leave it out for 1"
        ) from None


def check_function(path: str) -> None:
    """Raise ValueError for an invalid name of a function."""
    if path.endswith(".py"):
        raise ValueError(f"{path!r} is a file without the name of a function: write {path}:name")
    if not _FUNCTION.fullmatch(path):
        raise ValueError(f"{path!r} names no function: write file.py:name or package.module.name")
