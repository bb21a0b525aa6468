"""`python -m grpo_tui.engine.online.serve.engine RUN_DIR [--resume]`: the inference engine of an online run."""

from __future__ import annotations

import sys

from ..process import run_process

if __name__ == "__main__":
    sys.exit(run_process("engine", "grpo_tui.engine.online.serve.assembly:serve"))
