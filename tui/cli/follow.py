"""A run as plain lines of text: for pipes, logs and terminals that cannot show the app."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from types import FrameType

import psutil
import typer

from ...configs import metric_names as metric
from ...engine.launch.children import exit_code
from ...engine.launch.logs import last_error, log_path
from ...engine.launch.stop import stop_run, wait_until_gone
from ...engine.runs.control.live import LiveState, read_live
from ...engine.runs.control.status import look
from ...engine.runs.health.checkpoints import checkpoint_folder, checkpoints
from ...engine.runs.health.headline import RATE_WINDOW, RATES
from ...engine.runs.paths import CONFIG_FILE, RUN_FILE, adapters_dir
from ...engine.runs.read.reader import RunReader
from ...engine.runs.types import Event, RunInfo
from ..format import count, duration, number
from ..progress_text import PHASES, current_batches, inside, phase_left, rollouts_line
from ..text import literal
from .common import ExitCode, say, warn

POLL_S = 0.25
PHASE_EVERY_S = 10.0
"""Inside a step, at most one line about the phase in this time."""

COLUMNS = {
    "sft": (
        ("loss", metric.LOSS),
        ("token accuracy", metric.TOKEN_ACCURACY),
        ("held-out", metric.SUCCESS_GREEDY),
        ("s/step", metric.STEP_SECONDS),
    ),
    "rft": (
        ("reward", metric.REWARD_MEAN),
        ("±", metric.REWARD_STD),
        ("success", metric.SUCCESS_TRAIN),
        ("KL", metric.KL_MEAN),
        ("s/step", metric.STEP_SECONDS),
    ),
    "online": (
        (f"success of {RATE_WINDOW}", metric.ONLINE_SUCCESS),
        ("KL", metric.ONLINE_KL),
        ("beta", metric.ONLINE_BETA),
        ("queue", metric.QUEUE_DEPTH),
        ("version", metric.SERVING_VERSION),
    ),
}
VAGUE = ("the process is gone", "the process never started")
"""The message for a process that ended without a status. Its log has details."""
TOLD = ("phase", "eval", "checkpoint", "snapshot", "alert", "note", "record", "error", "control")
"""Kinds of event that are printed."""


class StopAsked(Exception):
    """SIGINT or SIGTERM came while following."""

    def __init__(self, number: int) -> None:
        self.exit_code = 128 + number
        super().__init__(number)


@contextmanager
def signals() -> Iterator[None]:
    """Let SIGTERM as well as Ctrl-C raise StopAsked, so that the stop of a batch system saves the run."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise StopAsked(number)

    before = {n: signal.signal(n, handler) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for n, old in before.items():
            signal.signal(n, old)


def follow(run: RunInfo, *, out: Callable[[str], None] = say) -> int:
    """Print the run's progress until it ends. Returns the exit code of the command.

    On Ctrl-C and SIGTERM the run is asked to save and stop.
    """
    progress = _Progress(run, out)
    try:
        with signals():
            info = progress.until_end()
            if info is None:
                return progress.until_gone()
    except StopAsked as asked:
        warn(f"stopping run {run.id}; it saves first")
        try:
            with signals():
                if progress.lost and progress.process is not None:
                    with suppress(psutil.Error):
                        progress.process.terminate()
                    progress.until_gone()
                    return asked.exit_code
                info = stop_run(run)
        except StopAsked:
            warn(f"not waiting; run {run.id} may still be saving. See: grpo-tui runs")
            return asked.exit_code
        progress.print_new(last=True)
        out(f"run {run.id} {info.status} at step {info.step}; resume with: {run.resume_command}")
        return asked.exit_code
    finally:
        progress.reader.close()
    if left := wait_until_gone(Path(run.path)):
        warn(f"the process {left[0]!r} of run {run.id} is still running; grpo-tui stop {run.reference} ends it")
    tell_end(info, out)
    return ExitCode.OK if info.status in ("finished", "stopped") else ExitCode.FAILED


def tell_end(run: RunInfo, out: Callable[[str], None] = say) -> None:
    """The last lines about a run: how it ended, how to look at it, and how to go on."""
    took = f" in {duration(run.ended - run.created)}" if run.ended and run.created <= run.ended else ""
    if run.status == "crashed":
        process = "engine" if run.mode == "online" else "training"
        log = log_path(run, process) or log_path(run)
        line = crash_reason(run)
        reason = f": {line}" if line else ""
        saved = f"; its adapters are in {folder}" if (folder := _saved(run)) is not None else ""
        warn(f"run {run.id} crashed at step {run.step}{reason}{saved}; its log: {log or Path(run.path) / 'logs'}")
        out(f"inspect: grpo-tui inspect {run.reference} · {_next_command(run)}")
        return
    why = f": {run.error}" if run.error else ""
    out(f"run {run.id} {run.status} at step {run.step}{took}{why}")
    again = f" · resume: {run.resume_command}" if run.status == "stopped" else ""
    out(f"inspect: grpo-tui inspect {run.reference}{again}")


def follow_to_end(run: RunInfo, *, out: Callable[[str], None] = say) -> None:
    """Print the run's progress until it ends. A run that did not finish ends the command."""
    code = follow(run, out=out)
    if code or look(Path(run.path)).status != "finished":
        raise typer.Exit(code or ExitCode.FAILED)


def crash_reason(run: RunInfo) -> str:
    """Return the cause of a crash in one line, if known."""
    line = ((run.error or "").strip().splitlines() or [""])[-1]
    if line.startswith(VAGUE):
        line = last_error(run, "engine" if run.mode == "online" else "training") or line
    return literal(line.strip()[:300])


def _saved(run: RunInfo) -> Path | None:
    """Return the adapters of a run that ended after saving them."""
    from ...configs.errors import GrpoTuiError
    from ...engine.launch.settings import read_config

    with suppress(GrpoTuiError):
        config = read_config(Path(run.path))
        section = config.sft if config.mode == "sft" else config.training
        folder = adapters_dir(section.output_dir, Path(run.path).name)
        return folder if folder.is_dir() else None
    return None


def _next_command(run: RunInfo) -> str:
    """Return the command to type after a crash: resume from a checkpoint, or start again with the configuration."""
    if run.mode in ("online", "eval"):
        return f"resume: {run.resume_command}"
    if checkpoints(checkpoint_folder(Path(run.path))):
        return f"resume from its last checkpoint: grpo-tui train --resume {run.reference}"
    return f"it has no checkpoint; start again: grpo-tui train {quote(f'{run.path}/{CONFIG_FILE}')}"


class _Progress:
    """The state of printing a run's progress."""

    def __init__(self, run: RunInfo, out: Callable[[str], None]) -> None:
        self.path, self.mode, self.out = Path(run.path), run.mode, out
        self.reader = RunReader(self.path)
        self.metric_row = 0
        self.event_id = 0
        self.values: dict[str, float] = {}
        self.rates: dict[str, deque[float]] = {}
        """The newest outcomes of single requests, from which the rate is computed."""
        self.step = 0
        self.printed_step = 0
        self.printed_at = time.monotonic()
        self.total = run.total_steps
        self.process: psutil.Process | None = None
        self.lost = False
        self.trouble: object = None

    def until_end(self) -> RunInfo | None:
        """Follow the run to its end; return None if its record is removed before."""
        while self._read_metrics():  # a resumed run's own values; its old lines are not printed again
            pass
        self.step = 0
        self.event_id = max((event.id for event in self.reader.events(limit=1)), default=0)
        while True:
            info = self.reader.info()
            if info.pid is not None and self.process is None:
                with suppress(psutil.Error):
                    self.process = psutil.Process(info.pid)
            if not info.active and not (self.path / RUN_FILE).exists() and self._alive():
                self.lost = True
                warn(f"! the folder of run {info.id} is gone; training continues without a record")
                return None
            self.total = info.total_steps or self.total
            trouble = info.facts.get("trouble")
            if trouble and trouble != self.trouble:
                warn(f"! {trouble}")
            self.trouble = trouble
            self.print_new(last=not info.active)
            if not info.active:
                return info
            waited = time.monotonic() - self.printed_at
            if waited >= PHASE_EVERY_S and (line := phase_line(info, read_live(info), time.time())):
                self.out(line)
                self.printed_at = time.monotonic()
            time.sleep(POLL_S)

    def until_gone(self) -> int:
        """Wait for the process of a run without a record. Only its exit code reveals how it ended."""
        while self._alive():
            time.sleep(POLL_S)
        code = exit_code(self.process.pid) if self.process is not None else None
        self.out(f"the training process has ended{'' if code is None else f' with exit code {code}'}")
        return ExitCode.FAILED if code else ExitCode.OK

    def _alive(self) -> bool:
        try:
            return self.process is not None and self.process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def _read_metrics(self) -> bool:
        """Read the next values; return whether there were any."""
        self.metric_row, new_points = self.reader.metrics.since(self.metric_row)
        for name, points in new_points.items():
            values = [value for _, value in points]
            if name in RATES:
                self.rates.setdefault(name, deque(maxlen=RATE_WINDOW)).extend(values)
                values = [sum(self.rates[name]) / len(self.rates[name])]
            self.values[name] = values[-1]
            self.step = max(self.step, points[-1][0])
        return bool(new_points)

    def print_new(self, *, last: bool) -> None:
        self._read_metrics()
        for event in self.reader.events(kinds=TOLD, after_id=self.event_id):
            self.event_id = max(self.event_id, event.id)
            if event.step >= self.step:
                self._print_step()  # what happened after the step is told after it
            self._tell(event)
        if last or time.monotonic() - self.printed_at >= 1.0:  # at most one line a second
            self._print_step()

    def _print_step(self) -> None:
        if self.step > self.printed_step and self.mode in COLUMNS:
            self.out(step_line(self.mode, self.step, self.total, self.values))
            self.printed_step, self.printed_at = self.step, time.monotonic()

    def _tell(self, event: Event) -> None:
        if event.kind == "control" and event.data.get("command") in (None, "checkpoint"):
            return
        mark = "! " if event.kind in ("alert", "error", "record") and event.data.get("severity") != "hint" else ""
        where = f"step {event.step}: " if event.step else ""
        self.out(f"{mark}{where}{literal(event.message)}")


def phase_line(run: RunInfo, live: LiveState | None, now: float) -> str:
    """Return a line such as `step 1/20: 12 of 32 rollouts · 840 of ≤ 4,096 tokens · 85 tok/s · ≤ 20 s left`; empty if
    nothing is known."""
    position = inside(run.progress, live)
    if position is None or not position.phase or run.status not in ("starting", "running"):
        return ""
    step = run.step + (position.phase in PHASES)  # other phases belong to the last step
    where = f"step {count(step)}" + (f"/{count(run.total_steps)}" if run.total_steps else "")
    left = phase_left(position, live, now)
    batches = current_batches(live)
    if position.phase in ("rollouts", "evaluation") and batches:
        parts = [*([batches[-1].purpose.name] if batches[-1].purpose.name else []), *rollouts_line(batches, left)]
        parts += [
            f"{s.url}: " + (f"out ({s.why_out})" if s.why_out else f"{s.in_flight} in flight, {count(s.tokens)} tokens")
            for s in (live.servers if live is not None else ())
        ]
    else:
        done = f" {count(position.done)}/{count(position.total)}" if position.total > 1 else ""
        parts = [position.phase + done, *([left] if left else [])]
    return f"{where}: {' · '.join(map(literal, parts))}"


def step_line(mode: str, step: int, total: int | None, values: Mapping[str, float]) -> str:
    """Return a line such as `step  12/150  reward 0.42 ± 0.21  success 0.31  KL 0.0012  1.2 s/step`."""
    width = len(str(total)) if total else 0
    parts = [f"step {step:>{width}}" + (f"/{total}" if total else "")]
    for label, name in COLUMNS[mode]:
        if name not in values:
            continue
        text = number(values[name])
        if label == "±":
            parts[-1] += f" ± {text}"
        else:
            parts.append(f"{text} {label}" if label == "s/step" else f"{label} {text}")
    return "  ".join(parts)
