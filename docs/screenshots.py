"""Make the picture of the README from a real run.

    python docs/screenshots.py RUN [--out docs/images] [--size 150x38] [--theme grpo-dark]

RUN is a run's folder; a finished run with penalties and an image shows most. Writes `stepper.svg`, drawn by the app
itself without a terminal. A picture that would show a path of this machine is not written.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import tempfile
from html import unescape
from pathlib import Path

from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.tui.app.app import GrpoApp
from grpo_tui.tui.app.destinations import Stepper
from grpo_tui.tui.app.shell import Memory
from grpo_tui.tui.app.theme import DEFAULT_THEME, THEMES

NOWHERE = Path("/dev/null/nothing-is-remembered.json")
PATHS = re.compile(r"(?<![\w/.])(?:~|/(?:home|root|Users|tmp|var|opt|mnt|srv|work|usr))/[\w./-]*")
"""Paths that say something about the machine on which a picture was made."""


def telling_step(run: Path) -> tuple[int, int]:
    """A late rollout with a penalty in a group that learns from it, if there is one, and the step with the penalty."""
    with RunReader(run) as reader:
        for wanted in ("penalty:missing_prerequisite and turns>2 and advantage<0", "penalties>0", ""):
            rows = reader.rollouts.page(Query(filter=wanted, sort="n", descending=True), limit=1)
            if rows:
                breakdown = reader.bodies.trajectory(rows[0].n).breakdown
                steps = () if breakdown is None else breakdown.steps
                return rows[0].n, next((step.step for step in steps if step.penalties), 0)
    raise SystemExit(f"{run} has no trajectories to show")


async def shoot(app: GrpoApp, size: tuple[int, int], out: Path) -> None:
    """Open the app and write its first screen."""
    async with app.run_test(size=size) as pilot:
        for _ in range(3):
            await pilot.pause(0.1)
            await app.workers.wait_for_complete([w for w in app.workers if not w.is_finished])
        picture = app.export_screenshot(title="grpo-tui")
    # fonts are the reader's own: a picture fetches nothing
    picture = re.sub(r"@font-face\s*\{.*?\}", "", picture, flags=re.DOTALL)
    shown = unescape(re.sub(r"<[^>]*>", "", picture.partition("</style>")[2])).replace("\xa0", " ")
    if found := PATHS.search(shown):
        raise SystemExit(f"{out.name} is not written: it would show the path {found.group()}")
    out.write_text(picture, encoding="utf-8")
    print(out)


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "images")
    parser.add_argument("--size", default="150x38", help="columns x rows")
    parser.add_argument("--theme", default=DEFAULT_THEME, choices=sorted(THEMES))
    given = parser.parse_args()
    run = given.run.resolve()
    if not run.is_dir():
        parser.error(f"{given.run} is not the folder of a run")
    width, height = (int(part) for part in given.size.split("x"))
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    n, step = telling_step(run)
    with tempfile.TemporaryDirectory() as neutral:
        os.chdir(neutral)
        os.symlink(run.parent, "runs")
        run = Path("runs") / run.name
        app = GrpoApp(Path("runs"), Stepper(run, n, step=step), memory=Memory(NOWHERE), theme=given.theme)
        asyncio.run(shoot(app, (width, height), out / "stepper.svg"))
        os.chdir(out)


if __name__ == "__main__":
    main()
