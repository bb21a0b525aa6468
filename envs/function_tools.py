"""Plain Python functions as tools. As in TRL, signature, type hints and docstring form the declaration.

`transformers.utils.get_json_schema` requires a type hint and a line in a Google-style docstring for every argument.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeGuard

from ..configs.sections.environment import MCP
from .base import Picture, StepResult
from .content import IMAGE_SIGN
from .guard import awaited, wait
from .loading import EnvLoadError
from .tools import ANSWER, ToolSpec, tool_of_schema
from .user_code import UserCodeError, find_object, one_line

if TYPE_CHECKING:
    from PIL.Image import Image

    from .plugins.mcp import McpTool

EXAMPLE = '''
def search(query: str) -> str:
    """
    Search the notes.

    Args:
        query: What to look for.
    """'''


@dataclass(frozen=True)
class FunctionTool:
    """A function with its tool declaration."""

    spec: ToolSpec
    call: Callable[..., object]

    def run(self, arguments: Mapping[str, object]) -> StepResult:
        """Call the function. The policy reads an exception as a tool error, and the rollout continues."""
        try:
            result = self.call(**arguments)
            if inspect.isawaitable(result):
                result = wait(awaited(result))  # on one loop for all calls, to which a client of the tool is bound
            elif isinstance(result, Iterator):
                result = list(result)
        except Exception as problem:
            text = one_line(problem)
            return StepResult(f"error: {text}", error=text)
        try:
            text, images = _shown(result)
        except (TypeError, ValueError, RecursionError) as problem:
            error = f"the tool returned a value that cannot be written as JSON: {one_line(problem)}"
            return StepResult(f"error: {error}", error=error)
        return StepResult(text, images=images)


def _shown(result: object) -> tuple[str, tuple[Picture, ...]]:
    """Return a result as text for the policy, and the images in it."""
    images: list[Picture] = []
    parts = result if isinstance(result, (list, tuple)) and any(map(_is_image, result)) else [result]
    texts = [
        part if isinstance(part, str) else json.dumps(part, ensure_ascii=False, default=partial(_plain, images))
        for part in parts
        if not (_is_image(part) and images.append(_picture(part)) is None)
    ]
    return "\n".join(texts), tuple(images)


def _is_image(value: object) -> TypeGuard[Image]:
    """Detect a Pillow image without importing Pillow, which not every tool needs."""
    return hasattr(value, "getbands") and hasattr(value, "convert")


def _picture(image: Image) -> Picture:
    import numpy as np

    pixels = np.asarray(image.convert("RGB"))
    name = hashlib.blake2b(pixels.tobytes() + repr(pixels.shape).encode(), digest_size=8).hexdigest()
    return Picture(f"tool-{name}", lambda: pixels)


def _plain(images: list[Picture], value: object) -> object:
    """Convert an object that JSON does not support to its data, never its address. Images go into `images`."""
    if _is_image(value):
        images.append(_picture(value))
        return IMAGE_SIGN
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    for method in ("model_dump", "tolist", "isoformat"):  # pydantic; numpy and torch; dates
        if callable(found := getattr(value, method, None)) and not isinstance(value, type):
            return found()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    if isinstance(value, Iterator):
        return list(value)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, type) or callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    if type(value).__str__ is object.__str__ and type(value).__repr__ is object.__repr__:
        named = {name: each for name, each in getattr(value, "__dict__", {}).items() if not name.startswith("_")}
        return named or type(value).__qualname__
    return str(value)


def load_tools(paths: Sequence[str]) -> tuple[FunctionTool | McpTool, ...]:
    """Load functions (`file.py:name`, `package.module.name`) and MCP servers' tools (`mcp:…`). Raises EnvLoadError."""
    tools: list[FunctionTool | McpTool] = []
    for path in paths:
        if path.startswith(MCP):
            from .plugins.mcp import load_mcp_tools

            tools += load_mcp_tools(path)
        else:
            tools.append(load_tool(path))
    names = [tool.spec.name for tool in tools]
    for name in names:
        if names.count(name) > 1:
            raise EnvLoadError(f"two tools are named {name}: rename one")
    if ANSWER.name in names:
        raise EnvLoadError(f"a tool is called {ANSWER.name}, which ends a task: rename it")
    return tuple(tools)


def load_tool(path: str) -> FunctionTool:
    """Load one function as a tool. Raises EnvLoadError if its declaration is invalid."""
    try:
        module, function = find_object(path)
    except UserCodeError as problem:
        raise EnvLoadError(f"environment.tools: {problem}") from problem
    if not callable(function) or inspect.isclass(function):
        where = path.rpartition(":")[0] or module.__name__
        raise EnvLoadError(f'environment.tools: "{path}": {where} has no function {path.rpartition(":")[2]}')
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise EnvLoadError(f'tool "{path}": a policy cannot pass `{parameter}`; declare each argument by name')
        if parameter.annotation is parameter.empty:
            raise EnvLoadError(
                f'tool "{path}": the argument {parameter.name} has no type hint; write {parameter.name}: str, or '
                "another of int, float, bool, list, dict"
            )
    if not (function.__doc__ or "").strip():
        raise EnvLoadError(f'tool "{path}" has no docstring, which describes the tool to the policy')
    from transformers.utils.chat_template_utils import get_json_schema

    try:
        declared = get_json_schema(function)["function"]
    except Exception as problem:  # DocstringParsingException, TypeHintParsingException, and what a hint may raise
        reason, example = one_line(problem).partition(": ")[2].rstrip("."), " ".join(EXAMPLE.split())
        raise EnvLoadError(f'tool "{path}" cannot be declared: {reason}; write it as in {example}') from problem
    for name, schema in declared.get("parameters", {}).get("properties", {}).items():
        if not all(isinstance(choice, str) for choice in schema.get("enum") or ()):
            raise EnvLoadError(f'tool "{path}": the choices of {name} must be strings')
    spec = tool_of_schema(declared["name"], "", declared.get("parameters"))
    return FunctionTool(replace(spec, description=declared["description"]), function)
