"""Reward functions with TRL's interface: `f(prompts, completions, completion_ids, **columns) -> list of scores`.

Each function is called once per batch. A score is a number, None if the function does not apply, or a pair of score and
explanation. Async functions run concurrently. No torch here.
"""

from __future__ import annotations

import asyncio
import copy
import difflib
import inspect
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from statistics import fmean
from types import ModuleType, SimpleNamespace
from typing import Any, Literal, cast

from ..configs.errors import GrpoTuiError, is_interrupt
from ..configs.sections.environment import function_name, is_reward_model
from ..configs.sections.rewards import COMPONENTS
from ..envs import guard
from ..envs.trajectory import ComponentScore
from ..envs.user_code import UserCodeError, find_object, one_line

ROWS = 16
"""Batch size of a forward pass."""


class RewardModel:
    """A reward function whose score is the logit of a sequence classifier. The model loads with the first batch.

    path: a folder or a hub id. The constructor reads the model's configuration and raises OSError or ValueError if it
    is not a classifier.
    """

    def __init__(self, path: str) -> None:
        from transformers import PreTrainedConfig

        folder = Path(path).expanduser()
        self.path = str(folder) if folder.is_dir() else path
        model_config, _ = PreTrainedConfig.get_config_dict(self.path)
        names = model_config.get("architectures") or [""]
        if not any("ForSequenceClassification" in name for name in names):
            raise ValueError(f"{path} is a {names[0] or 'model without an architecture'}, not a sequence classifier")
        if (labels := len(model_config.get("id2label") or ())) > 1:
            raise ValueError(f"{path} is a classifier with {labels} labels, but a reward model has one")

    def __call__(self, prompts: Sequence[object], completions: Sequence[object], **columns: object) -> list[float]:
        import torch

        model, tokenizer = self._loaded
        scores: list[float] = []
        for start in range(0, len(prompts), ROWS):
            rows = slice(start, start + ROWS)
            texts = [_text(p, c, tokenizer) for p, c in zip(prompts[rows], completions[rows], strict=True)]
            inputs = tokenizer(
                text=texts, return_tensors="pt", padding=True, padding_side="right", add_special_tokens=False
            )
            with torch.inference_mode():
                scores += model(**inputs.to(model.device)).logits[:, 0].float().tolist()
        return scores

    @cached_property
    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.path, trust_remote_code=False)

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        import torch
        from transformers import AutoModelForSequenceClassification

        options: dict[str, object] = {"trust_remote_code": False}
        model = AutoModelForSequenceClassification.from_pretrained(self.path, num_labels=1, **options)
        tokenizer = self.tokenizer
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return model.to(device).eval(), tokenizer


def _text(prompt: Any, completion: Any, tokenizer: Any) -> str:
    if isinstance(prompt, str):
        return f"{prompt}{completion}"
    from trl.data_utils import apply_chat_template

    return apply_chat_template({"messages": [*prompt, *completion]}, tokenizer)["text"]


logger = logging.getLogger(__name__)

Conversation = list[dict[str, object]]
"""Messages for a chat template: `role`, `content`, and the fields of tool calls."""
Prompt = str | Conversation
OnError = Literal["stop", "skip"]

BUILT_IN = ("prompts", "completions", "completion_ids", "log_extra", "log_metric", "trainer_state")
"""Arguments available to every function, in addition to the columns of the data."""
TRIES = 16
"""Maximum number of rows to retry one by one after a function raised, to find the failing row."""
LARGEST = 1e38
"""Scores must be smaller, because training adds them in float32."""


class RewardFunctionError(GrpoTuiError, ValueError):
    """A reward function failed or cannot be used. The message is one sentence that names the function and the row."""


@dataclass(frozen=True)
class Completions:
    """The input of reward functions: B rollouts. All sequences have B entries.

    completion_ids: token ids of everything after the prompt. columns: the data's columns by name, with None for missing
    values. rows: the name of each row for error messages, such as `row 3 of gsm8k.jsonl`. state: transformers'
    `TrainerState`, if there is a trainer.
    """

    prompts: Sequence[Prompt]
    completions: Sequence[Prompt]
    completion_ids: Sequence[Sequence[int]]
    columns: Mapping[str, Sequence[object]]
    rows: Sequence[str]
    step: int = 0
    state: object | None = None

    def __len__(self) -> int:
        return len(self.completions)

    def only(self, index: int) -> Completions:
        selection = slice(index, index + 1)
        lists = {name: getattr(self, name)[selection] for name in ("prompts", "completions", "completion_ids", "rows")}
        return replace(self, **lists, columns={name: values[selection] for name, values in self.columns.items()})


@dataclass(frozen=True)
class Logged:
    """Columns and numbers that functions log in one batch, as in TRL."""

    extra: dict[str, list[object]] = field(default_factory=dict)
    numbers: dict[str, list[float]] = field(default_factory=dict)

    def log_extra(self, column: str, values: Sequence[object]) -> None:
        """Add a column with one value per completion."""
        self.extra.setdefault(column, []).extend(values)

    def log_metric(self, name: str, value: float) -> None:
        """Add a number. The metric of the step is the mean of all its numbers."""
        self.numbers.setdefault(name, []).append(float(value))


@dataclass
class RewardFunction:
    """One reward function with its name and weight."""

    path: str
    weight: float
    call: Callable[..., object]
    name: str
    accepts: frozenset[str] | None
    """Names of its parameters. None if it takes any (`**kwargs`)."""
    needs: tuple[str, ...]
    """The parameters without a default."""

    @property
    def said(self) -> str:
        return f"reward function {self.name} ({self.path})"

    def check_columns(self, columns: Iterable[str]) -> None:
        known = list(columns)
        if "environments" in self.needs and "environments" not in known:
            raise RewardFunctionError(
                f"{self.said} needs `environments`, which TRL gives only with its `environment_factory`. Here "
                "`completions` contain the calls and their results, and environments return rewards in their steps"
            )
        for name in self.needs:
            if name not in BUILT_IN and name not in known:
                raise RewardFunctionError(
                    f"{self.said} needs `{name}`, but the data has no such column; it has {', '.join(known) or 'none'}"
                )

    def arguments(self, completions: Completions, logged: Logged) -> dict[str, object]:
        """Return the keyword arguments of a call: all if the function takes `**kwargs`, else those it names.

        Copies everything, because a function may change it: rollouts of the same row and later steps share the columns,
        and the next function reads the same messages.
        """
        arguments: dict[str, object] = {
            **{name: [copy.deepcopy(value) for value in values] for name, values in completions.columns.items()},
            "prompts": [copy.deepcopy(prompt) for prompt in completions.prompts],
            "completions": [copy.deepcopy(completion) for completion in completions.completions],
            "completion_ids": [list(ids) for ids in completions.completion_ids],
            "log_extra": logged.log_extra,
            "log_metric": logged.log_metric,
            "trainer_state": completions.state or SimpleNamespace(global_step=completions.step),
        }
        return arguments if self.accepts is None else {k: v for k, v in arguments.items() if k in self.accepts}


@dataclass(frozen=True)
class Scores:
    """The scores of B rollouts. by_row: for each rollout, one score per function, in order. extra: columns that the
    functions logged (`log_extra`), each with B entries. metrics: means of the numbers that they logged
    (`log_metric`)."""

    by_row: list[tuple[ComponentScore, ...]]
    extra: dict[str, list[object]] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RewardFunctions:
    """The reward functions of a run. on_error: `stop` raises, `skip` logs the error and gives no score."""

    functions: tuple[RewardFunction, ...]
    on_error: OnError = "stop"

    @classmethod
    def load(cls, weights: Mapping[str, float], on_error: OnError = "stop") -> RewardFunctions:
        return cls(tuple(load_function(path, weight) for path, weight in weights.items()), on_error)

    def check_columns(self, columns: Iterable[str]) -> None:
        for function in self.functions:
            function.check_columns(columns)

    def check_templates(self) -> None:
        """Raise RewardFunctionError for a reward model that cannot read messages."""
        for function in self.functions:
            if isinstance(function.call, RewardModel) and not function.call.tokenizer.chat_template:
                raise RewardFunctionError(
                    f"{function.said} has no chat template, and completions are lists of messages: save its tokenizer "
                    "with a template, or set data.completions: text"
                )

    def score(self, completions: Completions) -> Scores:
        """Call every function once. If one fails and `on_error` is `stop`, raises RewardFunctionError."""
        logged = Logged()
        results: list[object] = []
        for function in self.functions if len(completions) else ():
            try:
                results.append(function.call(**function.arguments(completions, logged)))
            except BaseException as problem:  # the user's code
                if is_interrupt(problem):
                    raise
                results.append(self._failed(function, completions, problem))
        waiting = {i: guard.awaited(result) for i, result in enumerate(results) if inspect.isawaitable(result)}
        for i, result in zip(waiting, _together(waiting.values()) if waiting else (), strict=True):
            if isinstance(result, BaseException):
                result = self._failed(self.functions[i], completions, result)
            results[i] = result
        columns = [self._checked(f, r, completions) for f, r in zip(self.functions, results, strict=False)]
        by_row = [tuple(column[i] for column in columns) for i in range(len(completions))]
        extra = {name: values for name, values in logged.extra.items() if len(values) == len(completions)}
        for name in logged.extra.keys() - extra.keys():
            _report_column(name)
        return Scores(by_row, extra, {name: fmean(values) for name, values in logged.numbers.items()})

    def _failed(self, function: RewardFunction, completions: Completions, problem: BaseException) -> list[None]:
        """Return no scores, or raise the error. Retries the rows one by one to find the failing one."""
        where = ""
        for index in range(min(len(completions), TRIES)):
            try:
                result = function.call(**function.arguments(completions.only(index), Logged()))
                if inspect.isawaitable(result):
                    (result,) = _together([guard.awaited(result)])
                    if isinstance(result, BaseException):
                        raise result
            except BaseException as again:
                if is_interrupt(again):
                    raise
                where, problem = f" for {completions.rows[index]}", again
                break
        hint = ""
        if isinstance(problem, (TypeError, AttributeError)) and completions.completions:
            texts = isinstance(completions.completions[0], str)
            form = "texts" if texts else 'lists of messages (`completion[0]["content"]`)'
            other = "messages" if texts else "text"
            hint = f"; completions are {form} here, and data.completions: {other} changes that"
        self._problem(f"{function.said} raised {one_line(problem)}{where}{hint}", problem)
        return [None] * len(completions)

    def _checked(self, function: RewardFunction, result: object, completions: Completions) -> list[ComponentScore]:
        """Convert the result of a function to scores. Raises RewardFunctionError if `on_error` is `stop`."""
        values = result.tolist() if hasattr(result, "tolist") else result  # type: ignore[union-attr]
        nothing = [ComponentScore(function.name, None, function.weight)] * len(completions)
        if not isinstance(values, (list, tuple)):
            self._problem(f"{function.said} returned {_shown(result)}, not a list of {len(completions)} scores")
            return nothing
        if len(values) != len(completions):
            self._problem(f"{function.said} returned {len(values)} scores for {len(completions)} completions")
            return nothing
        scores = []
        for value, row in zip(values, completions.rows, strict=True):
            number, reason = value if isinstance(value, tuple) and len(value) == 2 else (value, "")
            try:
                if not isinstance(number, (int, float)) and hasattr(number, "item"):  # a NumPy or torch scalar
                    number = number.item()  # type: ignore[union-attr]
                good = number is None or (isinstance(number, (int, float)) and abs(number) < LARGEST)
            except (ValueError, RuntimeError):  # an array
                good = False
            if not good:
                self._problem(
                    f"{function.said} returned {_shown(number)} for {row}; a score must be a number below {LARGEST:g}, "
                    "None if it does not apply, or a pair (score, sentence)"
                )
                number, reason = None, ""
            score = None if number is None else float(cast("float", number))
            scores.append(ComponentScore(function.name, score, function.weight, str(reason or "")))
        return scores

    def _problem(self, message: str, cause: BaseException | None = None) -> None:
        if self.on_error == "stop":
            advice = "environment.reward_errors: skip continues without its score"
            raise RewardFunctionError(f"{message} ({advice})") from cause
        logger.warning("%s. The run continues without its score", message)


def load_function(path: str, weight: float = 1.0) -> RewardFunction:
    """Load the function at `file.py:name` or `package.module.name`, or the reward model in a folder or at a hub id.

    Raises RewardFunctionError.
    """
    name = function_name(path)
    if name in COMPONENTS:
        raise RewardFunctionError(
            f"reward function {path}: {name} is already the name of a component; rename the function"
        )
    if is_reward_model(path):
        try:
            return RewardFunction(path, weight, RewardModel(path), name, None, ())
        except (OSError, ValueError) as problem:
            reason = str(problem).strip().splitlines()[0]
            raise RewardFunctionError(
                f'environment.reward_funcs: "{path}" is not a reward model: {reason}; write a function as file.py:name'
            ) from problem
    try:
        module, found = find_object(path)
    except UserCodeError as problem:
        raise RewardFunctionError(f"environment.reward_funcs: {problem}") from problem
    if found is None:
        raise RewardFunctionError(f'"{path}": there is no {name}{_hint(name, module)}')
    if inspect.isclass(found) or not callable(found):
        raise RewardFunctionError(f'"{path}" is {_shown(found)}, not a function `f(completions, **kwargs)`')
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):  # some C callables have no signature
        return RewardFunction(path, weight, found, name, None, ())
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    keyword_parameters = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    nameless = next((p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty), None)
    taken, wrong = {p.name for p in keyword_parameters}, ""
    if nameless is not None:
        wrong = f"its parameter `{nameless}` cannot be passed by name"
    elif not anything and not taken & {"prompts", "completions", "completion_ids"}:
        wrong = "it takes neither prompts nor completions, so it has nothing to judge"
    if wrong:
        raise RewardFunctionError(f'"{path}": {wrong}; expected `def {name}(completions, **kwargs)`')
    return RewardFunction(
        path,
        weight,
        found,
        name,
        None if anything else frozenset(taken),
        tuple(p.name for p in keyword_parameters if p.default is p.empty),
    )


def _hint(name: str, module: ModuleType) -> str:
    """Return the rest of a sentence about a missing function: the most similar one of the module, or all of them."""
    functions = [n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
    if not functions:  # a package that imports its functions lazily
        functions = [n for n in dir(module) if not n.startswith("_")]
    if near := difflib.get_close_matches(name, functions, 1, 0.6):
        return f"; did you mean {near[0]}?"
    return f"; it has {', '.join(functions)}" if functions else " and no other function"


@cache
def _report_column(name: str) -> None:
    text = "a reward function logged the column %s without one value per completion, so it is not recorded"
    logger.warning(text, name)


def _together(waiting: Iterable[Coroutine[object, object, object]]) -> list[object]:
    """Run all concurrently and return their results or exceptions, in order."""

    async def gathered() -> list[object]:
        return list(await asyncio.gather(*waiting, return_exceptions=True))

    return guard.wait(gathered())


def _shown(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."
