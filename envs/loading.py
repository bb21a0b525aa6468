"""Find an environment's class by its name in a dataset row or a configuration.

`python -m grpo_tui.envs.loading CONFIG` loads a configuration's environment and prints the error, if any.
"""

from __future__ import annotations

import difflib
import inspect
import json
import sys
from collections.abc import Mapping

from ..configs.errors import GrpoTuiError
from .base import Env
from .plugins import PLUGINS
from .tools import TYPES, Argument, ToolSpec
from .user_code import UserCodeError, find_module


class EnvLoadError(GrpoTuiError, ValueError):
    """An environment cannot be loaded. The message is one sentence for people."""


def load_env_class(path: str) -> type[Env]:
    """Load the class at `package.module.Class` or `path/to/file.py:Class`, or a plugin by name (`verifiers`).

    Raises EnvLoadError. Its message gives the correct form.
    """
    if not isinstance(path, str) or not path.strip():
        raise EnvLoadError(f'env_class_path must be "package.module.Class" or "file.py:Class", not {path!r}')
    try:
        module, class_name = find_module(PLUGINS.get(path, path))
    except UserCodeError as problem:
        raise EnvLoadError(str(problem)) from problem
    found = getattr(module, class_name, None)
    if found is None:
        names = [
            n
            for n, c in vars(module).items()
            if inspect.isclass(c) and issubclass(c, Env) and c.__module__ == module.__name__
        ]
        near = difflib.get_close_matches(class_name, names, 1, 0.5)
        hint = f'; did you mean "{near[0]}"?' if near else f"; it has {', '.join(names)}" if names else ""
        raise EnvLoadError(f'"{path}": {module.__name__} has no class {class_name}{hint}')
    if not inspect.isclass(found) or not issubclass(found, Env):
        raise EnvLoadError(f'"{path}" is not an environment: it must be a subclass of grpo_tui.envs.MultiTurnEnv')
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise EnvLoadError(f'"{path}" cannot be used: it does not define {missing}')
    for tool in found.tools if isinstance(found.tools, tuple | list) else ():
        if not isinstance(tool, ToolSpec):
            raise EnvLoadError(f'"{path}": tools must be a tuple of ToolSpec, but one is {tool!r}')
        wrong = [a for a in tool.arguments if not isinstance(a, Argument) or a.type not in TYPES]
        if wrong:
            right = f"Argument(name, type) with a type among {', '.join(TYPES)}"
            given = getattr(wrong[0], "type", wrong[0])
            raise EnvLoadError(f'"{path}": an argument of the tool {tool.name} must be {right}, not {given!r}')
    return found


def make_env(path: str, config: Mapping[str, object] | None = None, tokenizer: object = None) -> Env:
    """Create an instance of the class at `path`, with `config` as keyword arguments. Raises EnvLoadError."""
    found = load_env_class(path)
    if not isinstance(config or {}, Mapping):
        raise EnvLoadError(f'"{path}": env_config must be a mapping of options, not {config!r}')
    try:
        return found(tokenizer=tokenizer, **dict(config or {}))
    except EnvLoadError:
        raise
    except (Exception, SystemExit) as problem:
        text = " ".join(str(problem).split()) or type(problem).__name__
        raise EnvLoadError(f'"{path}" with env_config {canonical_config(config or {})}: {text}') from problem


def canonical_config(config: Mapping[str, object] | None) -> str:
    """Serialise a config to a string that does not depend on the order of keys. Raises EnvLoadError."""
    try:
        return json.dumps(config or {}, sort_keys=True, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as problem:
        raise EnvLoadError(f"env_config must be plain JSON: {problem}") from problem


if __name__ == "__main__":
    from ..configs.loading import load_config

    try:
        load_env_class(load_config(sys.argv[1]).environment.class_path)
    except EnvLoadError as problem:
        sys.exit(" ".join(str(problem).split()))
