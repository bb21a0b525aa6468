"""What is shown adds up to the total that is shown, and one number stands for one thing on every screen."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.tui.app.destinations import Groups, Live, Stepper, Trajectories
from grpo_tui.tui.app.widgets.reward_arithmetic import summed
from grpo_tui.tui.format import MINUS, fixed
from tests.forked import forked_processes

from .drive import running

NUMBER = re.compile(rf"[+{MINUS}]?\d+(?:\.\d+)?")


def as_number(text: str) -> float:
    return float(text.replace(MINUS, "-"))


def unit(text: str) -> float:
    """What the last digit of a number counts."""
    return 10.0 ** -len(text.partition(".")[2])


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)], ids=str)
async def test_the_dashboard_s_components_add_up_to_its_total(run: Path, size: tuple[int, int]) -> None:
    async with running(run.parent, Live(run), size=size) as app:
        table = app.screen.components
        names = table.names()
        lines = [line.plain for line in table.build(table.size.width or 40, 30)]
        head = next(line for line in lines if line.startswith("component"))
        end = head.index("adds") + len("adds")
        rows = [line[:end] for line in lines if line.split()[:1] and line.split()[0] in (*names, "Σ")]
        shown = {row.split()[0]: NUMBER.findall(row)[-1] for row in rows}
        parts = [shown[name] for name in names]
        assert sum(map(as_number, parts)) == pytest.approx(
            as_number(shown["Σ"]), abs=sum(unit(text) / 2 for text in (*parts, shown["Σ"]))
        )


@pytest.mark.parametrize("n", [1, 2, 57, 160, 313])
@pytest.mark.parametrize("width", [30, 44, 60])
async def test_a_step_s_components_its_steps_and_its_rewards_add_up(run: Path, n: int, width: int) -> None:
    async with running(run.parent, Stepper(run, n)) as app:
        screen = app.screen
        row = screen.reads.now.rollouts.rows([n])[0]
        totals = []
        for step in range(len(screen.cursor.steps)):
            lines = [line.plain.split() for line in screen.reward.build(width, 60)]
            end = next(i for i, line in enumerate(lines) if line[:1] == ["Σ"])
            parts = [line[-1] for line in lines[1:end] if not line[0].startswith("─")]
            total = lines[end][-1]
            assert sum(map(as_number, parts)) == pytest.approx(as_number(total), abs=unit(total) * 0.51), parts
            totals.append(as_number(total))
            text = " ".join(line.plain for line in screen.reward.build(width, 60))
            steps = text[text.index("Σ steps =") :].split("=")
            terms = [as_number(t.replace(" ", "")) for t in re.findall(rf"[+{MINUS}]?\s?\d+\.\d+", steps[1])]
            said = NUMBER.search(steps[2].strip())
            assert said is not None
            assert sum(terms) == pytest.approx(as_number(said[0]), abs=unit(said[0]) * 0.51), text
            assert terms[step] == pytest.approx(totals[step], abs=0.006)
            assert as_number(said[0]) == pytest.approx(row.reward or 0.0, abs=unit(said[0]))
            await app.press("l")
        assert sum(totals) == pytest.approx(row.reward or 0.0, abs=0.005 * len(totals))
        assert fixed(row.reward) in app.text


async def test_a_group_has_one_mean_and_one_spread_on_every_screen(run: Path) -> None:
    with RunReader(run) as reader:
        groups = reader.rollouts.groups(Query()).page(0, 12)
        rows = {g.group: reader.rollouts.group(g.group) for g in groups}
        formulas = {name: reader.bodies.trajectory(of[0].n).formula for name, of in rows.items()}
    for group in groups:
        rewards = [r.reward or 0.0 for r in rows[group.group]]
        formula = formulas[group.group]
        assert formula is not None
        term = formula.terms(0)[0]
        assert group.mean == pytest.approx(sum(rewards) / len(rewards)) == pytest.approx(term.mean)
        assert group.std == pytest.approx(term.std), "the number that the advantages were divided by"
    async with running(run.parent, Groups(run)) as app:
        shown = app.text
    for group in groups:
        line = next(line for line in shown.splitlines() if re.search(rf"[│▸ ]{re.escape(group.group)} ", line))
        assert fixed(group.mean) in line and fixed(group.std) in line
    first = groups[0]
    async with running(run.parent, Stepper(run, first.first_n)) as app:
        assert f"mean {fixed(first.mean)}" in app.text and f"std (n {MINUS} 1) {fixed(first.std)}" in app.text
        assert any(f"÷ {fixed(first.std, places)}" in app.text for places in (2, 3, 4)), app.text


async def test_a_reward_is_one_number_in_the_list_the_stepper_and_in_json(run: Path) -> None:
    command = [sys.executable, "-m", "grpo_tui.tui.cli", "inspect", "ab12", "--runs-dir", str(run.parent)]
    with forked_processes():
        said = subprocess.run([*command, "--json", "--trajectory", "160"], capture_output=True, text=True, check=True)
    data = json.loads(said.stdout)
    steps = data["breakdown"]["steps"]
    assert sum(s["total"] for s in steps) == pytest.approx(data["breakdown"]["total"])
    for s in steps:
        assert sum(c["contribution"] for c in s["components"].values()) == pytest.approx(s["total"])
    reward = fixed(data["breakdown"]["total"])
    async with running(run.parent, Trajectories(run, Query("n=160"))) as app:
        line = next(line for line in app.text.splitlines() if "▸" in line and " 160 " in line)
        assert reward in line and fixed(data["advantage"], signed=True) in line
        text = await app.press("enter")
        assert reward in text and fixed(data["advantage"], signed=True) in text


def test_the_sum_of_many_steps_is_one_line() -> None:
    assert summed([0.1] * 3, 0.3) == "Σ steps = 0.10 + 0.10 + 0.10 = 0.30"
    assert summed([0.1] * 500, 50.0) == "Σ of 500 steps = 50.00"
