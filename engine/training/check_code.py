"""`python -m grpo_tui.engine.training.check_code CONFIG`: whether tools, reward functions and their columns exist.

A process of its own before a run is made, because it runs the user's code. It loads no model.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ...configs.schema import RunConfig

ROWS = 64
"""Rows of a dataset whose columns are looked at."""


def check_code(config: RunConfig) -> None:
    """Load the tools and reward functions of a run, and compare the functions with the columns of the data.

    Raises EnvLoadError, DataError or RewardFunctionError.
    """
    from ...envs.function_tools import load_tools
    from ..rollouts.dataset import load_rows
    from ..rollouts.judging import make_judge

    environment, data = config.environment, config.data
    if data.source is not None:
        load_tools(environment.tools)
    few = environment.model_copy(update={"train_tasks": 1, "eval_tasks": min(environment.eval_tasks, 1)})
    head = data.model_copy(update={"rows": min(data.rows or ROWS, ROWS)})
    if environment.reward_funcs:
        make_judge(environment, [])  # before the data, which may take longer
        make_judge(environment, load_rows(few, "train", config.seed, None, head))


def main(arguments: Sequence[str]) -> int:
    """Return 0, or 1 with one sentence on standard error."""
    from ...configs.loading import load_config
    from ..launch.outcome import one_sentence

    try:
        check_code(load_config(arguments[0]))
    except Exception as problem:  # the user's code may raise anything
        print(one_sentence(problem), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
