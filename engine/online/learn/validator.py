"""`python -m grpo_tui.engine.online.learn.validator RUN_DIR --child`: background validation, the engine's child."""

from __future__ import annotations

import sys

from ..process import run_process

if __name__ == "__main__":
    sys.exit(run_process("validation", "grpo_tui.engine.online.learn.validation:validate_forever"))
