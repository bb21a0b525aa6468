"""The dashboard while rollouts are written: their newest texts, and how far the step is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path

import pytest

from grpo_tui.engine.runs.control.live import BatchTexts, live_file
from grpo_tui.engine.runs.durable import read_json, write_json
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.tui.app.destinations import Live
from grpo_tui.tui.app.live_layout import PANES, LayoutInputs, plan

from .drive import running

PROMPTS = ["What is 2 + 2?", "What is 3 + 4?", "What is 5 + 6?"]


@pytest.fixture
def writing(tmp_path: Path) -> Iterator[tuple[RunWriter, BatchTexts]]:
    """A run before its first step that writes three rollouts of 40 tokens at most."""
    folder = tmp_path / "runs" / "ab12"
    write_json(folder / "run.json", {"id": "ab12", "mode": "rft", "created": time.time()})
    writer = RunWriter(folder)
    writer.status("running", total_steps=4)
    writer.progress("rollouts", 0, 3)
    writer.live.purpose("", 1, 1, 3)
    batch = writer.live.begin(PROMPTS, 1, 120)
    yield writer, batch
    writer.close()


def told(writer: RunWriter, batch: BatchTexts) -> None:
    """Wait until viewers can see what the batch is now."""
    assert writer.flush(10)
    file = live_file(writer.run_dir, "training")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if any(b["time"] == batch._time for b in read_json(file).get("batches", [])):
            return
        time.sleep(0.02)
    raise AssertionError("the newest texts were never written")


@pytest.mark.parametrize("size", [(80, 24), (150, 45)])
async def test_texts_grow_on_the_dashboard_before_the_first_step(writing, size: tuple[int, int]) -> None:
    writer, batch = writing
    batch.writes(0, 4, "The sum is")
    batch.writes(1, 3, "\x1b[31mred [bold]seven[/bold]")
    told(writer, batch)
    async with running(writer.run_dir.parent, Live(writer.run_dir), size=size) as app:
        assert "step 1  ▶ rollouts" in app.text and "0 of 3 rollouts" in app.text
        assert "7 of ≤ 120 tokens" in app.text
        assert "What is 2 + 2?" in app.text and "The sum is▌" in app.text
        assert "␛[31mred [bold]seven[/bold]" in app.text, "literally, whatever a model writes"
        assert "\x1b[31mred" not in app.text
        assert "appears after" not in app.text and "no actions yet" not in app.text
        batch.wrote(0, 9, "The sum is 4, which is even.")
        told(writer, batch)
        app.screen.changed()
        await app.press()
        assert "1 of 3 rollouts" in app.text and "rollouts 1/3" in app.text.splitlines()[0]


async def test_a_key_steps_through_the_batch_and_another_shows_one_text_whole(writing) -> None:
    writer, batch = writing
    long = " ".join(f"word{i}" for i in range(300))
    for row in range(3):
        batch.writes(row, 300, f"text {row} {long}")
    told(writer, batch)
    async with running(writer.run_dir.parent, Live(writer.run_dir), size=(80, 24)) as app:
        await app.press("n", "n")
        assert "▸ 2/3" in app.text
        await app.press("N")
        assert "▸ 1/3" in app.text and "word299" in app.text and "text 0" not in app.text, "the newest of it"
        app.screen.activate("writing")
        await app.press("enter")
        assert "What is 2 + 2?" in app.text and "text 0" in app.text, "all of it"
        await app.press("n")
        assert "▸ 2/3" in app.text and "text 1" in app.text


async def test_rewards_are_counted_as_soon_as_they_are_known(writing) -> None:
    writer, batch = writing
    for row in range(3):
        batch.wrote(row, 5, f"answer {row}")
    batch.close()
    batch.judged([0.98, 0.5, None], [None, False, None])
    writer.progress("log-probs", 1, 3)
    told(writer, batch)
    async with running(writer.run_dir.parent, Live(writer.run_dir), size=(150, 45)) as app:
        assert "3 of 3 rollouts" in app.text and "reward 0.74 of 2" in app.text
        line = next(line for line in app.text.splitlines() if "1/3" in line and "0.98" in line)
        assert "✗" not in line and "✓" not in line, "a graded reward is neither right nor wrong"
        assert "✓ rollouts" in app.text and "▶ log-probs 1/3" in app.text and "· backward" in app.text


async def test_the_texts_of_a_stopped_run_are_not_shown_as_live(writing) -> None:
    writer, batch = writing
    batch.writes(0, 4, "The sum is")
    told(writer, batch)
    writer.status("stopped")
    async with running(writer.run_dir.parent, Live(writer.run_dir)) as app:
        assert "The sum is" not in app.text and "Writing" not in app.text


def test_no_boxes_overlap_whatever_there_is_to_show() -> None:
    empties = [frozenset(), frozenset(["actions"]), frozenset(["kl"]), frozenset(["learning", "speed"]),
               frozenset(["learning", "speed", "chart", "versions", "components", "kl", "actions"])]  # fmt: skip
    for kind, writing, empty, findings in product(PANES, (False, True), empties, (0, 3)):
        for focus in ("chart", "writing", "alerts"):
            wanted = LayoutInputs(kind, 4, findings, focus, writing=writing, empty=empty)
            for width, height in product((20, 63, 64, 80, 99, 100, 120, 150, 250), (6, 10, 13, 14, 18, 24, 34, 45, 80)):
                boxes = plan(wanted, width, height)
                clash = [(a.name, b.name) for a, b in combinations(boxes, 2) if a.inner().overlaps(b.inner())]
                assert boxes and not clash, (wanted, width, height, clash)
                assert all(b.x >= 0 and b.y >= 0 and b.width >= 3 and b.height >= 3 for b in boxes), (
                    wanted,
                    width,
                    height,
                )
                assert all(b.x + b.width <= width and b.y + b.height <= height for b in boxes), (wanted, width, height)
