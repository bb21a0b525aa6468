"""`python -m grpo_tui.engine.online.learn.worker RUN_DIR [--resume]`: the update worker of an online run."""

from __future__ import annotations

import sys

from ..process import run_process

if __name__ == "__main__":
    sys.exit(run_process("worker", "grpo_tui.engine.online.learn.update_worker:work"))
