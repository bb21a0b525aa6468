"""`python -m grpo_tui.engine.training.play RUN_DIR`: a person plays the tasks of a run in place of the policy.

The terminal starts this process (`engine.launch.play`). Both write one JSON object a line.

| standard output | |
|---|---|
| `{"event": "turn", "task", "tasks", "tools", "over", "record"}` | the rollout so far: after the prompt, after each turn, and at its end |
| `{"event": "model", "text", "step", "over", "tools", "record"}` | the model's own continuation so far: `text` is its first turn, at `step` |
| `{"event": "problem", "message"}` | a request that failed |

| standard input | |
|---|---|
| `{"turn": text}` | the next turn: calls such as `LOOK(x=1)`, or the text itself |
| `{"model": true}` | request the model's own continuation to the end of the rollout |
| `{"again": true}`, `{"next": true}` | end this rollout; start the same task again, or the next one |

The end of the input ends the process. A rollout abandoned after its first turn is also recorded.
"""  # noqa: E501

from __future__ import annotations

import ast
import json
import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from ...envs.calls import ToolCall, format_call
from ...envs.multi_turn import MultiTurnEnv
from ...envs.tools import ToolSpec
from ...envs.trajectory import Step, Trajectory
from ..agents.tool_calls import JSONNames
from ..launch.outcome import imports, one_sentence, run_recorded, set_up_logging
from ..runs.codec import encode_body
from ..runs.types import TrajectoryRecord

if TYPE_CHECKING:
    from ...configs.schema import RunConfig
    from ...envs.agent import AgentSession
    from ..agents.chat_session import SessionStart, TokenArrays
    from ..rollouts.rollout import Rollout
    from ..rollouts.runner import Row
    from ..runs.write.writer import RecordWriter

BY_HAND = "by hand"
"""The agent of these rollouts in the record."""


def typed_calls(text: str, tools: Sequence[ToolSpec]) -> tuple[str, list[ToolCall]]:
    """Read `a thought NAME(x=1, y="two") OTHER(z=3)`: the thought and the calls.

    Arguments are Python or JSON values, by name or in the order of the tool. Returns no calls if `text` does not end
    with calls of these tools.
    """
    names = {tool.name: tool for tool in tools}
    either = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    for start in re.finditer(rf"(?<![\w.-])({either})\s*\(", text) if names else ():
        try:
            return text[: start.start()].strip(), _calls(text[start.start() :], names, either)
        except (SyntaxError, ValueError, TypeError):  # TypeError: a value such as {[1]: 2}
            continue
    return text, []


def _calls(text: str, names: Mapping[str, ToolSpec], either: str) -> list[ToolCall]:
    """Parse a text of calls only. Raises SyntaxError, ValueError."""
    calls: list[ToolCall] = []
    while text := text.strip(" \n\t;,"):
        head = re.match(rf"({either})\s*\(", text)
        if head is None:
            raise ValueError(text)
        tool = names[head.group(1)]
        for end in (match.end() for match in re.finditer(r"\)", text)):  # the first bracket that closes the call
            try:
                parsed = ast.parse(f"f({text[head.end() : end]}", mode="eval").body
            except SyntaxError:
                continue
            break
        else:
            raise ValueError(text)
        assert isinstance(parsed, ast.Call)
        if len(parsed.args) > len(tool.arguments):
            raise ValueError(text)
        arguments = {argument.name: value for argument, value in zip(tool.arguments, parsed.args, strict=False)}
        arguments |= {str(keyword.arg): keyword.value for keyword in parsed.keywords}
        calls.append(ToolCall(tool.name, {k: ast.literal_eval(JSONNames().visit(v)) for k, v in arguments.items()}))
        text = text[end:]
    return calls


class Diverged(Exception):
    """The copy of an environment answered the person's turns differently."""


class PlayedRun:
    """Plays the rollouts of a run as a person types them.

    commands, events: the pipes to the terminal.
    """

    def __init__(
        self, config: RunConfig, run_dir: Path, writer: RecordWriter, commands: IO[str], events: IO[str]
    ) -> None:
        from ..agents.scripted import ScriptedAgent, ScriptedSession
        from ..record.step_recorder import StepRecorder
        from .rft import build_trainer

        self.recorder = StepRecorder(writer)
        self.recorder.event("phase", "loading the model and the data", name="loading")
        self.trainer, _ = build_trainer(config, run_dir, self.recorder)
        self.rows = self.trainer.rows
        self.policy: Any = self.trainer.agent

        class Player(ScriptedAgent):
            """An agent with the policy's view of an environment. It keeps its last session."""

            offered: object
            session: ScriptedSession

            def start(self, *arguments: Any, **options: Any) -> AgentSession:
                self.offered = options.get("tools")
                return super().start(*arguments, **options)

            def _open(self, start: SessionStart) -> ScriptedSession:
                self.session = super()._open(start)
                return self.session

        self.person, self.model = (
            Player(
                script,
                self.trainer.tokenizer,
                max_trajectory_tokens=config.training.max_trajectory_tokens,
                knows=self.policy.knows,
                template_kwargs=config.model.chat_template_kwargs,
                native_calls=config.model.native_calls,
                vision=self.policy.chat.vision,
            )
            for script in (self._ask, self._continue)
        )
        self.runner = replace(self.trainer.runner, agent=self.person, num_rollouts=1)
        self.copies = replace(self.runner.beside(), agent=self.model, watch=None)
        """Runs the model's continuations, in separate environments."""
        self._seed = config.seed
        self._commands, self._events = commands, events
        self._number, self._turns = 0, list[str]()
        self._task, self._tools = 0, ()
        self._so_far: Trajectory | None = None
        self._next: dict[str, Any] | None = None
        """The command that ended the current rollout."""

    def play(self) -> None:
        played = 0
        while True:
            self._rollout(self.rows[self._task], played)
            played += 1
            while self._next is None:
                command = self._command()
                if command.keys() & {"leave", "next", "again"}:
                    self._next = command
                elif "model" in command or "turn" in command:
                    self._tell("problem", message="this rollout is over; play the task again, or the next one")
            if "leave" in self._next:
                return
            if "next" in self._next:
                self._task = (self._task + 1) % len(self.rows)

    def _rollout(self, row: Row, number: int) -> None:
        self._next, self._so_far, self._number, self._turns = None, None, number, []
        environment = self.runner.environment(row)
        self._tools = self._shown_tools = tuple(getattr(environment, "tools", ()))
        if isinstance(environment, MultiTurnEnv):
            environment.on_turn = self._turned
            self._shown_tools = tuple(environment.offered())
        rollout = self.runner.run([row], first=number, seed=self._seed, step=0)[0]
        if rollout.trajectory is None:
            self._tell("problem", message="this environment returns no trajectory, so nothing can be shown or recorded")
            return
        extra = {**rollout.trajectory.extra, "by_hand": True}
        trajectory = replace(rollout.trajectory, agent=BY_HAND, extra=extra)
        if self._next is not None:
            trajectory = replace(trajectory, error="left by the person who played")
        rollout = self._scored(replace(rollout, trajectory=trajectory), update=True)
        if trajectory.steps:
            self.recorder.trajectories(0, [rollout], "train")
        if self._next is None:
            self._show(rollout, over=True)

    def _scored(self, rollout: Rollout, *, update: bool) -> Rollout:
        done = self.trainer.pipeline.complete([rollout], reference=False)
        return self.trainer.pipeline.scorer.rewards(done, update=update)[0][0]

    # -- turns ------------------------------------------------------------------------------------------------------

    def _turned(self, trajectory: Trajectory) -> None:
        self._so_far = replace(trajectory, agent=BY_HAND)

    def _ask(self, row: int, turn: int, observation: str | None) -> str | None:
        """Return the person's next turn, or None if the person leaves the rollout."""
        so_far = self._rollout_so_far(turn, observation)
        self._show(_undecided(self._scored(so_far, update=False)) if turn else so_far, over=False)
        while True:
            command = self._command()
            if command.keys() & {"leave", "next", "again"}:
                self._next = command
                return None
            if isinstance(text := command.get("turn"), str) and text.strip():
                self._turns.append(self._written(text))
                return self._turns[-1]
            if "model" in command:
                self._show_continuation(so_far)

    def _written(self, text: str) -> str:
        """Return a turn in the policy's form."""
        thought, calls = typed_calls(text, self._tools)
        if not calls:
            return text
        if self.person.call_reader is not None and self.person.offered:
            schemas = [tool.schema for tool in self._tools]
            native = self.person.call_reader.write(self.person.session.chat, thought, calls, schemas)
            if native is not None:
                return native
        return "\n".join([*([thought] if thought else []), *(format_call(c.name or "", c.arguments) for c in calls)])

    def _show_continuation(self, so_far: Rollout) -> None:
        """Let the model play to the end, after repeating the person's turns in a copy of the environment."""
        row, turns = self.rows[self._task], len(self._turns)
        environment = self.copies.environment(row)
        if isinstance(environment, MultiTurnEnv):
            environment.on_turn = self._continued
        self._model_text = ""
        try:
            rollout = self.copies.run([row], first=self._number, seed=self._seed, step=0)[0]
            if rollout.trajectory is not None:
                self._show_model(self._scored(rollout, update=False), over=True)
                return
        except Diverged:
            self._tell("problem", message="The environment is not deterministic: the model plays only one turn.")
            self._model_text = self._model_turn(self.person)
        except Exception as problem:  # any error of the model or the copy: the person plays on
            self._tell("problem", message=one_sentence(problem))
            return
        assert so_far.trajectory is not None
        steps = (*so_far.trajectory.steps, Step(turns, self._model_text))
        self._show_model(replace(so_far, trajectory=replace(so_far.trajectory, steps=steps)), over=True)

    def _continue(self, row: int, turn: int, observation: str | None) -> str | None:
        """Return the person's turn, or after the last one the model's."""
        if turn < len(self._turns):
            return self._turns[turn]
        first = turn == len(self._turns)
        if first:
            continued, played = self.model.session.tokens(0), self.person.session.tokens(0)
            if not np.array_equal(continued.token_ids, played.token_ids):
                raise Diverged
        text = self._model_turn(self.model)
        if first:
            self._model_text = text
        return text

    def _continued(self, trajectory: Trajectory) -> None:
        if len(trajectory.steps) > len(self._turns):
            tokens = self.model.session.tokens(0)
            self._show_model(_unfinished(tokens, trajectory), over=False)

    def _model_turn(self, agent: Any) -> str:
        from ..policy.prepared import acting
        from ..policy.vision.processor import Encoded

        images = tuple(shown.image for shown in agent.session.shown(0))
        with acting(self.trainer.policy.model):
            return self.policy.next_turn(Encoded(agent.session.tokens(0).token_ids.tolist(), images)).text

    def _rollout_so_far(self, turn: int, observation: str | None) -> Rollout:
        tokens, so_far = self.person.session.tokens(0), self._so_far
        if so_far is None:  # an environment with its own `run_trial` shows only the tokens
            prompt = self.person.chat.decode(tokens.token_ids[tokens.turn == -1].tolist())
            written = [tokens.token_ids[(tokens.turn == i) & tokens.agent_mask].tolist() for i in range(turn)]
            steps = [Step(i, self.person.chat.decode(ids)) for i, ids in enumerate(written)]
            if steps:
                steps[-1] = replace(steps[-1], observation=observation or "")
            env = self.rows[self._task].env_class_path
            so_far = Trajectory("", env, "", "", 0, prompt, tuple(steps), correct=None, agent=BY_HAND)
        images = tuple(shown.image for shown in self.person.session.shown(0))
        return replace(_unfinished(tokens, so_far), images=images)

    # -- pipes ------------------------------------------------------------------------------------------------------

    def _show(self, rollout: Rollout, *, over: bool) -> None:
        self._tell_rollout("turn", rollout, task=self._task, tasks=len(self.rows), over=over)

    def _show_model(self, rollout: Rollout, *, over: bool) -> None:
        self._tell_rollout("model", rollout, text=self._model_text, step=len(self._turns), over=over)

    def _tell_rollout(self, event: str, rollout: Rollout, **data: object) -> None:
        assert rollout.trajectory is not None
        self.recorder.writer.flush(timeout=10.0)  # images must be on disk first
        record = encode_body(TrajectoryRecord(rollout.trajectory, rollout.breakdown)).decode()
        self._tell(event, **data, tools=[tool.to_json() for tool in self._shown_tools], record=record)

    def _tell(self, event: str, **data: object) -> None:
        with suppress(OSError):  # the terminal is gone; its input ends next
            self._events.write(json.dumps({"event": event, **data}, default=str) + "\n")
            self._events.flush()

    def _command(self) -> dict[str, object]:
        """Return the next command, or `leave` at the end of the input."""
        for line in self._commands:
            with suppress(ValueError):
                if isinstance(command := json.loads(line), dict):
                    return command
        return {"leave": True}


def _unfinished(tokens: TokenArrays, trajectory: Trajectory) -> Rollout:
    from ..rollouts.rollout import Rollout

    return Rollout(
        tokens.token_ids.astype("int64"), tokens.agent_mask, tokens.turn, tokens.logprobs * 0, 0, 0,
        logprobs=tokens.logprobs, trajectory=replace(trajectory, expected=None, correct=None, stop_reason=""),
    )  # fmt: skip


def _undecided(rollout: Rollout) -> Rollout:
    """Drop the component of the task's answer, which is unknown before the end."""
    if rollout.breakdown is None:
        return rollout
    *before, last = rollout.breakdown.steps
    components = {name: value for name, value in last.components.items() if name != "task" or value.raw}
    steps = (*before, replace(last, components=components))
    return replace(rollout, breakdown=replace(rollout.breakdown, steps=steps))


def main(arguments: Sequence[str]) -> int:
    """Play the run in a folder; see the module."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    commands = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(2, 1)  # send output of libraries and user code to the log
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    set_up_logging()
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    from ..launch.settings import read_config
    from ..runs.write.writer import open_writer

    run_dir = Path(arguments[0])
    writer = open_writer(run_dir, process="play")

    def work() -> bool:
        with imports():  # most of the time until the first turn
            player = PlayedRun(read_config(run_dir), run_dir, writer, commands, events)
        writer.status("running")
        player.play()
        return True

    return run_recorded(writer, "play", work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
