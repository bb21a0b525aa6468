"""Looking into one rollout: its advantage as it was computed, what learning did, damage, the conversation, the diff."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import statistics
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.engine.runs.learning import UseKind
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.engine.runs.types import AdvantageFormula, AdvantageTerm, Event, NeighbourVote, Served, Step, Use
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.rewards.advantages.base import spread
from grpo_tui.tui.advantage import equation, formula_of
from grpo_tui.tui.app.clipboard import copy
from grpo_tui.tui.app.comparison import align, parting
from grpo_tui.tui.app.destinations import Stepper, Trajectories
from grpo_tui.tui.app.widgets.learning_lines import learning_lines
from grpo_tui.tui.plain import Whole
from grpo_tui.tui.text import cut

from .drive import running


def step(index: int, action: str | None, **arguments: object) -> Step:
    return Step(index, f"call {action}", action=action, arguments=arguments, observation=f"saw {arguments}")


@pytest.fixture
def damaged(run: Path, tmp_path: Path) -> Path:
    """A run of which no text can be read: its lists are whole."""
    copy_ = tmp_path / "runs" / "copy"
    shutil.copytree(run, copy_)
    with sqlite3.connect(copy_ / "record.sqlite") as db:
        db.execute("UPDATE chunks SET body = x'00112233'")
    db.close()
    return copy_


async def test_every_key_answers_on_a_body_that_cannot_be_read(damaged: Path) -> None:
    async with running(damaged.parent, Stepper(damaged, 5)) as app:
        assert "cannot be read" in app.text
        keys = ("t", "t", "t", "t", "c", "c", "l", "h", "G", "g", "P", "i", "I", "d", "e", "y", "ctrl+n", "j", "tab")
        for key in keys:
            await app.press(key)
            assert app.view == "stepper", key
        assert "tokens by" in await app.press("t"), "the tokens are another block and can be read"
        await app.press("L")
        assert app.screen.n == 6
        await app.press("right_square_bracket")
        assert app.screen.n == 7, "the rows of the group are there"


async def test_the_whole_conversation_is_one_scroll(run: Path) -> None:
    with RunReader(run) as reader:
        n = next(row.n for row in reader.rollouts.page() if row.turns == 3)
    async with running(run.parent, Stepper(run, n), size=(120, 50)) as app:
        text = await app.press("c")
        assert all(part in text for part in ("prompt", "─ 1 ─", "─ 2 ─", "─ 3 ─", "conversation · step 1 of 3"))
        assert "conversation · step 2 of 3" in await app.press("l")
        assert "conversation" not in (await app.press("c")).splitlines()[0]


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=8), st.booleans())
def test_the_equation_comes_to_the_advantage_beside_it(rewards: list[float], scaled: bool) -> None:
    mean, std, _ = spread(rewards)
    term = AdvantageTerm(rewards[0], mean, std if scaled else None, len(rewards))
    formula = AdvantageFormula("group", "group" if scaled else "none", 1e-4, ((term,),))
    advantage = formula.advantage(0)
    assert advantage is not None
    said = equation(formula, 0, advantage)[0]
    if said.startswith("="):
        sum_ = said[1:].replace("−", "-").replace("÷", "/").replace("- -", "+ ")
        assert eval(sum_) == pytest.approx(advantage, abs=0.02 * max(1.0, abs(advantage)))


@given(st.lists(st.lists(st.floats(-3, 3, width=16), min_size=4, max_size=4), min_size=2, max_size=3))
def test_the_terms_of_several_components_come_to_the_advantage(columns: list[list[float]]) -> None:
    terms = []
    for name, weight, values in zip(("goal", "curiosity", "penalty"), (1.0, 0.02, 0.2), columns, strict=False):
        mean, std, _ = spread(values)
        terms.append(AdvantageTerm(values[0], mean, std, len(values), weight, name))
    formula = AdvantageFormula("group", "group", 1e-4, (tuple(terms),))
    advantage = formula.advantage(0)
    *lines, said = equation(formula, 0, advantage)
    if lines:
        sum_ = " ".join(lines).removeprefix("=").replace("−", "-").replace("÷", "/").replace("×", "*")
        sum_ = re.sub("goal|curiosity|penalty", "", sum_).replace("- -", "+ ")
        assert advantage is not None and eval(sum_) == pytest.approx(advantage, abs=0.02 * max(1.0, abs(advantage)))
        told = " ".join(lines) + said
        assert all(t.name in told for t in terms)  # added, or said to be equal


@given(st.floats(0.006, 3), st.sampled_from([0.0, -1.0]))
def test_a_formula_that_is_not_the_advantage_beside_it_is_no_equation(value: float, trained: float) -> None:
    terms = (AdvantageTerm(value, 0.0, None, 4, 1.0, "goal"), AdvantageTerm(0.0, 0.0, 0.5, 4, 0.1, "penalty"))
    (said,) = equation(AdvantageFormula("group", "group", 1e-4, (terms,)), 0, trained)
    assert said.startswith("The loss used a different" if trained else "The group has no signal and was filtered out")


@pytest.mark.parametrize(("scaled", "shift", "known"), [(True, 0.0, True), (False, 0.0, True), (True, 0.01, False)])
def test_without_a_recorded_formula_a_form_is_named_only_where_it_fits_all(
    run: Path, scaled: bool, shift: float, known: bool
) -> None:
    with RunReader(run) as reader:
        row = next(r for r in reader.rollouts.page(limit=100) if r.split == "train" and r.reward is not None)
        record = replace(reader.bodies.trajectory(row.n), formula=None)
        group = [replace(r, reward=float(i)) for i, r in enumerate(reader.rollouts.group(row.group))]
    rewards = [r.reward or 0.0 for r in group]
    mean, std = statistics.mean(rewards), statistics.stdev(rewards)
    group = [replace(r, advantage=((r.reward or 0.0) - mean) / (std + 1e-4 if scaled else 1.0) + shift) for r in group]
    assert record.breakdown is not None
    mine = replace(record, advantage=group[0].advantage, breakdown=replace(record.breakdown, total=rewards[0]))
    formula = formula_of(mine, group)
    assert (formula is not None) == known
    assert formula is None or formula.advantage(0) == pytest.approx(group[0].advantage)
    assert equation(None, 0, record.advantage) == ["The formula was not recorded."]


SERVED = Served(
    7, True, "left", True, "right", False, 0.625, {"left": 0.625, "right": 0.375},
    (NeighbourVote("request-3", "left", 0.5),),
)  # fmt: skip


@pytest.mark.parametrize("width", [20, 36, 60, 100])
async def test_the_vote_and_each_update_are_told_at_every_width(run: Path, width: int) -> None:
    use = Use(
        UseKind.APPLIED, 7, advantage=-0.25, clipped=True, facts={"update": 9, "kl": 0.02, "learning_rate": 0.001}
    )
    found = [
        Event("eval", "", data={"update": 8, "live": 0.5}),
        Event("eval", "", data={"update": 12, "live": 0.625}),
    ]
    with RunReader(run) as reader:
        record = replace(reader.bodies.trajectory(1), served=SERVED, split="online", policy_version=3)
    async with running(run.parent, Stepper(run, 1)) as app:
        lines = learning_lines(app.app.palette, Whole(1, record, [use], validations=found), width)
    assert all(line.width <= width for line in lines)
    text = " ".join(" ".join(line.plain for line in lines).split())
    for part in ("policy v3", "“left”", "from this rollout", "“right”", "differs", "62 %", "request-3", "open",
                 "confidence 0.62", "update 9", "applied, clipped", "A −0.25", "KL 0.020", "+12 points"):  # fmt: skip
        assert part in text, (part, text)


def test_steps_are_aligned_by_what_was_done() -> None:
    left = [step(0, "SEGMENT", x=1), step(1, "GET", mask=1), step(2, "ANSWER", text="a")]
    right = [step(0, "GET", mask=1), step(1, "ANSWER", text="b")]
    pairs = align(left, right)
    assert pairs == [(0, None), (1, 0), (2, 1)]
    assert parting(left, right, pairs) == "They first differ at step 1: only the left side has SEGMENT(x=1)."
    same = align(left[:2], left[:2])
    assert parting(left[:2], left[:2], same) == "All steps are the same."
    other = [*left[:2], step(2, "ANSWER", text="b")]
    assert "at step 3: left ANSWER(text='a'), right ANSWER(text='b')" in parting(left, other, align(left, other))


actions = st.lists(st.sampled_from("ABC"), max_size=8)


@given(actions, actions)
def test_an_alignment_holds_every_step_once_and_in_order(a: list[str], b: list[str]) -> None:
    pairs = align([step(i, n) for i, n in enumerate(a)], [step(i, n) for i, n in enumerate(b)])
    assert [left for left, _ in pairs if left is not None] == list(range(len(a)))
    assert [right for _, right in pairs if right is not None] == list(range(len(b)))


@given(st.text("ab +-−0123456789.%k", max_size=40), st.integers(1, 40))
def test_no_number_is_cut_in_two(text: str, cells: int) -> None:
    shown = cut(text, cells)
    if shown != text:
        kept = shown[:-1]
        assert shown[-1] == "…" and text.startswith(kept)
        assert not (kept[-1:].isdigit() and text[len(kept)].isdigit()), (text, shown)


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_copy_inside_tmux_is_in_its_buffer_and_says_so(tmp_path: Path) -> None:
    socket = str(tmp_path / "tmux")
    plain = {k: v for k, v in os.environ.items() if k not in ("TMUX", "TMUX_PANE")}
    subprocess.run(["tmux", "-S", socket, "-f", "/dev/null", "new-session", "-d", "sleep 60"], check=True, env=plain)
    os.environ["TMUX"] = f"{socket},1,0"
    try:
        copied = copy("one\ntwo — three", "2 lines")
        buffer = subprocess.run(["tmux", "show-buffer"], capture_output=True, text=True, check=True).stdout
    finally:
        del os.environ["TMUX"]
        subprocess.run(["tmux", "-S", socket, "kill-server"], check=False, env=plain)
    assert buffer == "one\ntwo — three" and not copied.send
    assert (
        copied.message.startswith("Copied 2 lines to tmux's buffer") and "not pass it to the terminal" in copied.message
    )


def test_a_copy_says_truly_where_it_went() -> None:
    assert copy("x", "1 line", {"TERM": "xterm"}).send
    assert "not copied" in copy("x", "1 line", {"TERM": "linux"}).message
    assert "may keep only" in copy("x" * 200_000, "1 line", {"TERM": "xterm"}).message


@pytest.mark.parametrize("size", [(80, 24), (60, 20), (200, 50)])
async def test_help_back_and_quit_are_told_in_the_stepper(run: Path, size: tuple[int, int]) -> None:
    async with running(run.parent, Stepper(run, 5), size=size) as app:
        last = app.text.splitlines()[-1]
        assert "? help" in last and "esc back" in last and "q quit" in last and "h/l step" in last


async def test_runs_that_serve_have_columns_and_filters_of_their_own(run: Path, tmp_path: Path) -> None:
    online = tmp_path / "runs" / "online"
    shutil.copytree(run, online)
    with RunReader(run) as reader:
        record = replace(reader.bodies.trajectory(1), served=SERVED, split="online", policy_version=3, use=None)
    writer = RunWriter(online)
    writer.trajectories(99, [replace(record, trajectory=replace(record.trajectory, id="asked"))])
    writer.uses([("asked", Use(UseKind.TAKEN_BACK, 99, facts={"update": 1, "message": "KL 3 is above the limit"}))])
    assert writer.flush(10)
    writer.close()
    start = Trajectories(online, Query(filter="gate:open and taken_back and version:3..5"))
    async with running(online.parent, start, size=(139, 60)) as app:
        heading = next(line for line in app.text.splitlines() if "policy" in line)
        assert all(name in heading for name in ("policy", "sent", "conf", "gate", "update"))
        assert "v3" in app.text and "taken back" in app.text and "1 of 1" in app.text
        text = " ".join((await app.press("enter")).split())
        assert "the vote" in text and "update 1" in text and "taken back" in text
