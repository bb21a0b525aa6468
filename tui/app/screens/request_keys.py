"""Keys that ask the run for something, and the answers that it gives: each request gets one on the screen."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ....engine.runs.control.requests import Command, asked, request, withdraw
from ....engine.runs.errors import RecordError
from ..data import Reads
from ..run_requests import Requests
from .dialogs import confirm
from .following import FollowsRun


class RequestKeys(FollowsRun):
    """Pause, checkpoint and stop."""

    def __init__(self, reads: Reads) -> None:
        super().__init__(reads)
        self._told: set[str] | None = None
        """Ids of requests whose answer was shown, or existed when the screen opened."""

    @property
    def requests(self) -> Requests | None:
        return None if self.shown is None else Requests(self.shown)

    def tell_answers(self) -> None:
        assert self.shown is not None
        answered = {a.request.id: a for a in self.shown.asked if a.answers}
        if self._told is not None:
            for id_ in answered.keys() - self._told:
                what = answered[id_]
                self.say(f"{what.request.command.capitalize()}: {' · '.join(dict.fromkeys(what.answers.values()))}.")
        self._told = set(answered)

    def _look_again(self) -> None:
        if self.shown is not None:
            self.shown = replace(self.shown, asked=asked(self.reads.path))
        self.frame.refresh_lines()
        self.changed()

    def ask_run(self, command: Command, said: str) -> None:
        if self.shown is not None and not self.shown.info.active:
            self.say(f"The run is {self.shown.info.status} and cannot take “{command}”.", "warning")
            return
        try:
            request(self.reads.path, command)
        except (OSError, RecordError) as error:
            self.say(f"“{command}” could not be asked for: {error}", "error")
            return
        self.say(said)
        self._look_again()

    def action_pause(self) -> None:
        requests = self.requests
        if requests is None:
            return
        answer = requests.on_pause_key()
        if answer.ask is not None:
            self.ask_run(answer.ask, answer.say)
        elif answer.withdraw is None:
            self.say(answer.say, "warning")
        elif withdraw(self.reads.path, answer.withdraw.request.id):
            self.say(answer.say)
            self._look_again()
        else:
            self.say("It is too late to take that back: the run has answered.")
            self.changed()

    def action_checkpoint(self) -> None:
        requests = self.requests
        if requests is not None and requests.waiting("checkpoint"):
            self.say("A checkpoint is asked for already; it is saved after this step.")
            return
        online = self.shown is not None and self.shown.kind == "online"
        what = "publish a version" if online else "save a checkpoint"
        paused = self.shown is not None and self.shown.info.status == "paused"
        self.ask_run("checkpoint", f"Asked the run to {what}{'' if online or paused else ' after this step'}.")

    def action_stop(self) -> None:
        said = "Asked the run to save and stop."
        if self.shown is not None and not self.shown.info.active:
            self.ask_run("stop", said)
            return

        text = f"Stop {self.reads.path.name}? It ends this step, saves a checkpoint, and can be resumed."
        confirm(self, text, "Yes, save and stop", partial(self.ask_run, "stop", said), "No, let it go on")
