"""`MultiTurnEnv`: run many rollouts of an environment together, in batched turns.

All live rollouts of a trial advance together: the agent writes one turn for each, the environment answers each, and the
observations are appended as tokens. An `AsyncAgentSession` advances each rollout independently instead. An environment
that raises, hangs or returns invalid values fails only that rollout.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, get_args

from .agent import ROLES, Agent, AgentTurn, CallReader, Message, Seed, call_reader
from .base import Env, ImageStore, Picture, PromptStyle, Split, State, StepResult, Task, env_name
from .calls import ToolCall, clean_text, means_call
from .checked_values import LONGEST, checked_call, checked_context, checked_pictures, checked_result, checked_verdicts
from .checks import find_problem
from .content import text_of
from .explain import with_system
from .guard import Outcome, describe, guarded_map
from .live_rollout import LiveRollout, log_failures, prompts_of
from .seeds import task_id
from .spans import TrialWatches
from .trajectory import StepContext, Trajectory
from .tree import check_repeated, tree_session
from .trial_pictures import KeptPictures, cleaned, loaded
from .turns import OnGroup, OnProgress, Trial, trial_result

logger = logging.getLogger(__name__)


class MultiTurnEnv(Env[State, Task]):
    """An environment whose rollouts run in batched turns. Subclasses implement `reset` and `step`.

    max_turns: turns after which a rollout ends unanswered. turn_timeout_s: the time limit of one `reset` or `step`.
    workers: threads for slow calls (`guard.guarded_map`), 1 if `step` must not run concurrently. image_store: saves
    pictures (None: make none). image_tasks: how many tasks of a trial keep their pictures, so that a large evaluation
    does not fill the disk. needs_vision: whether the tasks require a vision policy.

    prompt_style: `full` puts the tools and the call format before the messages of `reset` (`explain`), `terse` does
    not. `native` leaves that to the model's chat template and parses calls in the model's own syntax. None chooses by
    the agent: `terse` if it knows this environment (`Agent.knows`), `native` if its template renders tools, else
    `full`.
    """

    needs_vision: ClassVar[bool] = False

    def __init__(
        self,
        tokenizer: object = None,
        *,
        max_turns: int = 8,
        turn_timeout_s: float = 30.0,
        workers: int = 8,
        image_store: ImageStore | None = None,
        image_tasks: int = 16,
        prompt_style: PromptStyle | None = None,
        **config: object,
    ) -> None:
        super().__init__(tokenizer, **config)
        if prompt_style not in (None, *get_args(PromptStyle)):
            raise ValueError(f"prompt_style must be terse, full or native, not {prompt_style!r}")
        self.prompt_style: PromptStyle | None = prompt_style
        self.style: PromptStyle = prompt_style or "terse"
        self._reader: CallReader | None = None
        self._offered: list[dict[str, object]] | None = None
        self.sees = False
        """Whether the acting policy is shown pictures. Set at the start of a trial."""
        for option, value in (("max_turns", max_turns), ("workers", workers)):
            if value < 1:
                raise ValueError(f"{option} must be at least 1, not {value}")
        if not turn_timeout_s > 0:
            raise ValueError(f"turn_timeout_s must be above 0 seconds, not {turn_timeout_s}")
        self.max_turns = max_turns
        self.turn_timeout_s = turn_timeout_s
        self.workers = workers
        self.image_store = image_store
        self.image_tasks = image_tasks
        self._kept = KeptPictures(image_store)
        self.on_turn: Callable[[Trajectory], None] | None = None
        """Called with each rollout before its first turn and after each turn."""

    def run_trial(
        self,
        task_data_list: Sequence[Mapping[str, object]],
        agent: Agent,
        num_rollouts: int,
        *,
        seed: Seed = None,
        step: int = 0,
        split: Split = "train",
        on_progress: OnProgress | None = None,
        on_group: OnGroup | None = None,
        fresh: int | None = None,
    ) -> dict[str, Any]:
        """Run `num_rollouts` rollouts of each of the B tasks. row = task * num_rollouts + rollout.

        Returns `trajectories` and `tokens` (`TokenArrays`, ragged), one per row; `final_rewards`, float32
        [B * num_rollouts], the sums of the environment's rewards; `images`, those that the policy was shown in each row
        (`SeeingSession.shown`; empty without vision); `timings` in seconds (generate_s, environment_s). A class that
        overrides `run_trial` may return padded arrays instead (`engine/rollouts/trial.py`).

        `seed` makes the trial repeatable: one per task, or one for all. After each turn, `on_progress` receives the
        number of ended rollouts and the total. `on_group` receives the result of each task once all its rollouts have
        ended, possibly on another thread. The returned result then has no rows. `fresh`: the number of rollouts per
        task that start at the prompt. The others branch from them (`tree`).

        A fault of the environment ends only its row's trajectory (`stop_reason` `error` or `timeout`, with `error`).
        Exceptions of the agent and BranchError propagate.
        """
        if num_rollouts < 1:
            raise ValueError(f"num_rollouts must be at least 1, not {num_rollouts}")
        self._adapt_to(agent)
        self._kept.store = self.image_store
        watches = TrialWatches()
        with watches.environment:
            rollouts = self._begin(task_data_list, num_rollouts)
            prompts = prompts_of(rollouts, num_rollouts)
        if not rollouts:
            return {**trial_result([], [], []), "timings": TrialWatches().timings()}
        for rollout in rollouts:
            self._report(rollout, step)
        with watches.generating:
            session = agent.start(prompts, num_rollouts, tools=self._offered, seed=seed)
        trial = Trial(
            rollouts,
            prompts,
            num_rollouts,
            tree_session(session, rollouts, fresh, num_rollouts, seed),
            self._answer,
            partial(self._note, step),
            watches,
            sees=self.sees,
            step=step,
            max_turns=self.max_turns,
            timeout_s=self.turn_timeout_s,
            workers=self.workers,
            fresh=fresh,
            on_progress=on_progress,
        )
        return self._play_out(trial, watches, on_group)

    def _play_out(self, trial: Trial, watches: TrialWatches, on_group: OnGroup | None) -> dict[str, Any]:
        """Play the rollouts of a trial that has begun to their end."""
        if on_group is not None:
            trial.hand_over = lambda task: on_group(task, self._result(trial, [task]))
        try:
            trial.take()
            trial.read(trial.open)
        finally:
            trial.session.close()
        log_failures(trial.rollouts, env_name(self))
        result = trial_result([], [], [])
        with watches.environment:
            if trial.hand_over is None:
                result = self._result(trial, list(trial.open))
            else:
                for task in trial.open:
                    trial.hand_over(task)
        return {**result, "timings": watches.timings()}

    def opening(
        self, task: Mapping[str, object], agent: object
    ) -> tuple[list[Message], list[dict[str, object]] | None]:
        """Return the input of `agent` before its first turn: the messages, and the tool schemas for its chat template.
        Exceptions of `reset` propagate."""
        self._adapt_to(agent)
        _, messages, _, _ = self._reset(LiveRollout(task))
        return messages, self._offered

    def _adapt_to(self, agent: object) -> None:
        """Determine the prompt style, the call syntax and the vision of this agent."""
        self.style = self._style(agent)
        self._reader = call_reader(agent) if self.style == "native" else None
        self._offered = [tool.schema for tool in self.offered()] if self._reader is not None else None
        self.sees = bool(getattr(agent, "sees", False))

    # ------------------------------------------------------------------------------------------------ one turn

    def _answer(self, rollout: LiveRollout, turn: AgentTurn) -> StepResult:
        """Parse and execute a turn. It runs under guard, so it may raise anything or hang."""
        rollout.call = None
        call = checked_call(self._read(turn.text))
        rollout.call = call = replace(call, cut=True) if turn.stop_reason != "stop" else call
        rollout.context = context = rollout.with_resources(checked_context(self.context(rollout.state)))
        problem = None
        if not self.answers_misuse:
            problem = find_problem(call, self.tools, context) if self.tools else call.error
        if problem is not None:
            return StepResult(f"error: {problem}", error=problem)
        result = checked_result(self.step(rollout.state, call))
        if self.sees and result.images:  # load them here, where the author's code may raise or hang
            result = replace(result, images=tuple(map(loaded, result.images)))
        return result

    def _style(self, agent: object) -> PromptStyle:
        if self.prompt_style in ("terse", "full"):
            return self.prompt_style
        knows = getattr(agent, "knows", None)
        if self.prompt_style is None and knows is not None and knows(env_name(self)):
            return "terse"
        return "native" if call_reader(agent) is not None and self.offered() else "full"

    def _read(self, text: str) -> ToolCall:
        """Parse a turn in the model's own syntax if its template rendered the tools, else in the environment's."""
        if self._reader is not None:
            call = self._reader.read(text, self._offered or ())
            if means_call(call, {tool.name for tool in self.offered()}):
                return call
        return self.parse(text)

    def _note(self, step: int, rollout: LiveRollout, turn: AgentTurn, outcome: Outcome[StepResult]) -> None:
        images: tuple[str, ...] = ()
        overlay = None
        if outcome.value is not None:
            overlay = outcome.value.overlay
            if rollout.keep_images:
                images, overlay = self._kept.of_answer(outcome.value, rollout.images)
        rollout.note(turn, outcome, images, overlay)
        check_repeated(rollout)
        self._report(rollout, step)

    def _report(self, rollout: LiveRollout, step: int) -> None:
        if self.on_turn is not None and rollout.messages is not None:
            self.on_turn(self._trajectories([rollout], [rollout.messages], 1, step)[0])

    # ------------------------------------------------------------------------------------------------ begin and end

    def _begin(self, tasks: Sequence[Any], num_rollouts: int) -> list[LiveRollout]:
        try:
            self.prefetch(tasks)
        except (Exception, SystemExit):  # prefetching is optional: `reset` reports what is wrong with a task
            logger.warning("%s could not prefetch", env_name(self), exc_info=True)
        kept = 0 if self.image_store is None else self.image_tasks
        rollouts = [
            LiveRollout(task, number, knows_success=self.knows_success, keep_images=index < kept)
            for index, task in enumerate(tasks)
            for number in range(num_rollouts)
        ]
        outcomes = guarded_map(self._reset, rollouts, timeout_s=self.turn_timeout_s, workers=self.workers)
        for rollout, outcome in zip(rollouts, outcomes, strict=True):
            if outcome.value is None:
                rollout.fail(outcome, "reset")
            else:
                rollout.state, rollout.messages, rollout.context, pictures = outcome.value
                if rollout.keep_images:
                    rollout.images = self._kept.save_all(pictures)
            rollout.seconds += outcome.seconds
        return rollouts

    def _reset(self, rollout: LiveRollout) -> tuple[State, list[Message], StepContext, tuple[Picture, ...]]:
        result = self.reset(rollout.task)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(f"reset returned {describe(result)}, not (state, messages)")
        state, messages = result
        if not isinstance(messages, (list, tuple)) or not messages:
            raise TypeError("reset returned no messages")
        for message in messages:
            if not isinstance(message, Mapping) or message.get("role") not in ROLES:
                raise ValueError(f"each message of reset must be a mapping with a role among {', '.join(ROLES)}")
        cleaned_messages: list[Message] = [{**m, "content": cleaned(m.get("content"))} for m in messages]
        system_prompt = rollout.task.get("system_prompt")
        if isinstance(system_prompt, str) and system_prompt.strip():
            cleaned_messages = with_system(clean_text(system_prompt), cleaned_messages)
        if self.style == "full":
            cleaned_messages = with_system(clean_text(self.explain()), cleaned_messages)
        if (length := sum(len(text_of(m.get("content", ""))) for m in cleaned_messages)) > LONGEST:
            raise ValueError(f"the prompt has {length} characters, and at most {LONGEST} are possible")
        context = checked_context(self.context(state))
        pictures: tuple[Picture, ...] = ()
        if rollout.keep_images:
            try:
                pictures = checked_pictures(self.images(state))
            except Exception:  # pictures are for people: the rollout continues without them
                logger.warning("%s could not show its images", env_name(self), exc_info=True)
        return state, cleaned_messages, context, pictures

    def _result(self, trial: Trial, tasks: Sequence[int]) -> dict[str, object]:
        """Judge the rollouts of these tasks, and return their part of the result."""
        rows = trial.rows(tasks)
        ended = [trial.rollouts[row] for row in rows]
        self._finish(ended, trial.num_rollouts)
        trajectories = self._trajectories(
            ended, [trial.prompts[task] for task in tasks], trial.num_rollouts, trial.step
        )
        if trial.sees:
            trajectories = [
                self._kept.seen(
                    trajectory, trial.prompts[row // trial.num_rollouts], trial.shown[row], rollout.keep_images
                )
                for trajectory, row, rollout in zip(trajectories, rows, ended, strict=True)
            ]
        return trial_result(trajectories, [trial.tokens[row] for row in rows], [trial.shown[row] for row in rows])

    def _finish(self, rollouts: Sequence[LiveRollout], num_rollouts: int) -> None:
        """Let the environment judge the rollouts of each task together."""
        if type(self).finish is Env.finish:
            return
        groups = [
            [r for r in rollouts[start : start + num_rollouts] if r.error is None]
            for start in range(0, len(rollouts), num_rollouts)
        ]
        outcomes = guarded_map(
            lambda group: checked_verdicts(self.finish([r.state for r in group]), len(group)),
            groups,
            timeout_s=self.turn_timeout_s,
            workers=self.workers,
        )
        for group, outcome in zip(groups, outcomes, strict=True):
            for index, rollout in enumerate(group):
                if outcome.value is None:
                    rollout.fail(outcome, "finish")
                elif (verdict := outcome.value[index]) is not None:
                    rollout.judged(verdict)

    def _trajectories(
        self, rollouts: Sequence[LiveRollout], prompts: Sequence[Sequence[Message]], num_rollouts: int, step: int
    ) -> list[Trajectory]:
        name = env_name(self)
        trajectories: list[Trajectory] = []
        for index, prompt in enumerate(prompts):
            members = rollouts[index * num_rollouts : (index + 1) * num_rollouts]
            prompt_id = task_id(name, members[0].task)
            # The random part keeps ids unique if a prompt occurs twice in a step, on two ranks or in two evaluations.
            group = f"{step}-{prompt_id[:6]}-{secrets.token_hex(4)}"
            trajectories.extend(
                rollout.trajectory(
                    prompt,
                    group,
                    env=name,
                    prompt_id=prompt_id,
                    tools=tuple(self.tools),
                    expected=self._expected(rollout.task),
                    meta={"offered": [tool.name for tool in self.offered()]} if self._offered else {},
                )
                for rollout in members
            )
        return trajectories

    def _expected(self, task: Task) -> str | None:
        try:
            expected = self.expected(task)
            return None if expected is None else clean_text(str(expected))
        except (Exception, SystemExit):  # a malformed task: its rollout has already failed with a message
            return None
