"""Load users' modules, named `package.module.Class` or `path/to/file.py:Class` in data and configuration."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from ..configs.errors import GrpoTuiError
from .calls import clean_text

_IMPORTING = ("<frozen importlib", os.path.dirname(importlib.__file__))
"""Files of stack frames that belong to the import system."""


class _WorkingFolder:
    """Imports from the working directory, or from the folder of a named file. Neither is on `sys.path`, where a folder
    `vllm` or `wandb` would shadow the package.

    It serves only modules that the configuration names, and imports by code in this folder. before: take precedence
    over an installed module of the same name, else serve only names that are not found elsewhere.
    """

    def __init__(self, folder: str, *, before: bool) -> None:
        self.folder = folder
        self.before = before
        self.named: set[str] = set()

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if path is not None or not (name in self.named or (not self.before and self._imported_from_here())):
            return None
        spec = PathFinder.find_spec(name, [self.folder])
        return spec if spec is not None and (spec.has_location or not self.before) else None

    def _imported_from_here(self) -> bool:
        """Return whether the import comes from code in this folder, not from a library installed below it."""
        frame = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename.startswith(_IMPORTING):
            frame = frame.f_back
        file = "" if frame is None else frame.f_code.co_filename
        installed = [os.path.abspath(p) for p in sys.path if p and os.path.abspath(p) != self.folder]
        return _is_below(file, self.folder) and not any(_is_below(file, p) for p in installed)


def _is_below(file: str, folder: str) -> bool:
    return file.startswith(os.path.join(folder, ""))


@cache
def _working_folder(folder: str) -> tuple[_WorkingFolder, _WorkingFolder]:
    first, last = _WorkingFolder(folder, before=True), _WorkingFolder(folder, before=False)
    sys.meta_path.insert(0, first)
    sys.meta_path.append(last)
    return first, last


class UserCodeError(GrpoTuiError, ValueError):
    """A user's module or class cannot be loaded. The message is one sentence for people."""


def find_module(path: str) -> tuple[ModuleType, str]:
    """Import the module that `path` names. Returns it and the name of the class in it. Raises UserCodeError.

    Each file is imported once.
    """
    finders = _working_folder(os.getcwd())
    if ".py:" in path:
        file, _, class_name = path.rpartition(":")
        return _module_of_file(Path(file).expanduser(), path), class_name
    module_name, _, class_name = path.rpartition(".")
    if not module_name:
        raise UserCodeError(f'"{path}" names no module: write "package.module.{path}" or "file.py:{path}"')
    for finder in finders:
        finder.named.add(module_name.partition(".")[0])
    try:
        return _module_by_name(module_name, path), class_name
    except UserCodeError:
        parent, _, name = module_name.rpartition(".")
        if not hasattr(sys.modules.get(parent), name):
            raise
        return sys.modules[parent], f"{name}.{class_name}"  # an attribute of an object in that module


def find_object(path: str) -> tuple[ModuleType, object | None]:
    """Return the module that `path` names and the object in it, or None if it lacks the object. The name may be dotted
    (`file.py:notes.search`). Raises UserCodeError."""
    module, names = find_module(path)
    found: object | None = module
    for name in names.split("."):
        found = getattr(found, name, None)
    return module, found


def find_class(path: str) -> type:
    """Return the class that `path` names. Raises UserCodeError."""
    module, found = find_object(path)
    name = path.rpartition(":")[2].rpartition(".")[2]
    if found is None:
        raise UserCodeError(f'"{path}": {module.__name__} has no class {name}')
    if not isinstance(found, type):
        raise UserCodeError(f'"{path}": {name} is not a class')
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
    # One module per file, under a name that no package can have, so that its classes pickle and compare as equal.
    name = f"grpo_tui_user_{file.stem}_{hashlib.sha1(str(file).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    _working_folder(str(file.parent))
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
    """Format an exception as one line: its type and, if `str` works, its message."""
    try:
        text = clean_text(" ".join(str(problem).split()))
    except Exception:
        text = ""
    return f"{type(problem).__name__}: {text}" if text else type(problem).__name__
