"""Send metrics to Weights & Biases in addition to the run's record. Off by default. `offline` needs no key or network.

Failures of wandb are reported once and never stop the training.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...configs import metric_names as metric
from ...configs.sections.base import LoggingConfig

if TYPE_CHECKING:  # wandb is off by default and slow to import
    from wandb import Run, Table

log = logging.getLogger(__name__)

ACTION_TABLE = "behavior/action_table"
"""A table of step, action and frequency for all of training, for `STACKED_BARS`."""

STACKED_BARS: dict[str, object] = {
    "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
    "data": {"name": "wandb"},
    "mark": {"type": "bar", "width": {"band": 1}},
    "encoding": {
        "x": {"field": "${field:step}", "type": "ordinal", "title": "step"},
        "y": {"field": "${field:frequency}", "type": "quantitative", "stack": "zero", "title": "share of actions"},
        "color": {"field": "${field:action}", "type": "nominal", "title": "action"},
    },
}
"""The spec of a wandb custom chart over `ACTION_TABLE`, with the fields step, frequency and action."""

INIT_TIMEOUT_S = 30


class WandbSink:
    """One wandb run. With `wandb: off`, or after wandb has failed, every method does nothing.

    folder: where wandb writes its files (the run's folder). on_problem: called with one sentence when wandb fails.
    table_every: number of steps between writes of the action table.
    """

    def __init__(
        self,
        config: LoggingConfig,
        folder: Path,
        *,
        run_id: str,
        name: str = "",
        run_config: Mapping[str, object] | None = None,
        on_problem: Callable[[str], None] = log.warning,
        table_every: int = 10,
    ) -> None:
        self.on_problem = on_problem
        self.table_every = max(1, table_every)
        self._run: Run | None = None
        self._table: Table | None = None
        self._rows_waiting = 0
        self._on_axis: dict[str, str] = {}
        if config.wandb_mode == "off":
            return
        try:
            import wandb

            self._run = wandb.init(
                project=config.wandb_project,
                id=run_id,
                name=name or run_id,
                dir=str(folder),
                mode=config.wandb_mode,
                config=dict(run_config or {}),
                # Terminal and process belong to training: do not capture output, ask questions or collect statistics.
                settings=wandb.Settings(
                    console="off",
                    silent=True,
                    x_disable_stats=True,
                    disable_git=True,
                    disable_code=True,
                    init_timeout=INIT_TIMEOUT_S,
                    login_timeout=INIT_TIMEOUT_S,
                ),
            )
            self._table = wandb.Table(columns=["step", "action", "frequency"], log_mode="INCREMENTAL")
        except Exception as error:
            self._give_up("could not be started", error)

    def log(self, step: int, metrics: Mapping[str, float | Mapping[str, float]], *, axis: str | None = None) -> None:
        """Log a step's metrics by name. Mappings such as the action distribution are logged whole.

        axis: the metric that `step` is a value of, if it is not wandb's own step. wandb merges all values logged at one
        of its steps, so two updates for one request would become one point.

        NaN and infinity are logged as they are: wandb draws a gap.
        """
        if self._run is None or self._table is None:
            return
        try:
            values: dict[str, object] = dict(metrics)
            shares = metrics.get(metric.ACTION_SHARE.mapping)
            for action, frequency in shares.items() if isinstance(shares, Mapping) else ():
                if math.isfinite(frequency):
                    self._table.add_data(step, action, frequency)
                    self._rows_waiting += 1
            if self._rows_waiting and step % self.table_every == 0:
                values |= self._waiting_table()
            if axis is None:
                self._run.log(values, step=step)
            else:
                for name in values.keys() - self._on_axis.keys() - {axis}:
                    self._run.define_metric(name, step_metric=axis)
                    self._on_axis[name] = axis
                self._run.log({**values, axis: step})
        except Exception as error:
            self._give_up(f"stopped at step {step}", error)

    def close(self, exit_code: int = 0) -> None:
        run = self._run
        if run is None:
            return
        try:
            if self._rows_waiting:
                run.log(self._waiting_table())
            run.finish(exit_code=exit_code)
        except Exception as error:
            self._give_up("could not be ended", error)
        self._run = None

    def _waiting_table(self) -> dict[str, object]:
        self._rows_waiting = 0
        return {ACTION_TABLE: self._table}

    def _give_up(self, what: str, error: Exception) -> None:
        self._run = None
        log.debug("wandb %s", what, exc_info=error)
        reason = (str(error) or type(error).__name__).strip().splitlines()[0]
        try:
            self.on_problem(f"wandb {what} and is off for the rest of this run: {reason}")
        except Exception:
            log.exception("reporting a problem of wandb failed")
