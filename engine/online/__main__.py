"""`python -m grpo_tui.engine.online PROCESS RUN_DIR [--resume] [--child]`: a process of an online run."""

from __future__ import annotations

import sys

from .process import run_process

LIVES = {
    "engine": "grpo_tui.engine.online.serve.assembly:serve",
    "worker": "grpo_tui.engine.online.learn.update_worker:work",
    "validation": "grpo_tui.engine.online.learn.validation:validate_forever",
}

if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    sys.exit(run_process(name, LIVES[name], arguments))
