"""Finding an environment's class by the name that a dataset row or a config gives it."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from .base import Env


class EnvLoadError(ValueError):
    """An environment cannot be had; the message is one sentence for a person."""


def load_env_class(path: str) -> type[Env]:
    """The class at `package.module.Class`, or `path/to/file.py:Class`.

    Raises EnvLoadError with what is wrong and what would be right.
    """
    if not isinstance(path, str) or not path.strip():
        raise EnvLoadError(f'env_class_path must be "package.module.Class" or "file.py:Class", not {path!r}')
    if ".py:" in path:
        file, _, class_name = path.rpartition(":")
        module = _module_of_file(Path(file).expanduser(), path)
    else:
        module_name, _, class_name = path.rpartition(".")
        if not module_name:
            raise EnvLoadError(f'"{path}" names no module: write "package.module.{path}" or "file.py:{path}"')
        module = _module_by_name(module_name, path)
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
    return found


def make_env(path: str, config: Mapping[str, Any] | None = None, tokenizer: Any = None) -> Env:
    """An instance of the class at `path`, with `config` as keyword arguments. Raises EnvLoadError."""
    found = load_env_class(path)
    if not isinstance(config or {}, Mapping):
        raise EnvLoadError(f'"{path}": env_config must be a mapping of options, not {config!r}')
    try:
        return found(tokenizer=tokenizer, **dict(config or {}))
    except EnvLoadError:
        raise
    except Exception as problem:
        text = " ".join(str(problem).split()) or type(problem).__name__
        raise EnvLoadError(f'"{path}" with env_config {canonical_config(config or {})}: {text}') from problem


def canonical_config(config: Mapping[str, Any] | None) -> str:
    """A config as one string, equal for equal configs whatever the order of their keys. Raises EnvLoadError."""
    try:
        return json.dumps(config or {}, sort_keys=True, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as problem:
        raise EnvLoadError(f"env_config must be plain JSON: {problem}") from problem


def _module_by_name(name: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as problem:
        missing = problem.name or name
        if name == missing or name.startswith(f"{missing}."):
            hint = f"there is no module {missing} here; is it installed, or on PYTHONPATH?"
        else:
            hint = f"{name} needs the module {missing}, which is not installed"
        raise EnvLoadError(f'"{path}": {hint}') from problem
    except Exception as problem:
        raise EnvLoadError(f'"{path}": importing {name} failed: {_one_line(problem)}') from problem


def _module_of_file(file: Path, path: str) -> ModuleType:
    if not file.is_file():
        raise EnvLoadError(f'"{path}": there is no file {file} (looked from {Path.cwd()})')
    file = file.resolve()
    # One module a file, under a name that no package can have; classes then pickle and compare as one.
    name = f"grpo_tui_user_{file.stem}_{hashlib.sha1(str(file).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise EnvLoadError(f'"{path}": {file} is not a Python file')
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as problem:
        del sys.modules[name]
        raise EnvLoadError(f'"{path}": running {file.name} failed: {_one_line(problem)}') from problem
    return module


def _one_line(problem: BaseException) -> str:
    text = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {text}" if text else type(problem).__name__
