"""Keys of the stepper, and that it shows exactly the numbers of the record."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from grpo_tui import Recorder
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.engine.runs.types import SeenImage
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.tui.advantage import equation
from grpo_tui.tui.app.destinations import Stepper
from grpo_tui.tui.format import fixed

from .demo_run import make_run
from .drive import SIZE, running


def find(run: Path, filter: str) -> int:
    with RunReader(run) as reader:
        return reader.rollouts.page(Query(filter), limit=1)[0].n


async def test_steps(run: Path) -> None:
    n = find(run, "turns=3")
    async with running(run.parent, Stepper(run, n)) as app:
        assert "step 1/3  SEGMENT_OBJECT_AT(" in app.text
        for key, shown in (
            ("l", "step 2/3"),
            ("right", "step 3/3"),
            ("l", "step 3/3"),
            ("h", "step 2/3"),
            ("left", "step 1/3"),
        ):
            assert shown in await app.press(key)
        assert "step 3/3" in await app.press("G")
        assert "step 1/3" in await app.press("g")
        assert "step 3/3" in await app.press("end")
        assert "step 1/3" in await app.press("home")


async def test_trajectories(run: Path) -> None:
    async with running(run.parent, Stepper(run, 5)) as app:
        for key, n in (("L", 6), ("n", 7), ("H", 6), ("p", 5)):
            assert f"ab12 · {n} of 320" in await app.press(key)
        await app.press("H", "H", "H", "H")
        assert app.screen.n == 1
        assert "first trajectory" in await app.press("H")


async def test_rollouts_of_the_group(run: Path) -> None:
    async with running(run.parent, Stepper(run, 5)) as app:
        await app.press("right_square_bracket")
        assert app.screen.n == 6
        await app.press("left_square_bracket", "left_square_bracket")
        assert app.screen.n == 8, "the group goes around"
        text = app.text
        with RunReader(run) as reader:
            for row in reader.rollouts.group("1.1"):
                assert f"{row.n}" in text and fixed(row.advantage, signed=True) in text


async def test_the_arithmetic_is_the_record_s(run: Path) -> None:
    n = find(run, "penalty:missing_prerequisite")
    with RunReader(run) as reader:
        record = reader.bodies.trajectory(n)
    assert record.breakdown is not None
    async with running(run.parent, Stepper(run, n)) as app:
        for index, step in enumerate(record.breakdown.steps):
            lines = [line.plain for line in app.screen.reward.lines]
            for name, value in step.components.items():
                line = next(text for text in lines if text.startswith(name))
                shown = line.split()[1:]
                norm = fixed(value.normalized) if value.normalized != value.raw else "–"
                assert shown == [fixed(value.raw), norm, fixed(value.weight), fixed(value.contribution)]
                assert value.weight is not None and value.normalized is not None
                assert value.contribution == pytest.approx(value.weight * value.normalized)
            assert next(text for text in lines if text.startswith("Σ step")).split()[-1] == fixed(step.total)
            assert step.total == pytest.approx(sum(c.contribution or 0.0 for c in step.components.values()))
            if index < len(record.breakdown.steps) - 1:
                await app.press("l")
        text = "\n".join(line.plain for line in app.screen.reward.lines)
        assert f"= {fixed(record.breakdown.total)}" in text
        assert f"advantage {fixed(record.advantage, signed=True)}" in text
        for sentence in equation(record.formula, 0, record.advantage):
            assert sentence in " ".join(text.split())
        assert "trained on · weight 1.00" in text, "what learning did with it"


async def test_a_penalty_says_rule_values_limit_why_and_what_would_be_right(run: Path) -> None:
    n = find(run, "penalty:missing_prerequisite")
    async with running(run.parent, Stepper(run, n)) as app:
        text = " ".join(" ".join(line.plain for line in app.screen.reward.lines).split())
        for part in ("✗ missing prerequisite −0.10", "saw: mask 7, masks none", "limit: mask must be one of the masks"):
            assert part in text
        assert "why: GET_PROPERTIES refers to mask 7, and no mask exists yet." in text
        assert "right: Call SEGMENT_OBJECT_AT first; its answer names the mask." in text


async def test_next_penalised_step(run: Path) -> None:
    n = find(run, "penalty:missing_prerequisite")
    async with running(run.parent, Stepper(run, n)) as app:
        await app.press("G", "ctrl+n")
        assert app.screen.step == 0
    n = find(run, "penalties=0")
    async with running(run.parent, Stepper(run, n)) as app:
        assert "No step of this trajectory was penalised." in await app.press("ctrl+n")


async def test_tokens_by_mask_logprob_and_advantage(run: Path) -> None:
    async with running(run.parent, Stepper(run, 5)) as app:
        text = await app.press("t")
        assert "tokens by author" in text and "trained on" in text and "1 agent" in text
        text = await app.press("t")
        assert "tokens by log-prob" in text and "p ≥ 0.9" in text and "nats" in text
        text = await app.press("t")
        assert "tokens by advantage" in text and "> 0: reinforced" in text
        text = await app.press("l")
        assert "tokens by advantage" in text and app.screen.tokens.step == 1
        await app.press("j", "k")
        text = await app.press("t")
        assert "tokens by" not in text and "step 2/" in text


async def test_find_in_the_trajectory(run: Path) -> None:
    n = find(run, "turns=3")
    async with running(run.parent, Stepper(run, n)) as app:
        await app.press("slash")
        await app.type("square")
        text = await app.press("enter")
        assert "step 2/3" in text and "shape square" in text
        await app.press("slash")
        await app.press(*["backspace"] * 6)
        await app.type("zebra")
        assert "“zebra” is not in this trajectory." in await app.press("enter")


async def test_image_appears_hides_and_grows(run: Path) -> None:
    n = find(run, "turns=3")
    async with running(run.parent, Stepper(run, n)) as app:
        assert app.screen.image.shown and "▀" in app.text and "image mask 1" in app.text
        height = app.screen.image.size.height
        await app.press("I")
        assert app.screen.image.size.height > height
        assert "▀" not in await app.press("i")
        assert "▀" in await app.press("i")


async def test_an_image_is_offered_where_there_is_one(run: Path, tmp_path: Path) -> None:
    with Recorder(tmp_path / "run") as record:
        record.rollouts(1, [{"messages": [{"role": "assistant", "content": "6"}]}])
    async with running(tmp_path, Stepper(tmp_path / "run", 1), size=(330, 45)) as app:
        assert "i image" not in app.text and "[/] group" not in app.text
        assert "This step has no image." in await app.press("i")
    async with running(run.parent, Stepper(run, 1), size=(330, 45)) as app:
        assert "i image" in app.text and "[/] group" in app.text
        assert "i image" not in await app.press("c"), "the conversation shows no image"


async def test_pixels_of_an_image_go_with_its_pane(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_TUI_IMAGES", "sixel")
    async with running(run.parent, Stepper(run, 1), size=(140, 45)) as app:
        for key, shown in (("I", True), ("i", False), ("i", True)):
            await app.press(key)
            assert app.screen.query_one("#graphic").display is shown


async def test_the_mask_the_box_and_the_point_are_drawn_on_the_image(run: Path) -> None:
    from grpo_tui.tui.app.widgets.image_view import LINE_COLOR, compose

    with RunReader(run) as reader:
        trajectory = reader.bodies.trajectory(find(run, "turns=3")).trajectory
    image = trajectory.images[0]
    plain = compose(run, image, None, (192, 128))
    first, second = trajectory.steps[0].overlay, trajectory.steps[1].overlay
    assert first is not None and first.point is not None and second is not None and second.box is not None
    masked = compose(run, image, first, (192, 128))
    x, y = (int(v * 2) for v in first.point)
    assert masked.getpixel((x, y)) == LINE_COLOR, "a cross at the point"
    assert masked.getpixel((x + 12, y + 12)) != plain.getpixel((x + 12, y + 12)), "the mask is tinted"
    assert masked.getpixel((2, 120)) == plain.getpixel((2, 120)), "and nothing else"
    boxed = compose(run, image, second, (192, 128))
    assert boxed.getpixel((int(second.box[0] * 2), int(second.box[1] * 2) + 10)) == LINE_COLOR


async def test_what_a_policy_that_sees_looked_at_stands_beside_the_image_with_its_cost(
    run: Path, tmp_path: Path
) -> None:
    with RunReader(run) as reader:
        record = reader.bodies.trajectory(find(run, "turns=3"))
    first, *rest = record.trajectory.steps
    image = record.trajectory.images[0]
    folder = tmp_path / "seen"
    shutil.copytree(run / "images", folder / "images")
    Image.new("RGB", (40, 40), (0, 0, 255)).save(folder / "images" / "crop.png")
    seeing = replace(
        record.trajectory,
        seen=(SeenImage(96, 64, 24, image),),
        steps=(replace(first, seen=(SeenImage(40, 40, 25, "images/crop.png"),)), *rest),
    )
    writer = RunWriter(folder)
    writer.trajectories(1, [replace(record, trajectory=seeing)])
    writer.close()
    async with running(tmp_path, Stepper(folder, 1), size=(140, 44)) as app:
        assert "96 × 64 pixels, 24 tokens" in app.text and "40 × 40 pixels, 25 tokens" in app.text
        assert app.screen.image.seen == image and app.screen.image.natural == (round(96 * 2.04), 64)
        text = await app.press("l")
        assert app.screen.image.seen == "images/crop.png"
        assert "right: the policy's view, 40 × 40 pixels, 25 tokens" in text
        assert app.screen.image.natural == (round(96 * 1.04 + 64), 64)


async def test_prompt_panes_and_scrolling(run: Path) -> None:
    async with running(run.parent, Stepper(run, 5), size=(80, 24)) as app:
        text = await app.press("P")
        assert "task" in text and "kind: colour" in text
        await app.press("P")
        for shown in ("conversation", "steps", "reward", "group", "step", "conversation"):
            await app.press("tab")
            assert [p.name for p in app.screen.frame.panes.values() if p.shown and p.name != "image"] == [shown]
        await app.press("shift+tab")
        assert app.screen.text.shown
        app.screen.activate("reward")
        if app.screen.reward.overflow:
            await app.press("j", "down")
            assert app.screen.reward.top == min(2, app.screen.reward.overflow)
            await app.press("k", "up", "pagedown", "pageup")
            assert app.screen.reward.top == 0


async def test_clicks_on_a_neighbour_and_on_a_step_of_the_route(run: Path) -> None:
    n = find(run, "turns=3")
    async with running(run.parent, Stepper(run, n)) as app:
        await app.click(" 3 · ANSWER", 3)
        assert app.screen.step == 2
        other = next(r for r in app.screen.cursor.opened.group if r.n != n)
        await app.click(f"  {other.n} ", 3)
        assert app.screen.n == other.n


async def test_diff_opens_and_comes_back(run: Path) -> None:
    async with running(run.parent, Stepper(run, 5)) as app:
        await app.press("d")
        assert app.view == "diff"
        await app.press("escape")
        assert app.view == "stepper" and app.screen.n == 5


async def test_export_copy_pager_and_editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "runs", "own", steps=2)
    async with running(run.parent, Stepper(run, 3)) as app:
        await app.press("e")
        data = json.loads((run / "exports" / "trajectory-3.json").read_text())
        assert data["n"] == 3 and data["breakdown"]["total"] == pytest.approx(app.screen.cursor.record.breakdown.total)
        await app.press("y")
        assert "What colour is the object" in app.app.clipboard
        monkeypatch.setenv("PAGER", "no-such-program")
        assert "Set $PAGER to a program that is installed." in await app.press("o")
        monkeypatch.setenv("EDITOR", "no-such-program")
        assert "Set $EDITOR to a program that is installed." in await app.press("O")


async def test_a_missing_trajectory_is_said_in_a_sentence(run: Path) -> None:
    async with running(run.parent, Stepper(run, 99999), size=SIZE) as app:
        assert "no trajectory" in app.text and "1 to 320" in app.text
        await app.press("l", "h", "L", "t", "d", "e", "y", "G", "g", "ctrl+n", "right_square_bracket", "i", "P")


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (99, 30), (120, 40), (240, 70)])
async def test_the_penalty_can_be_read_at_every_size(run: Path, size: tuple[int, int]) -> None:
    n = find(run, "penalty:missing_prerequisite")
    async with running(run.parent, Stepper(run, n), size=size) as app:
        app.screen.activate("reward")
        seen = app.text
        for _ in range(12):
            seen += await app.press("j")
        assert "missing prerequisite" in seen and "mask 7" in seen and "SEGMENT_OBJECT_AT" in seen


async def test_a_note_is_put_on_a_trajectory_shown_and_filtered_by(tmp_path: Path) -> None:
    run = make_run(tmp_path, "noted", steps=2)
    async with running(run.parent, Stepper(run, 5)) as app:
        await app.press("m")
        await app.press("number_sign")
        await app.type("hack copied the answer")
        text = await app.press("enter")
        assert "✎ #hack copied the answer" in text
        assert "✎" not in await app.press("L")
        assert "✎ #hack" in await app.press("H")
    with RunReader(run) as reader:
        assert [r.n for r in reader.rollouts.page(Query("label:hack"))] == [5]


async def test_an_edited_note_keeps_characters_that_the_line_shows_in_another_form(tmp_path: Path) -> None:
    run = make_run(tmp_path, "noted", steps=2)
    text = "❤️ 👩‍👩‍👧 a\u202eb 👍🏽"
    with RunReader(run) as reader:
        id_ = reader.rollouts.rows([5])[0].id
        reader.notes.put(id_, text)
    async with running(run.parent, Stepper(run, 5)) as app:
        assert "‹202E›" in await app.press("m")
        await app.press("exclamation_mark", "enter")
    with RunReader(run) as reader:
        assert reader.notes.read()[id_].text == f"{text}!"


async def test_a_filter_of_steps_that_is_cancelled_or_emptied_filters_nothing(run: Path) -> None:
    async with running(run.parent, Stepper(run, 5)) as app:
        await app.press("f")
        assert "no step matches" in await app.type("zzz")
        assert "no step matches" not in await app.press("escape")
        assert app.screen.outline.filter == ""
        await app.press("f", *"zz", "backspace", "backspace")
        assert "no step matches" not in app.text and "ANSWER" in app.text


async def test_the_number_of_trajectories_grows_with_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path, "grows", steps=1, status="running", total_steps=50)
    with RunReader(make_run(tmp_path, "other", steps=2)) as reader:
        records = [reader.bodies.trajectory(n) for n in range(9, 13)]
    async with running(tmp_path, Stepper(run, 8)) as app:
        assert "8 of 8" in app.text
        writer = RunWriter(run)
        writer.trajectories(2, records)
        writer.close()
        assert "9 of 12" in await app.press("L")
