"""What libraries do again and again with one and the same result is done once a process."""

from __future__ import annotations

import gc
import importlib
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from jinja2 import Environment


def compile_templates_once() -> None:
    """Each folder of adapters gets a model card, always of one template."""
    Environment.compile = cache(Environment.compile)  # type: ignore[method-assign]


def lighten_trainings() -> None:
    """Accelerate reads the metadata of PEFT's package whenever it unwraps a model, and whenever a training starts it
    looks at every object of the process for garbage: Python's own collections are enough for small models, and they
    need not look at torch's own objects."""
    from accelerate.utils import imports, memory

    imports._is_package_available = cache(imports._is_package_available)
    memory.gc = SimpleNamespace(collect=lambda: 0)  # type: ignore[attr-defined]
    lighten_libraries()
    gc.freeze()


def lighten_strips() -> None:
    """Each line that Textual paints has seven small caches, and makes them before it needs one. A dictionary does."""
    from textual import strip

    strip.FIFOCache = lambda maxsize: {}  # type: ignore[assignment, misc]


def parse_styles_once() -> None:
    """Every app parses the same styles, and does not change what it parsed."""
    stylesheet: Any = importlib.import_module("textual.css.stylesheet")

    parse, tokens_of = stylesheet.parse, stylesheet.tokenize_values
    tokens: dict[frozenset[tuple[str, str]], Any] = {}
    rules: dict[tuple[Any, ...], list[Any]] = {}

    def tokens_once(variables: Mapping[str, str]) -> Any:
        key = frozenset(variables.items())
        if key not in tokens:
            tokens[key] = tokens_of(dict(variables))
        return tokens[key]

    def rules_once(*css: Any, variable_tokens: Any, **more: Any) -> list[Any]:
        key = (*css, id(variable_tokens), *more.items())
        if key not in rules:
            rules[key] = list(parse(*css, variable_tokens=variable_tokens, **more))
        return rules[key]

    stylesheet.tokenize_values = tokens_once
    stylesheet.parse = rules_once


def lighten_libraries() -> None:
    """Of the libraries that are loaded."""
    if "torch" in sys.modules:
        forget_callers(sys.modules["torch"])
    for name in {"httpx", "httpx2"} & sys.modules.keys():
        read_certificates_once(name)


def folder_of(files: Mapping[str, bytes], folder: Path) -> None:
    """Write what `files_of` has read."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def files_of(save: Callable[[Path], None]) -> dict[str, bytes]:
    """What a function saves into a folder, for folders that are made again and again."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save(folder)
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read_certificates_once(name: str) -> None:
    """Each client reads all certificates that the machine trusts, which costs more than an answer of this machine."""
    transports = importlib.import_module(f"{name}._transports.default")
    transports.create_ssl_context = cache(transports.create_ssl_context)  # type: ignore[attr-defined]


def forget_callers(torch: ModuleType) -> None:
    """Whenever torch's seed is set, three kinds of devices that are not there keep the stack of who asked."""
    for device in (torch.cuda, torch.mtia, torch.xpu):
        device.traceback = SimpleNamespace(format_stack=list)  # type: ignore[attr-defined]


def lighten_wandb() -> None:
    """When a run begins, wandb imports all of its launcher, which takes two seconds."""
    from wandb.sdk.wandb_run import Run

    Run._detect_and_apply_job_inputs = lambda self: None  # type: ignore[method-assign]
