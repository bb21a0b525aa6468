"""`grpo-tui train --dry-run`: make one step of two rollouts in a temporary folder, and print its result."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from ...configs import metric_names as metric
from ...configs.schema import RunConfig
from ...configs.sections.training import TreeConfig
from ...engine.launch.start import start_run
from ...engine.launch.stop import stop_run
from ...engine.runs.control.status import look
from ...engine.runs.read.reader import RunReader
from ..plain import read_whole
from ..text import wrap
from .common import ExitCode, fail, say
from .follow import StopAsked, crash_reason, signals

ROLLOUTS = 2
POLL_S = 0.2


def dry_run(config: RunConfig) -> int:
    """Print prompts, completions, components, advantages and cost of a trial step. Returns the exit code of the
    command."""
    with tempfile.TemporaryDirectory(prefix="grpo-tui-dry-run-", ignore_cleanup_errors=True) as folder:
        run = start_run(small(config, Path(folder)), runs_dir=Path(folder))
        say(f"dry run: {ROLLOUTS} rollouts of one prompt of {run.environment} with {run.model}; nothing is kept")
        try:
            with signals():
                while (ended := look(Path(run.path))).active:
                    time.sleep(POLL_S)
        except StopAsked as asked:
            stop_run(run)
            return asked.exit_code
        if ended.status == "crashed":
            fail(crash_reason(ended) or "the dry run crashed without a message")
        with RunReader(Path(run.path)) as reader:
            _tell(reader, config)
    return ExitCode.OK


def small(config: RunConfig, folder: Path) -> RunConfig:
    """The same configuration for one step of two rollouts, with everything that it writes in `folder`."""
    reduced = config.model_copy(deep=True)
    training, data = reduced.training, reduced.data
    training.max_steps, training.prompts_per_step, training.num_generations = 1, 1, ROLLOUTS
    training.micro_batch_size, training.eval_every, training.output_dir = None, 0, str(folder / "adapters")
    training.trl = {k: v for k, v in training.trl.items() if k not in ("num_train_epochs", "generation_batch_size")}
    training.tree, training.replay.mode = TreeConfig(), "off"
    reduced.environment.train_tasks, reduced.environment.eval_tasks = 1, 0
    reduced.logging.wandb, reduced.logging.report_to, reduced.logging.record_tokens = "off", [], True
    data.rows, data.sampler, data.pass_rates = data.rows or 64, "uniform", None
    return reduced


def _tell(reader: RunReader, config: RunConfig) -> None:
    from ..app.printed import whole_lines

    rows = [row for row in reader.rollouts.page(limit=ROLLOUTS) if row.split == "train"]
    if not rows:
        fail("the dry run recorded no rollout and kept no log. Start the run itself to see the reason")
    tokens = reader.bodies.tokens(rows[0].n)
    if tokens is not None:
        first = next((i for i, written in enumerate(tokens.agent_mask) if written), len(tokens.token_ids))
        text = "".join(reader.bodies.token_texts(list(tokens.token_ids[:first])))
        say()
        say(f"the prompt as the policy reads it ({first} tokens):")
        for line in wrap(text, 110, limit=len(text)):
            say(f"  {line}")
    for row in rows:
        say("")
        for line in whole_lines(read_whole(reader, row.n)):
            say(line)
    say("")
    for line in cost(reader.metrics.latest(), config):
        say(line)


def cost(measured: Mapping[str, float], config: RunConfig) -> list[str]:
    """Estimate the largest cost of a step of the real size from the cost of two rollouts."""
    training = config.training
    size = training.prompts_per_step * training.num_generations
    seconds = {phase: measured.get(metric.PHASE_SECONDS(phase), 0.0) for phase in metric.PHASES}
    parts = ", ".join(f"{phase} {value:.2f} s" for phase, value in seconds.items() if value >= 0.005)
    lines = [
        f"these {ROLLOUTS} rollouts: {measured.get(metric.TOKENS_PER_ROLLOUT, 0):.0f} tokens each, {parts or '0 s'}",
        f"a step of {training.prompts_per_step} × {training.num_generations} rollouts takes at most "
        f"{sum(seconds.values()) * size / ROLLOUTS:.1f} s at this speed (less if rollouts run together)",
    ]
    used = [
        f"{measured[name] / 1024:.1f} GiB of {where}"
        for name, where in ((metric.MEMORY_GPU, "peak GPU memory"), (metric.MEMORY_RSS, "main memory"))
        if name in measured
    ]
    if used:
        lines.append(f"memory of the training process: {', '.join(used)}; a full step needs more")
    return lines
