"""Record training with verl's v1 trainer (0.9) with `attach`, and use reward functions in verl with `compute_score`.

Call `attach` before the trainer is created. verl looks up its trainer in a registry by `trainer.v1.trainer_mode`;
`attach` replaces the classes there with subclasses of the same names. So call it in the process that creates the
trainer, such as a script that imports `verl.trainer.main_ppo` and runs its task runner. verl writes rollouts only if
`trainer.rollout_data_dir` is set.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from grpo_tui.engine.imports.format import Origin
from grpo_tui.engine.imports.formats.tables import VERL
from grpo_tui.engine.imports.formats.trl import VERL_METRICS
from grpo_tui.engine.imports.rollout import Rollout
from grpo_tui.recorder import Recorder
from grpo_tui.rewards.functions import Completions, RewardFunctionError, RewardFunctions

_NOWHERE = Origin(Path("verl"), Path())


class Recorded:
    """A mixin for verl trainers that reads rollouts and metrics and changes nothing."""

    grpo_tui_options: Mapping[str, Any] = {}
    """Options for `Recorder`."""
    _recorder: Recorder | None = None

    def fit(self, *args: object, **kwargs: object) -> object:
        """Train, and record the training as one run."""
        recorder = self._recorder = Recorder(**{**_described(self), **self.grpo_tui_options})
        missing = _missing(self)
        recorder.no_rollouts = missing or f"{type(self).__name__} wrote none"
        what = f"metrics only ({missing})" if missing else "rollouts and metrics"
        print(f"grpo-tui records {what} in {recorder.run_dir}")
        with recorder:
            return super().fit(*args, **kwargs)  # type: ignore[misc] - verl's trainer comes next

    def __setattr__(self, name: str, value: object) -> None:
        if name == "logger" and self._recorder is not None:  # verl sets it at the start of `fit`
            value = _Logger(value, self._recorder)
        super().__setattr__(name, value)

    def _dump_generations(self, *args: object, **kwargs: object) -> object:
        write = super()._dump_generations  # type: ignore[misc]
        if (recorder := self._recorder) is not None:
            try:
                arguments = inspect.signature(write).bind(*args, **kwargs).arguments
                step, rows = int(getattr(self, "global_steps", 0)), _rows(arguments)
                split = "eval" if arguments["dump_path"] == _setting(self, "validation_data_dir") else "train"
                recorder.rollouts(step, [_rollout(row, step, split) for row in rows])
            except Exception as error:
                recorder.failed(error, rows=1)
        return write(*args, **kwargs)


def _rows(arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rollouts in the arguments of verl's `_dump_generations`."""
    columns = {
        "input": arguments["inputs"],
        "output": arguments["outputs"],
        "gts": arguments["gts"],
        "score": arguments["scores"],
    }
    columns |= {k: v for k, v in arguments["reward_extra_infos_dict"].items() if len(v) == len(arguments["inputs"])}
    return [dict(zip(columns, row, strict=True)) for row in zip(*map(list, columns.values()), strict=True)]


def _missing(trainer: Any) -> str:
    if not callable(getattr(super(Recorded, trainer), "_dump_generations", None)):
        return f"{type(trainer).__name__} has no _dump_generations, as verl 0.9 has"
    folders = [_setting(trainer, name) for name in ("rollout_data_dir", "validation_data_dir")]
    return "" if any(folders) else "trainer.rollout_data_dir is not set, so verl writes no rollouts"


def attach(registry: MutableMapping[str, type] | None = None, **options: object) -> None:
    """Record every trainer in verl's registry. `options` are passed to `Recorder` (`run`, `runs_dir`, `name`, …)."""
    found = _registry() if registry is None else registry
    for name, trainer_class in list(found.items()):
        if not issubclass(trainer_class, Recorded):
            found[name] = type(trainer_class.__name__, (Recorded, trainer_class), {"grpo_tui_options": options})


def _registry() -> MutableMapping[str, type]:
    import verl.trainer.ppo.v1  # type: ignore[import-not-found]  # noqa: F401 - it registers the trainers
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY  # type: ignore[import-not-found]

    return TRAINER_REGISTRY


def _described(trainer: object) -> dict[str, Any]:
    model = getattr(getattr(getattr(trainer, "config", None), "actor_rollout_ref", None), "model", None)
    steps = getattr(trainer, "total_training_steps", None)
    return {
        "run": _setting(trainer, "experiment_name") or None,
        "environment": _setting(trainer, "project_name") or "",
        "model": str(getattr(model, "path", "") or ""),
        "total_steps": steps if isinstance(steps, int) else None,
    }


def _setting(trainer: object, name: str) -> str:
    settings = getattr(getattr(trainer, "config", None), "trainer", None)
    try:
        found = settings.get(name, None)  # type: ignore[union-attr]
    except (AttributeError, TypeError):
        found = getattr(settings, name, None)
    return str(found) if found else ""


class _Logger:
    """Wraps verl's logger and also writes to the record."""

    def __init__(self, inner: Any, recorder: Recorder) -> None:
        self.inner = inner
        self.recorder = recorder

    def log(self, data: Mapping[str, Any], step: int, *args: Any, **kwargs: Any) -> object:
        try:
            numbers = {VERL_METRICS.get(k, k): float(v) for k, v in data.items() if isinstance(v, (int, float))}
            self.recorder.metrics(int(step), numbers)
        except Exception as error:
            self.recorder.failed(error)
        return self.inner.log(data, step, *args, **kwargs)

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: object,
    extra_info: Mapping[str, object] | None = None,
    *,
    functions: Sequence[str],
    weights: Sequence[float] | None = None,
    **_: object,
) -> dict[str, float | str]:
    """Return the weighted sum of reward functions as `score`, for verl's `custom_reward_function`.

    functions: each as `file.py:name`. weights: one per function (None: 1 each). A function receives the completion as
    text, and the columns `answer` (the ground truth), `data_source` and the entries of `extra_info`. The result also
    holds each function's score under its name and its explanation as `NAME_why`. A function that does not apply counts
    as 0. Raises RewardFunctionError.
    """
    columns = {**(extra_info or {}), "answer": ground_truth, "data_source": data_source}  # GSM8K also has an `answer`
    judges = _functions(tuple(functions), None if weights is None else tuple(weights))
    judges.check_columns(columns)
    completions = Completions(
        prompts=[str(columns.get("question", ""))],
        completions=[solution_str],
        completion_ids=[[]],
        columns={name: [value] for name, value in columns.items()},
        rows=[f"row {columns.get('index', '?')} of {data_source}"],
    )
    (scores,) = judges.score(completions).by_row
    found: dict[str, float | str] = {"score": sum(s.weight * (s.value or 0.0) for s in scores)}
    for score in scores:
        found |= {score.name: score.value or 0.0, f"{score.name}_why": score.why}
    return found


@cache
def _functions(paths: tuple[str, ...], weights: tuple[float, ...] | None) -> RewardFunctions:
    weights = (1.0,) * len(paths) if weights is None else weights
    if len(weights) != len(paths):
        raise RewardFunctionError(f"{len(weights)} weights for {len(paths)} reward functions; each needs one")
    return RewardFunctions.load(dict(zip(paths, weights, strict=True)))


def _rollout(row: Mapping[str, Any], step: int, split: str) -> Rollout:
    plain = {k: v.item() if hasattr(v, "item") else v for k, v in row.items()}
    return replace(VERL.rollout({**plain, "step": step}, _NOWHERE), split=split)
