"""Whether a change of the code changed what training learns: fingerprints of the weights after some steps.

    python -m benchmarks.same_weights [--steps 20] [--case NAME ...] [--write FILE | --against FILE]

Each case trains from one seed with one thread, which is repeatable to the last bit, and prints the XXH3 digest of the
trained weights. `--write` keeps the digests; `--against` compares with kept ones and ends with 1 where they differ. To
compare with another checkout, run this file by its path with that checkout's Python and working folder.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import xxhash

CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "turn": {"training": {"advantages": "turn", "beta_mode": "auto", "replay": {"mode": "dapo"}}},
    "plain": {
        "training": {"replay": {"mode": "off"}, "advantages": "reward", "beta": 0.0, "loss_type": "grpo"},
        "rewards": {"w_curiosity": 0.0, "w_coherence": 0.0},
    },
    "checkpointed": {"model": {"gradient_checkpointing": True}, "training": {"micro_batch_size": 4}},
}
SMALL = {
    "prompts_per_step": 4,
    "num_generations": 4,
    "max_turn_tokens": 48,
    "save_every": 0,
    "eval_every": 10,
}


def digest(weights: dict[str, torch.Tensor]) -> str:
    """XXH3-128 over names and bytes of all tensors, in order of their names."""
    found = xxhash.xxh3_128()
    for name in sorted(weights):
        found.update(name.encode())
        found.update(weights[name].contiguous().numpy().tobytes())
    return found.hexdigest()


def train(case: str, steps: int) -> dict[str, str]:
    """Digests of the adapters and of the rewards' state after `steps` steps of a case."""
    from safetensors.torch import load_file

    from grpo_tui.configs.schema import RunConfig
    from grpo_tui.engine.runs.write.writer import NullWriter
    from grpo_tui.engine.training.rft import run_rft

    with tempfile.TemporaryDirectory() as folder:
        adapters = Path(folder) / "adapters"
        given = CASES[case]
        config = RunConfig.model_validate(
            {
                "mode": "rft",
                "seed": 11,
                "model": {"device": "cpu", **given.get("model", {})},
                "environment": {"train_tasks": 64, "eval_tasks": 4},
                "rewards": given.get("rewards", {}),
                "training": {
                    **SMALL,
                    "max_steps": steps,
                    "output_dir": str(adapters),
                    **given.get("training", {}),
                },
            }
        )
        run_rft(config, Path(folder) / "run", NullWriter())
        return {
            "adapters": digest(load_file(adapters / "adapter_model.safetensors")),
            "rewards": digest(load_file(adapters / "rewards.safetensors")),
        }


def main() -> int:
    """Train the cases and print, keep or compare their digests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--against", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    known = json.loads(given.against.read_text()) if given.against else {}
    found: dict[str, dict[str, str]] = {}
    same = True
    for case in given.case or CASES:
        found[case] = train(case, given.steps)
        verdict = "" if not known else "same" if known.get(case) == found[case] else "DIFFERENT"
        same = same and verdict != "DIFFERENT"
        print(f"{case:14} {found[case]['adapters']}  rewards {found[case]['rewards'][:8]}  {verdict}", flush=True)
    if given.write:
        given.write.write_text(json.dumps(found, indent=2) + "\n")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
