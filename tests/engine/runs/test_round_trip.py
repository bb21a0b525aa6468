"""What is written is what is read, whatever it holds."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_tui.engine.runs import codec
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.engine.runs.types import TrajectoryRecord
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.envs.tools import Argument, ToolSpec
from grpo_tui.envs.trajectory import Step, TokenArrays, Trajectory
from grpo_tui.rewards.breakdown import ComponentValue, Penalty, RewardBreakdown, StepReward


def same_tokens(a: TokenArrays | None, b: TokenArrays | None) -> None:
    assert (a is None) == (b is None)
    if a is None or b is None:
        return
    for name in ("token_ids", "agent_mask", "logprobs", "turn"):
        left, right = np.asarray(getattr(a, name)), np.asarray(getattr(b, name))
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    assert (a.advantages is None) == (b.advantages is None)
    if a.advantages is not None:
        np.testing.assert_array_equal(np.asarray(a.advantages), np.asarray(b.advantages))
    assert a.overlays.keys() == b.overlays.keys()
    for name, values in a.overlays.items():
        np.testing.assert_array_equal(np.asarray(values), np.asarray(b.overlays[name]))


def test_every_trajectory_comes_back_whole_with_its_tools_and_tokens(recorded, reader):
    _, records = recorded
    for n, (_, record) in enumerate(records, 1):
        found = reader.bodies.trajectory(n)
        assert found == replace(record, tokens=None)
        same_tokens(reader.bodies.tokens(record.trajectory.id), record.tokens)


def test_a_script_reads_a_run_in_one_call_each(recorded):
    folder, records = recorded
    with RunReader(folder) as reader:
        assert reader.rollouts.total() == len(records)
        assert [r.id for r in reader.rollouts.rows([2, 1])] == [records[n][1].trajectory.id for n in (1, 0)]
        same_tokens(reader.bodies.tokens(1), records[0][1].tokens)
        assert reader.metrics.last_step() == max(step for step, _ in records)
        assert reader.metrics.points("success/train") == [(step, step / 10) for step in range(1, 11)]


def test_rows_hold_what_a_list_shows(recorded, reader):
    _, records = recorded
    rows = reader.rollouts.page(limit=1000)
    assert [r.n for r in rows] == list(range(1, len(records) + 1))
    for row, (step, record) in zip(rows, records, strict=True):
        t = record.trajectory
        assert record.breakdown is not None and record.tokens is not None
        assert (row.id, row.step, row.group, row.prompt_id, row.rollout) == (
            t.id,
            step,
            t.group,
            t.prompt_id,
            t.rollout,
        )
        assert (row.env, row.split, row.stop_reason) == (t.env, record.split, t.stop_reason)
        assert (row.reward, row.advantage) == (record.breakdown.total, record.advantage)
        assert (row.correct, row.answer, row.prompt) == (t.correct, t.answer, t.prompt)
        assert (row.turns, row.tokens) == (len(t.steps), len(record.tokens))
        assert row.rules == tuple(
            sorted({p.rule for p in record.breakdown.penalties}, key=reader.rollouts.names("penalty").index)
        )
        assert row.policy_version == record.policy_version
        assert (row.actions, row.penalties) == (t.actions, len(record.breakdown.penalties))


def test_metrics_are_flat_named_by_step_and_keep_nan(writer: RunWriter, run_dir: Path):
    writer.metrics(1, {"a": 1.0, "behavior/action_distribution": {"ZOOM_IN": 0.5}, "note": "no number"})  # type: ignore[dict-item]
    writer.metrics(2, {"a": math.nan, "b": math.inf})
    assert writer.flush(10)
    with RunReader(run_dir) as reader:
        assert reader.metrics.names() == ["a", "behavior/action_distribution/ZOOM_IN", "b"]
        assert reader.metrics.points("behavior/action_distribution/ZOOM_IN") == [(1, 0.5)]
        series = reader.metrics.points("a")
        assert series[0] == (1, 1.0) and series[1][0] == 2 and math.isnan(series[1][1])
        assert reader.metrics.latest()["b"] == math.inf
        assert reader.metrics.points("never recorded") == []


def test_numbers_that_are_none_are_found_and_shown(writer: RunWriter, run_dir: Path, make_record):
    records = [make_record(1, i) for i in range(4)]
    bad = ComponentValue(math.nan, math.nan, 1.0, math.nan)
    records[1] = make_record(
        1, 1, breakdown=RewardBreakdown("t1-1", (StepReward(0, {"task": bad}, (), math.nan),), math.nan)
    )
    hidden = ComponentValue(math.inf, 1.0, 1.0, 1.0)  # clipped on its way into a finite total
    records[2] = make_record(1, 2, breakdown=RewardBreakdown("t1-2", (StepReward(0, {"task": hidden}, (), 1.0),), 1.0))
    records[3] = make_record(1, 3, advantage=math.inf)
    writer.trajectories(1, records)
    assert writer.flush(10)
    with RunReader(run_dir) as reader:
        assert [r.n for r in reader.rollouts.page(Query("nan"))] == [2, 4]
        rows = reader.rollouts.page()
        assert rows[1].reward is None and rows[3].advantage == math.inf
        breakdown = reader.bodies.trajectory(2).breakdown
        assert breakdown is not None and breakdown.total is not None and math.isnan(breakdown.total)
        shown = reader.bodies.trajectory(3).breakdown
        assert shown is not None and shown.steps[0].components["task"].raw == math.inf and shown.total == 1.0
        assert sum(c for *_, c in reader.rollouts.histogram(column="advantage")) <= 3


texts = st.text(st.characters(), max_size=60)


@settings(max_examples=60, deadline=None)
@given(prompt=texts, text=texts, observation=texts, answer=st.none() | texts, argument=texts, total=st.floats())
def test_any_text_and_any_number_survives(prompt, text, observation, answer, argument, total):
    trajectory = Trajectory(
        id="x",
        env="e",
        prompt_id="p",
        group="g",
        rollout=0,
        prompt=prompt,
        steps=(Step(0, text, action="A", arguments={"q": argument, "big": 2**80}, observation=observation),),
        answer=answer,
    )
    value = ComponentValue(total, total, 1.0, total)
    record = TrajectoryRecord(trajectory, RewardBreakdown("x", (StepReward(0, {"task": value}, (), total),), total))
    line = codec.encode_body(record)
    assert b"\n" not in line
    found = codec.decode_body(line)
    assert found.trajectory == trajectory
    assert found.breakdown is not None
    assert repr(found.breakdown) == repr(record.breakdown)  # NaN equals nothing, but looks the same
    for column in codec.search_text(found):
        column.encode()
    assert codec.search_text(found) == codec.search_text(record)


def test_lone_surrogates_and_control_characters_reach_the_record(writer: RunWriter, run_dir: Path, make_record):
    nasty = "\ud800 [/red] \x1b]0;title\x07 \x00 \u202e"
    writer.trajectories(1, [make_record(1, 0, prompt=nasty, id="a\ud800", group=nasty, answer=nasty)])
    writer.event("alert", nasty, step=1)
    assert writer.flush(10) and writer.dropped == 0
    with RunReader(run_dir) as reader:
        assert reader.bodies.trajectory(1).trajectory.prompt == nasty
        assert "[/red] \x1b]0;title\x07" in reader.events()[0].message
        assert reader.rollouts.count(Query(search="title")) == 1


def test_nothing_is_lost_for_half_a_surrogate_pair_wherever_it_stands(writer: RunWriter, run_dir: Path, make_record):
    bad, kept = "half \ud83d of a pair", "half \ufffd of a pair"
    tool = ToolSpec(bad, bad, (Argument(bad, "integer"),))
    penalty = Penalty(bad, -0.1, 0, {bad: bad}, bad, bad, bad)
    value = ComponentValue(1.0, 1.0, 1.0, 1.0)
    record = make_record(
        1, 0, env=bad, prompt_id=bad, group=bad, id=bad, answer=bad, stop_reason=bad, split=bad, task={bad: [bad]},
        tools=(tool,), steps=(Step(0, bad, bad, bad, {bad: bad}, observation=bad, error=bad),), prompt=bad,
        breakdown=RewardBreakdown(bad, (StepReward(0, {bad: value}, (penalty,), 1.0),), 1.0),
    )  # fmt: skip
    writer.trajectories(1, [record, make_record(1, 1)])
    writer.metrics(1, {bad: 0.5, "plain": 1.0})
    writer.event("alert", bad, step=1, text=bad, many=[bad, {bad: 2**70}], number=math.nan, thing={1, 2})
    writer.event("alert", "after", step=1)
    writer.vocabulary([bad, "b"])
    writer.status("crashed", step=1, error=bad)
    assert writer.flush(10) and writer.dropped == 0
    with RunReader(run_dir) as reader:
        found = reader.bodies.trajectory(bad)
        assert (
            reader.rollouts.total() == 2
            and found.trajectory.steps[0].text == bad
            and found.trajectory.tools[0].name == bad
        )
        for row in (
            reader.rollouts.rows([1])[0],
            reader.rollouts.group(bad)[0],
            reader.rollouts.prompt(bad)[0],
            reader.rollouts.seek(2, -1),
        ):
            assert row is not None and (row.n, row.group, row.actions, row.rules) == (1, kept, (kept,), (kept,))
        assert (row.split, row.stop_reason, row.env) == (kept, kept, kept)
        assert (
            reader.metrics.points(bad) == reader.metrics.points(kept) == [(1, 0.5)] and kept in reader.metrics.names()
        )
        assert reader.rollouts.count(Query(search=bad)) == 1
        events = [e for e in reader.events() if e.kind == "alert"]
        assert [e.message for e in events] == [kept, "after"]
        assert events[0].data["text"] == bad and events[0].data["many"] == [bad, {bad: 2**70}]
        assert events[0].data["thing"] == [1, 2]
        assert reader.bodies.token_texts([0, 1]) == [kept, "b"]
        assert reader.info().error == bad and reader.problems == []


def test_a_huge_observation_is_kept_whole(writer: RunWriter, run_dir: Path, make_record):
    huge = "word " * 1_000_000
    records = [make_record(1, i) for i in range(5)]
    records[2] = make_record(1, 2, steps=(Step(0, "x", action="A", observation=huge),))
    writer.trajectories(1, records)
    assert writer.flush(30)
    with RunReader(run_dir) as reader:
        assert reader.bodies.trajectory(3).trajectory.steps[0].observation == huge
        assert reader.bodies.trajectory(5).trajectory == records[4].trajectory


def test_vocabulary_makes_token_text_without_a_tokenizer(writer: RunWriter, run_dir: Path):
    writer.vocabulary(["Ġthe", "Ċ", "é", "Ã©", "<|im_end|>"], byte_level=True)
    assert writer.flush(10)
    with RunReader(run_dir) as reader:
        assert reader.bodies.token_texts([0, 1, 3, 4, 99, 0]) == [" the", "\n", "é", "<|im_end|>", "<99>", " the"]
        assert reader.bodies.token_texts([2]) == ["\\xe9"]  # half a character


def test_images_are_files_written_once(writer: RunWriter, run_dir: Path):
    from PIL import Image

    image = np.zeros((4, 6, 3), np.uint8)
    image[1, 2] = (255, 0, 0)
    path = writer.save_image(image, "scene 1/../x")
    assert path == "images/scene_1_.._x.png"
    assert writer.save_image(image, "scene 1/../x") == path
    mask = writer.save_image(np.ones((2, 2), bool), "mask")
    for i, wrong in enumerate((np.ones((2, 2)), np.ones((2, 2, 7), np.uint8), "no image", Image.new("F", (2, 2)))):
        writer.save_image(wrong, f"wrong {i}")  # type: ignore[arg-type]
    assert writer.flush(10)
    with Image.open(run_dir / path) as opened:
        assert opened.size == (6, 4) and opened.getpixel((2, 1)) == (255, 0, 0)
    with Image.open(run_dir / mask) as opened:
        assert opened.getpixel((0, 0)) == 255
    assert sorted(p.name for p in (run_dir / "images").iterdir()) == ["mask.png", "scene_1_.._x.png"]


def test_a_damaged_block_is_an_error_of_one_sentence():
    with pytest.raises(ValueError, match="damaged"):
        codec.decompress(b"not zstd")
