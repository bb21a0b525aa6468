"""Modules of the user's own, named by `package.module.Class` or `path/to/file.py:Class` in data and configuration."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from ..configs.errors import GrpoTuiError


class UserCodeError(GrpoTuiError, ValueError):
    """A module or class of the user's cannot be had; the message is one sentence for a person."""


def find_module(path: str) -> tuple[ModuleType, str]:
    """The module that `path` names, imported, and the name of the class in it. Raises UserCodeError.

    A file is imported once, whatever is taken from it.
    """
    if ".py:" in path:
        file, _, class_name = path.rpartition(":")
        return _module_of_file(Path(file).expanduser(), path), class_name
    module_name, _, class_name = path.rpartition(".")
    if not module_name:
        raise UserCodeError(f'"{path}" names no module: write "package.module.{path}" or "file.py:{path}"')
    return _module_by_name(module_name, path), class_name


def find_class(path: str) -> type:
    """The class that `path` names. Raises UserCodeError."""
    module, name = find_module(path)
    found = getattr(module, name, None)
    if found is None:
        raise UserCodeError(f'"{path}": {module.__name__} has no class {name}')
    if not isinstance(found, type):
        raise UserCodeError(f'"{path}": {name} is no class')
    return found


def _module_by_name(name: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as problem:
        missing = problem.name or name
        if name == missing or name.startswith(f"{missing}."):
            hint = f"there is no module {missing} here; is it installed, or on PYTHONPATH?"
        else:
            hint = f"{name} needs the module {missing}, which is not installed"
        raise UserCodeError(f'"{path}": {hint}') from problem
    except (Exception, SystemExit) as problem:
        raise UserCodeError(f'"{path}": importing {name} failed: {one_line(problem)}') from problem


def _module_of_file(file: Path, path: str) -> ModuleType:
    if not file.is_file():
        raise UserCodeError(f'"{path}": there is no file {file} (looked from {Path.cwd()})')
    file = file.resolve()
    # One module a file, under a name that no package can have; classes then pickle and compare as one.
    name = f"grpo_tui_user_{file.stem}_{hashlib.sha1(str(file).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UserCodeError(f'"{path}": {file} is not a Python file')
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as problem:
        del sys.modules[name]
        raise UserCodeError(f'"{path}": running {file.name} failed: {one_line(problem)}') from problem
    return module


def one_line(problem: BaseException) -> str:
    """An exception as one line: its type and its message."""
    text = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {text}" if text else type(problem).__name__
