"""Keys of the list that change a run: stop, rename and delete, each after a question."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from ....engine.launch import LaunchError
from ....engine.launch.stop import delete_run, rename_run
from ....engine.runs.control.requests import request
from ..run_list import RunRow
from ..widgets.prompt_bar import ask
from .base import TableScreen
from .dialogs import confirm


class RunKeys(TableScreen):
    """Acts on the run at the cursor."""

    @property
    def current(self) -> RunRow | None:
        return self.table.current

    def look_again(self) -> None:
        raise RuntimeError(f"{type(self).__name__} has no list")

    def action_copy(self) -> None:
        if self.current is not None:
            self.copy(self.current.info.id, self.current.info.id)

    def action_stop_run(self) -> None:
        row = self.current
        if row is None:
            return
        if not row.info.active or row.info.status == "stopping":
            self.say(f"{row.info.id} is {row.info.status}.")
            return

        def stop() -> None:
            try:
                request(Path(row.info.path), "stop")
            except OSError as error:
                self.say(f"{row.info.id} could not be asked to stop: {error}", "error")
            else:
                self.say(f"Asked {row.info.id} to save and stop.")

        confirm(self, f"Stop {row.info.id}? It saves a checkpoint first.", "Yes, save and stop", stop)

    def action_rename(self) -> Awaitable[None] | None:
        row = self.current
        if row is not None:
            return ask(self, f"Name of {row.info.id}", row.info.name, lambda text: self._rename(row, text))

    def _rename(self, row: RunRow, text: str) -> None:
        if text != row.info.name:
            shown = f"“{text}”" if text else "no name"
            rename = partial(self._change, lambda: rename_run(row.info, text))
            confirm(self, f"Rename {row.info.id} to {shown}?", "Yes, rename", rename)

    def action_delete(self) -> None:
        row = self.current
        if row is None:
            return
        if row.info.active:
            self.say(f"{row.info.id} is {row.info.status}; stop it first (x).", "warning")
            return

        def delete() -> None:
            self.shell.forget_run(row.info.path)
            self._change(lambda: delete_run(row.info))

        text, yes = f"Delete {row.info.id} and everything it recorded, with its checkpoints?", "Yes, delete it"
        text += " This cannot be undone."
        if row.info.mode == "dump":
            text = f"Forget {row.info.id}? Its files stay as they are; only the index of them goes."
            yes = "Yes, forget it"
        confirm(self, text, yes, delete)

    def _change(self, change: Callable[[], object]) -> None:
        try:
            change()
        except LaunchError as error:
            self.say(str(error), "error")
        self.look_again()
