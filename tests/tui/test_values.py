"""Values in few characters: whole numbers, JSON, the width of a page, and the time that a message stays."""

from __future__ import annotations

import json
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.engine.runs.types import TrajectoryRow
from grpo_tui.envs.trajectory import Call, Step
from grpo_tui.tui.app.calls import brief, ended, said, shown
from grpo_tui.tui.app.destinations import Runs
from grpo_tui.tui.app.rollout_columns import rollout_columns
from grpo_tui.tui.app.theme import DEFAULT_THEME, THEMES, Palette

from .drive import running
from .terminal import app_terminal

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=9,
)


@given(plain)
def test_a_short_value_is_json(value: object) -> None:
    assert json.loads(brief(value, 10**6, as_json=True)) == value


def test_headers_of_a_request_are_json() -> None:
    call = Call("fetch", {"url": "https://a.example/b", "headers": {"accept": "text/html", "dnt": True, "x": None}})
    (headers,) = shown(call).arguments
    assert headers.text == '{"accept": "text/html", "dnt": true, "x": null}'


def row(n: int, **extra: object) -> TrajectoryRow:
    return TrajectoryRow(
        n, f"t{n}", 1, "g", "p", n, "e", "train", 1.0, 0.0, True, 1, 1, 0, "answer", ("A",), "Q", None, extra=extra
    )


def test_own_columns_of_whole_numbers_have_no_decimals() -> None:
    rows = [row(1, level=8.0, share=1.0), row(2, level=12.0, share=0.25)]
    columns = {c.title: c for c in rollout_columns(Palette(THEMES[DEFAULT_THEME]), ("level", "share"), rows)}
    assert [columns["level"].cell(r)[0] for r in rows] == ["8", "12"]
    assert [columns["share"].cell(r)[0] for r in rows] == ["1.00", "0.25"]


def test_numbers_of_rollouts_have_the_cells_that_they_need() -> None:
    columns = rollout_columns(Palette(THEMES[DEFAULT_THEME]), (), [row(7), row(123456)])
    assert columns[0].title == "#" and columns[0].width == 6


def test_a_printed_rollout_fits_its_terminal(run: Path) -> None:
    words = ("-m", "grpo_tui.tui.entry", "inspect", str(run), "--trajectory", "3")
    with app_terminal(*words, cwd=run.parent, size=(80, 60), variables={}) as screen:
        assert screen.wait() == 0
        lines = screen.raw.decode().splitlines()
    rules = [line for line in lines if set(line.strip()) == {"─"}]
    assert rules and all(len(line.rstrip()) <= 80 for line in lines), max(lines, key=len)


async def test_a_long_message_stays_longer(runs: Path) -> None:
    async with running(runs, Runs()) as app:
        app.screen.say("short")
        app.screen.say("training.learning_rate: " + "a long sentence " * 30)
        await app.press()
        times = sorted(note.timeout for note in app.app._notifications)
        assert times[0] == 4 and times[1] > 30


def test_a_text_that_only_mentions_a_channel_is_shown() -> None:
    text = "The token <|channel|> begins a channel."
    assert said(Step(0, text)) == ("", text)


def test_a_long_word_after_a_channel_costs_little() -> None:
    began = time.monotonic()
    assert said(Step(0, "<|channel|>" + "a" * 100_000))[1].endswith("aaa")
    assert time.monotonic() - began < 2


def test_a_process_that_a_signal_ended_keeps_its_exit_code() -> None:
    assert ended(Call("bash", {}, result="exit code: -9")) == (False, "exit -9")
    assert ended(Call("bash", {}, result="Exit code=2")) == (False, "exit 2")
