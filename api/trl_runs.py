"""Which run a training of TRL is recorded in: a fresh training makes a new one, a resumed one continues its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list

from grpo_tui.engine.runs.control.status import look
from grpo_tui.recorder import Recorder, next_run, run_folder, runs_named


@dataclass(frozen=True)
class Runs:
    """The runs of one name: `name`, `name-2`, `name-3`, …"""

    options: Mapping[str, Any]
    """For `Recorder`."""
    fresh: Path
    """A folder that is not there yet."""
    earlier: list[tuple[Path, int]]
    """Folders of earlier trainings, the newest first, each with its last step."""

    @staticmethod
    def of(options: Mapping[str, Any]) -> Runs:
        """Find them. All processes of a training call this at the same point and get the same answer."""
        first = run_folder(options["run"], options.get("runs_dir"))
        earlier = [(folder, look(folder).step) for folder in runs_named(first)]
        fresh = next_run(first)
        answer = [Runs(options, fresh, earlier)]
        return broadcast_object_list(answer, from_process=0)[0]

    def open(self, step: int) -> Recorder:
        """The record of a training that begins after `step` steps, 0 for a fresh one.

        A resumed training continues the newest run that came so far; what was recorded after that step is removed.
        """
        reached = [folder for folder, last in self.earlier if step and last >= step]
        if not reached:
            return Recorder(**{**self.options, "run": self.fresh})
        first = self.options["process"] == "training"  # it removes the rows of the others, too
        return Recorder(**{**self.options, "run": reached[0]}, resume=True, resume_from_step=step if first else None)
