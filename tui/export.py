"""What is shown, elsewhere: as a file, in the pager, in the editor."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.runs.types import TrajectoryRecord

if TYPE_CHECKING:
    from textual.app import App

EXPORTS = "exports"


def trajectory_text(record: TrajectoryRecord) -> str:
    """A trajectory as plain text for people: prompt, steps, rewards, penalties."""
    t = record.trajectory
    rewards = {s.step: s for s in record.breakdown.steps} if record.breakdown else {}
    out = [f"trajectory {t.id}   group {t.group}   prompt {t.prompt_id}   rollout {t.rollout}", ""]
    if record.breakdown is not None:
        out.append(f"reward {_number(record.breakdown.total)}   advantage {record.advantage}")
    out += [f"{what}: {why}" for what, why in record.unknown.items()]
    out += ["", "== prompt ==", t.prompt, ""]
    for i, step in enumerate(t.steps):
        out.append(f"== step {i + 1}/{len(t.steps)}  {step.action_key[:200]} ==")
        out += [step.text, ""]
        if step.parse_error:
            out.append(f"no call: {step.parse_error}")
        if step.observation:
            out += ["-- observation --", step.observation, ""]
        if step.error:
            out.append(f"error: {step.error}")
        reward = rewards.get(step.index)
        if reward is not None:
            for name, c in reward.components.items():
                raw, norm, part = _number(c.raw), _number(c.normalized), _number(c.contribution)
                sum_of = f"raw {raw}  norm {norm}  × {_number(c.weight)}  = {part}"
                out.append(f"  {name:<12} {sum_of}")
            out.append(f"  sum {_number(reward.total)}")
            for penalty in reward.penalties:
                out.append(f"  penalty {penalty.rule} {penalty.amount:+.3f} at step {penalty.step}")
                out.append(f"    saw {dict(penalty.saw)}  limit {penalty.limit}")
                out.append(f"    {penalty.why}")
                out.append(f"    right: {penalty.right}")
        out.append("")
    out.append(f"answer {t.answer!r}   expected {t.expected!r}   correct {t.correct}   ended by {t.stop_reason}")
    return "\n".join(out)


def _number(value: float | None) -> str:
    return "not recorded" if value is None else f"{value:+.4f}"


def trajectory_json(n: int, record: TrajectoryRecord) -> dict[str, Any]:
    """A trajectory with what was computed from it, as one plain dictionary."""
    return {
        "n": n,
        "trajectory": record.trajectory.to_json(),
        "reward": record.breakdown.to_json() if record.breakdown else None,
        "advantage": record.advantage,
        "step_advantages": list(record.step_advantages),
        "policy_version": record.policy_version,
        "split": record.split,
    }


def write(run: Path, name: str, text: str) -> Path:
    """Write under `exports/` in the run's folder, or in the present folder when that cannot be written."""
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in name)[:80].lstrip(".")
    for folder in (run / EXPORTS, Path.cwd()):
        try:
            folder.mkdir(exist_ok=True)
            file = folder / safe
            file.write_text(text, encoding="utf-8", errors="backslashreplace")
            return file
        except OSError:
            continue
    raise OSError(f"neither {run / EXPORTS} nor {Path.cwd()} can be written")


def export_trajectory(run: Path, n: int, record: TrajectoryRecord) -> Path:
    """One trajectory as JSON."""
    return write(run, f"trajectory-{n}.json", json.dumps(trajectory_json(n, record), indent=1, default=str))


def export_lines(run: Path, name: str, text: str) -> Path:
    """What is on screen, as text."""
    return write(run, f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.txt", text)


def open_outside(app: App[Any], text: str, variable: str, name: str, file: Path | None = None) -> None:
    """Open a text (or a file) with the program of `$PAGER` or `$EDITOR`; the app waits meanwhile."""
    from .text import literal

    fallback = ("less", "more") if variable == "PAGER" else ("vi", "nano")
    wanted = shlex.split(os.environ.get(variable, "")) or [p for p in fallback if shutil.which(p)][:1]
    if not wanted or not shutil.which(wanted[0]):
        app.notify(f"Set ${variable} to a program that is installed.", severity="warning", markup=False)
        return
    temporary: Path | None = None
    if file is None:
        handle, path = tempfile.mkstemp(prefix="grpo-tui-", suffix=f"-{name}")
        temporary = file = Path(path)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as out:
            # the pager gets the text literally too: control characters as pictures, lines as lines
            out.write("\n".join(literal(part.expandtabs(4)) for part in text.split("\n")))
    try:
        with app.suspend():
            subprocess.run([*wanted, str(file)], check=False)
    except OSError as error:
        app.notify(f"{wanted[0]} could not be started: {error}", severity="error", markup=False)
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        app.refresh(layout=True)
