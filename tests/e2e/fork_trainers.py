"""Start many trainers quickly: everything is imported once, and each trainer is a fork of that.

Reads a run's folder from each line of standard input, starts its training process with `--resume`, and prints the pid.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def main() -> None:
    from grpo_tui.engine.training.__main__ import run

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # killed children leave no zombies
    print("ready", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            folder = Path(line.strip())
            log = os.open(folder / "logs" / "training.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os._exit(run(folder, resume=True))
        print(pid, flush=True)


if __name__ == "__main__":
    main()
