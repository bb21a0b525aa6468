"""Measure the processor time of live detectors as a share of the default training."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any


def cost(steps: int) -> None:
    """Train with the default settings, and print processor seconds of the training and of its detectors."""
    from grpo_tui.engine.training.__main__ import run
    from grpo_tui.engine.training.callbacks.findings import Findings
    from grpo_tui.engine.training.env_trainer import GRPOEnvTrainer
    from grpo_tui.rewards.diagnosis import Diagnosis

    from .training import write_config

    spent: dict[str, float] = defaultdict(float)

    def timed(owner: type, name: str, label: Callable[..., str]) -> None:
        original = getattr(owner, name)

        def measured(self: Any, *arguments: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return original(self, *arguments, **named)
            finally:
                spent[label(*arguments)] += time.process_time() - began

        setattr(owner, name, measured)

    timed(GRPOEnvTrainer, "train", lambda *_, **__: "training")
    timed(Findings, "_observe", lambda *_: "alerts")
    timed(Diagnosis, "_look", lambda name, *_: f"  {name}")
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), [f"training.max_steps={steps}", f'training.output_dir="{folder}/adapters/result"'])
        run(Path(folder))
    print(
        f"{steps} steps: {spent['training']:.1f} processor seconds, {spent['alerts'] / spent['training']:.2%} of alerts"
    )
    for name, seconds in sorted(spent.items(), key=lambda item: -item[1]):
        if name.startswith(" "):
            print(f"{name:26}{seconds / spent['training']:>7.2%}")
