"""Classes of the user's own, named in the configuration by `package.module.Class` or `path/to/file.py:Class`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from hashlib import blake2b
from pathlib import Path


class PluginError(ValueError):
    """A class could not be loaded; the message says which and why, in one sentence."""


def load_class(path: str) -> type:
    """The class that `path` names. Raises PluginError."""
    module, name = _from_file(path) if ".py:" in path else _from_package(path)
    try:
        found = getattr(module, name)
    except AttributeError:
        raise PluginError(f"{path}: there is no {name} in {module.__name__}") from None
    if not isinstance(found, type):
        raise PluginError(f"{path}: {name} is no class")
    return found


def _from_package(path: str):
    module, _, name = path.rpartition(".")
    if not module:
        raise PluginError(f"{path!r} names no class: write package.module.Class or path/to/file.py:Class")
    try:
        return importlib.import_module(module), name
    except Exception as error:
        raise PluginError(f"{path}: {module} cannot be imported ({type(error).__name__}: {error})") from error


def _from_file(path: str):
    file, _, name = path.rpartition(":")
    source = Path(file).expanduser().resolve()
    if not source.is_file():
        raise PluginError(f"{path}: there is no file {source}")
    # The name is the same in every process and for every load, so that classes of one file are one class.
    module_name = f"_grpo_tui_plugin_{source.stem}_{blake2b(str(source).encode(), digest_size=6).hexdigest()}"
    if module_name in sys.modules:
        return sys.modules[module_name], name
    spec = importlib.util.spec_from_file_location(module_name, source)
    if spec is None or spec.loader is None:
        raise PluginError(f"{path}: {source} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[module_name]
        raise PluginError(f"{path}: the file fails when it is run ({type(error).__name__}: {error})") from error
    return module, name
