"""Where the result of a run is: in a folder of its own; the configured place is a link to the latest finished run's."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_tui.engine.record.step_recorder import StepRecorder
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.engine.training.run import save_result


def finish(place: Path, run_id: str, **options: bool) -> str:
    """End a run whose weights are its own name; returns its last sentence."""
    run_dir = place / "runs" / run_id
    writer = RunWriter(run_dir)

    def write(folder: Path) -> None:
        folder.mkdir()
        (folder / "weights").write_text(run_id)

    assert save_result(write, str(place / "saved" / "rft"), run_dir, StepRecorder(writer), None, step=3, **options)
    writer.close()
    with RunReader(run_dir) as reader:
        return reader.events(["checkpoint"])[-1].message


def test_the_latest_finished_run_is_linked_and_every_result_stays(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    for run_id in ("one", "two", "one"):  # the last one was resumed for more steps
        assert finish(tmp_path, run_id).endswith(
            f"saved the adapters to {saved}/rft-{run_id}; {saved}/rft is a link to them"
        )
        assert (saved / "rft" / "weights").read_text() == run_id
    finish(tmp_path, "stopped", finished=False)
    assert (saved / "rft" / "weights").read_text() == "one"
    assert sorted(p.name for p in saved.iterdir()) == ["rft", "rft-one", "rft-stopped", "rft-two"]


@pytest.mark.parametrize("kind", ["folder", "link to a folder elsewhere", "file"])
def test_what_the_user_put_there_is_never_overwritten(tmp_path: Path, kind: str) -> None:
    mine, elsewhere = tmp_path / "saved" / "rft", tmp_path / "elsewhere"
    for folder in (mine.parent, elsewhere):
        folder.mkdir()
    if kind == "link to a folder elsewhere":
        mine.symlink_to(elsewhere)
    elif kind == "folder":
        mine.mkdir()
    (mine if kind == "file" else mine / "weights").write_text("mine")
    assert f"{mine} is unchanged" in finish(tmp_path, "one")
    assert (mine if kind == "file" else mine / "weights").read_text() == "mine"
    assert (mine.parent / "rft-one" / "weights").read_text() == "one"


def test_an_empty_folder_and_a_link_to_deleted_adapters_give_way(tmp_path: Path) -> None:
    link = tmp_path / "saved" / "rft"
    link.mkdir(parents=True)
    finish(tmp_path, "one")
    (tmp_path / "saved" / "rft-one").rename(tmp_path / "gone")
    finish(tmp_path, "two")
    assert (link / "weights").read_text() == "two"
