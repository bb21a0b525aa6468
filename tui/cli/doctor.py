"""`grpo-tui doctor`: check the installation, and print how to get the missing parts."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from ...engine.launch import trainer
from ...engine.launch.trainer import Fact
from .common import ExitCode, Home, SetOption, ask, fail, say

GIB = 1024**3


def doctor(
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Print only the memory that training this model needs (a hub id, a folder or a preset).",
        ),
    ] = None,
    server: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Check whether this server can make rollouts. Can be repeated."),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Check whether a Redis server can keep the queue of online runs. Give its URL, or the environment "
            "variable that holds it.",
        ),
    ] = None,
    set_: SetOption = None,
    *,
    home: Home,
) -> None:
    """Check versions, devices, disk and terminal, and print how to get missing parts."""
    if server:
        from ...engine.launch.rollout_servers import check_server
        from .config import load

        key = os.environ.get(load(None, set_).rollouts.api_key_env)
        _tell((fact for url in server for fact in check_server(url, key)), "ready for rollouts")
        return
    if queue is not None:
        from ...engine.launch.redis_server import check_redis

        url = queue if "://" in queue else os.environ.get(queue)
        if url is None:
            fail(f"--queue: {queue} is neither a URL nor an environment variable that is set", ExitCode.USAGE)
        _tell(check_redis(url), "this server can keep the queue of online runs")
        return
    if model is not None:
        _memory(model, set_)
        return

    _tell(_findings(home), "everything for training is available")


def _tell(findings: Iterable[Fact], nothing_missing: str) -> None:
    """Print one line per finding. Exit with 1 if a part is missing."""
    missing = 0
    for finding in findings:
        mark = {"good": "✓", "note": "·", "missing": "✗"}[finding.state]
        say(f"{mark} {finding.text}" + (f"; {finding.cure}" if finding.cure else ""))
        missing += finding.state == "missing"
    if missing:
        say(f"{missing} requirement{'s' if missing > 1 else ''} missing")
        raise typer.Exit(ExitCode.FAILED)
    say(nothing_missing)


def _memory(model: str, set_: list[str] | None) -> None:
    """Print the memory that the model needs, from its config. A separate process reads it."""
    from ...configs.loading import presets
    from .config import chosen_lines, load

    preset = model.removesuffix(".yaml")
    source, options = (preset, {}) if preset in presets() else (None, {"model.base": ("--model", model)})
    config = load(source, set_, options=options)
    answer = ask("grpo_tui.engine.policy.memory", config)
    say(f"to train {config.model.base} (only its config is downloaded):")
    for line in [*answer.splitlines(), *chosen_lines(config, source, set_, options)]:
        say(line)


def _findings(home: Path) -> Iterator[Fact]:
    from importlib import metadata  # imported here, because it takes as long as listing runs

    yield Fact(
        "good", f"grpo-tui {metadata.version('grpo-tui')}, Python {platform.python_version()}, {platform.platform()}"
    )
    yield from packages()
    yield from devices()
    yield disk(home)
    yield from terminal()
    yield from services()


def packages() -> Iterator[Fact]:
    """Yield every requirement of the package with the installed version; those of the trainer if any of it is
    installed."""
    from importlib import metadata

    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    light = trainer.missing() == list(trainer.LIBRARIES)
    if light:
        yield Fact("missing", "the trainer is not installed (runs can be read without it)", trainer.INSTALL)
    absent: dict[str, list[str]] = {}
    for line in metadata.requires("grpo-tui") or ():
        requirement = Requirement(line)
        found = re.search(r"extra == ['\"]([^'\"]+)", line)
        extra = found.group(1) if found else ""
        needed = extra == "" or (extra == "train" and not light)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name, advice = requirement.name, f"pip install '{requirement.name}{requirement.specifier}'"
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            if needed:
                yield Fact("missing", f"{name} is not installed", advice)
            else:
                absent.setdefault(extra, []).append(name)
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            state = "missing" if needed else "note"
            yield Fact(state, f"{name} {version}, but {requirement.specifier} is needed", advice)
        elif needed:
            yield Fact("good", f"{name} {version}")
            if name == "transformers" and not SpecifierSet(">=5.23").contains(version, prereleases=True):
                yield Fact(
                    "note", "policies that read images need transformers 5.23", "pip install 'transformers>=5.23'"
                )
    for extra, names in absent.items():
        if extra not in ("train", "test"):
            yield Fact("note", f"optional {', '.join(names)} not installed", f"pip install 'grpo-tui[{extra}]'")


_DEVICES = """
import json, torch
gpus = []
for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
    memory = torch.cuda.get_device_properties(i).total_memory
    gpus.append(dict(name=torch.cuda.get_device_name(i), memory=memory, bf16=torch.cuda.is_bf16_supported()))
try:
    import onnxruntime, skimage, scipy
    from grpo_tui.engine.demonstration.visual.operations.ocr import model_path
    model_path()
    tools = ""
except (ImportError, RuntimeError) as error:
    tools = str(error)
built = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}
cuda = next((f"{name} {version}" for name, version in built.items() if version), "")
print(json.dumps(dict(tools=tools, gpus=gpus, cuda=cuda, mps=torch.backends.mps.is_available())))
"""


def devices() -> Iterator[Fact]:
    """Yield processors, memory and accelerators. A separate process asks torch: this program never loads it."""
    import psutil

    memory = psutil.virtual_memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Fact("good", f"{cores} CPU cores, {memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB memory free")
    if trainer.missing():
        return
    try:
        answer = subprocess.run(
            [sys.executable, "-P", "-c", _DEVICES], capture_output=True, text=True, timeout=120, check=True
        )
        found = json.loads(answer.stdout.strip().splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        yield Fact(
            "missing", f"torch does not load: {lines[-1] if lines else error}", "pip install --force-reinstall torch"
        )
        return
    if found["tools"]:
        advice = "pip install --force-reinstall scikit-image onnxruntime rapidocr"
        yield Fact("missing", f"the tools of the visual environment do not load: {found['tools']}", advice)
    for gpu in found["gpus"]:
        bf16 = "bfloat16" if gpu["bf16"] else "no bfloat16"
        yield Fact("good", f"GPU {gpu['name']}, {gpu['memory'] / GIB:.0f} GiB, {found['cuda']}, {bf16}")
    if found["mps"]:
        yield Fact("note", "the GPU of Apple silicon is not used by default", "--set model.device=mps")
    if not found["gpus"] and not found["mps"]:
        tool = "nvidia-smi" if "CUDA" in found["cuda"] else "rocm-smi"
        hint = f" (torch is built for {found['cuda']} but finds no device: see {tool})" if found["cuda"] else ""
        yield Fact("note", f"no GPU{hint}", "the built-in tiny policy trains on a CPU, larger models need a GPU")


def disk(home: Path) -> Fact:
    """Return the free space for runs, and whether they can be written."""
    from ...engine.runs.paths import network_file_system

    existing = next(p for p in (home, *home.parents) if p.exists())
    free = shutil.disk_usage(existing).free / GIB
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        return Fact("missing", f"runs cannot be written to {home}", "set GRPO_TUI_HOME or give --runs-dir")
    if kind := network_file_system(existing):
        advice = "while a run is active, open it on the machine that trains, or set GRPO_TUI_HOME to a local folder"
        return Fact("note", f"runs in {home} are on a network file system ({kind})", advice)
    if free < 2:
        return Fact("note", f"only {free:.1f} GiB free for runs in {home}", "free some space, or set GRPO_TUI_HOME")
    return Fact("good", f"runs in {home}, {free:.0f} GiB free")


def terminal() -> Iterator[Fact]:
    """Yield the abilities of the terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        yield Fact("note", "no terminal", "`train` prints plain lines, and scripts can use `inspect RUN --json`")
        return
    columns, rows = shutil.get_terminal_size()
    through = [n for n, k in (("tmux", "TMUX"), ("ssh", "SSH_CONNECTION")) if os.environ.get(k)]
    via = f" through {' and '.join(through)}" if through else ""
    name = os.environ.get("TERM", "")
    yield Fact("good", f"terminal {name}{via}, {columns} × {rows}")
    if columns < 80 or rows < 24:
        yield Fact(
            "note",
            f"the app is designed for 80 × 24 or more, this terminal has {columns} × {rows}",
            "enlarge the window",
        )
    if "utf" not in (sys.stdout.encoding or "").lower():
        yield Fact(
            "note", f"the output encoding is {sys.stdout.encoding}", "set LC_ALL=C.UTF-8 to display lines and blocks"
        )
    if os.environ.get("NO_COLOR"):
        yield Fact("good", "NO_COLOR is set: no colours")
    elif os.environ.get("COLORTERM") in ("truecolor", "24bit"):
        yield Fact("good", "16 million colours")
    else:
        advice = (
            "`set -as terminal-features ',*:RGB'` in tmux.conf"
            if "tmux" in through
            else "set COLORTERM=truecolor if the terminal supports more"
        )
        yield Fact("note", "256 colours or fewer", advice)
    from textual_image.renderable import Image

    kind = {"sixel": "sixel graphics", "tgp": "kitty graphics"}.get(Image.__module__.rpartition(".")[2])
    if kind:
        yield Fact("good", f"images in full resolution ({kind})")
    else:
        yield Fact("note", "no sixel or kitty graphics", "images are drawn with half blocks")


def services() -> Iterator[Fact]:
    """Yield the configured services. Nothing is sent to them."""
    kept = b""
    with suppress(OSError):
        kept = Path(os.path.expanduser("~/.netrc")).read_bytes()
    if os.environ.get("WANDB_API_KEY") or b"api.wandb.ai" in kept:
        yield Fact("good", "wandb has an API key")
    else:
        yield Fact("note", "wandb has no API key", "`wandb login`, or logging.wandb: offline")
    with suppress(ImportError):
        from huggingface_hub.constants import HF_HUB_CACHE, HF_HUB_OFFLINE

        offline = " (HF_HUB_OFFLINE is set)" if HF_HUB_OFFLINE else ""
        yield Fact("good", f"models from the hub are cached in {HF_HUB_CACHE}{offline}")
