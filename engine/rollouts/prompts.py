"""Checks a dataset's prompts as the policy reads them: whether the chat template shows them whole, and their length."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ...configs.sections import TrainingConfig
from ...envs.agent import Message, call_reader
from ...envs.content import text_of
from ...envs.multi_turn import MultiTurnEnv
from ..agents.chat import ChatTemplateError
from ..policy.vision.processor import VisionError
from .runner import DataError, Row, TrialEnv

if TYPE_CHECKING:
    from ..agents.chat import ChatBridge
    from ..agents.chat_agent import ChatAgent

CHECKED_ROWS = 8
"""Rows whose images are checked."""

logger = logging.getLogger(__name__)

CHECK_SECONDS = 20.0
"""How long to count the tokens of prompts before the first step. Later prompts are not checked, unless long ones are
dropped: a resumed run needs the same rows."""


@dataclass(frozen=True)
class Prompt:
    """The messages that a policy reads before its first turn. tools: schemas that its chat template shows, if any."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, object]] | None = None


def prompt_of(env: Any, task: Mapping[str, Any], policy: object) -> Prompt:
    """Return the prompt of a task with the tools of its environment. Raises the errors of `reset`."""
    if isinstance(env, MultiTurnEnv):
        return Prompt(*env.opening(task, policy))
    return Prompt(env.reset(task)[1])


def check_template(messages: Sequence[Message], prompt: Prompt, chat: ChatBridge, where: str) -> None:
    """Raise DataError if the chat template drops a message of the prompt. messages: those of the data."""
    text = chat.prompt_text(prompt.messages, prompt.tools)
    for message in messages:
        content, role = text_of(message.get("content", "")).strip(), message.get("role")
        if role != "assistant" and content not in text:
            advice = (
                "put it into data.prompt_template instead" if role == "system" else "name another model.chat_template"
            )
            raise DataError(f"{where}: the model's chat template drops the {role}'s message; {advice}")
    for message in prompt.messages:
        if message.get("role") == "system" and text_of(message.get("content", "")).strip() not in text:
            raise DataError(
                f"{where}: the model's chat template drops the system message in which the tools are explained; name "
                "another model.chat_template, such as chatml"
            )


def fitting(
    rows: Sequence[Row],
    policy: ChatAgent,
    environment: Callable[[Row], object],
    limits: TrainingConfig,
    on_long: Literal["stop", "drop"],
) -> list[Row]:
    """Return the rows of a dataset whose prompts, tools included, leave room for an answer.

    Raises DataError for a row that does not if `on_long` is `stop`, and if no row is left.
    """
    limit = limits.max_trajectory_tokens
    until = time.monotonic() + CHECK_SECONDS
    kept: list[Row] = []
    checked: set[tuple[object, ...]] = set()
    for number, row in enumerate(rows):
        if on_long == "stop" and time.monotonic() > until:
            kept += rows[number:]
            break
        prompt = prompt_of(environment(row), row.task_data, policy)
        roles = tuple(message["role"] for message in row.task_data["messages"])
        try:
            if roles not in checked:
                check_template(row.task_data["messages"], prompt, policy.chat, _where(row))
                checked.add(roles)
            tokens = len(policy.chat.prompt(prompt.messages, prompt.tools))
        except ChatTemplateError as problem:
            raise DataError(f"{_where(row)}: {problem}") from problem
        if tokens < limit:
            kept.append(row)
        elif on_long == "stop":
            raise DataError(
                f"{_where(row)}: the prompt has {tokens} tokens, but a prompt with its answer may have at most {limit} "
                "(training.max_trajectory_tokens): raise that, or leave such rows out with data.long_prompts: drop"
            )
    if rows and not kept:
        raise DataError(
            f"no prompt leaves room for an answer within training.max_trajectory_tokens ({limit}): raise it"
        )
    if len(kept) < len(rows):
        logger.info("left out %d of %d prompts: longer than %d tokens", len(rows) - len(kept), len(rows), limit)
    return kept


def unread_calls(rows: Sequence[Row], environment: Callable[[Row], TrialEnv], agent: object) -> str:
    """Explain why calls of the tools that the policy's chat template shows may be taken for answers. Returns an empty
    text if a parser fits, or if the template shows no tools."""
    problem = getattr(call_reader(agent), "problem", "")
    try:
        return problem if problem and rows and prompt_of(environment(rows[0]), rows[0].task_data, agent).tools else ""
    except Exception:  # a malformed task fails its own rollouts, which report it
        return ""


def check_tasks(rows: Sequence[Row], environment: Callable[[Row], TrialEnv], agent: ChatAgent, limit: int) -> None:
    """Raise DataError if none of the first tasks can be shown to the policy with room for an answer, or if a prompt
    with images leaves none.

    limit: maximum tokens of a prompt with its answer.
    """
    until = time.monotonic() + CHECK_SECONDS / 4
    refused: list[DataError] = []
    begins = False
    for number, row in enumerate(rows[:CHECKED_ROWS]):
        env = environment(row)
        if getattr(env, "needs_vision", False) and not agent.sees:
            raise DataError(
                f"{row.env_class_path} asks about images, but model.base does not support images: name a model that "
                "does, such as builtin:tiny-vl"
            )
        on_server = not hasattr(agent, "chat")  # which alone knows its template
        if not isinstance(env, MultiTurnEnv) or on_server or (begins and not agent.sees):
            return
        if time.monotonic() > until:
            break
        try:
            prompt = prompt_of(env, row.task_data, agent)
        except Exception:  # a malformed task fails its own rollouts, which report it
            continue
        encoded = agent.chat.begun(prompt.messages, prompt.tools)
        if isinstance(encoded, VisionError):  # such as a broken file, which fails its own rollouts
            refused.append(DataError(f"task {number}: {encoded}"))
        elif len(encoded.ids) + 1 < limit:
            begins = True
        else:
            seen = sum(image.tokens for image in encoded.images)
            images = f", {seen} of them for {len(encoded.images)} images" if agent.sees else ""
            advice = ", or scale images down with model.max_pixels" if agent.sees else ""
            refused.append(
                DataError(
                    f"task {number}: its prompt has {len(encoded.ids)} tokens{images}; with its answer it may have at "
                    f"most {limit} (training.max_trajectory_tokens): raise that{advice}"
                )
            )
            if agent.sees:
                raise refused[-1]
    if refused and not begins:
        raise refused[0]


def _where(row: Row) -> str:
    return f"row {row.task_data['row']} of the data"
