"""Resolve grpo-tui together with packages that people have installed, and print which combinations fit.

python -m benchmarks.installs [--python 3.12] [--platform linux]     uses uv; downloads metadata alone
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
WITH_TRAINING = {
    "vLLM 0.30": ["vllm==0.30.*"],
    "vLLM 0.31": ["vllm==0.31.*"],
    "vLLM 0.32": ["vllm==0.32.*"],
    "vLLM, newest": ["vllm"],
    "Unsloth 2026.10": ["unsloth==2026.10.*"],
    "GPU image (torch 2.11, transformers 5.17)": ["torch==2.11.*", "transformers==5.17.*"],
    "verifiers 0.4": ["verifiers==0.4.*"],
}
RECORDER_ALONE = {
    "verl 0.9.1": ["verl==0.9.1"],
    "sglang 0.5.10": ["sglang==0.5.10"],
    "OpenRLHF": ["openrlhf"],
    "ms-swift 4.6": ["ms-swift==4.6.*"],
    "axolotl 0.18": ["axolotl==0.18.*"],
    "AReaL": ["areal"],
    "Unsloth Studio, LLaMA-Factory (TRL 0.23)": ["trl==0.23.1", "transformers<5"],
}
SHOWN = ("torch", "transformers", "trl", "datasets", "typer", "rich")


def resolve(extra: str, packages: list[str], python: str, platform: str, *options: str) -> tuple[dict[str, str], str]:
    """Return the versions that uv selects, or the first sentence of the conflict. options: for `uv pip compile`."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder, "wanted.in")
        wanted.write_text("\n".join([f"grpo-tui{extra} @ {ROOT.as_uri()}", *packages]) + "\n")
        command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-annotate", str(wanted), *options]
        command += ["--prerelease", "if-necessary-or-explicit", "--python-version", python]
        done = subprocess.run([*command, "--python-platform", platform], capture_output=True, text=True)
    if done.returncode:
        return {}, re.sub(r"\s+", " ", done.stderr.partition("cause: ")[2] or done.stderr)[:200]
    found = dict(line.split("==") for line in done.stdout.splitlines() if re.match(r"[a-z0-9.-]+==", line))
    return found, ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="3.12")
    parser.add_argument("--platform", default="linux")
    arguments = parser.parse_args()
    print("| installed | light | train |\n|---|---|---|")
    for name, packages in {"nothing else": [], **WITH_TRAINING, **RECORDER_ALONE}.items():
        cells = []
        for extra in ("", "[train]"):
            if extra and name in RECORDER_ALONE:
                cells.append("–")
                continue
            found, problem = resolve(extra, packages, arguments.python, arguments.platform)
            chosen = ", ".join(f"{n} {found[n]}" for n in SHOWN[: 4 if extra else 6] if n in found)
            cells.append(f"no: {problem}" if problem else f"yes ({chosen})")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
