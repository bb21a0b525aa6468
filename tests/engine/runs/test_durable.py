"""Folders that several processes make at once, and the modes of files that are saved."""

from __future__ import annotations

import itertools
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from grpo_tui.engine.runs.durable import make_folder, write_synced
from grpo_tui.engine.training.checkpoints import begin, commit, replacing


def test_sixteen_at_once_make_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Path.is_dir
    calls = itertools.count()

    def slow(self: Path) -> bool:
        there = original(self)
        time.sleep(0.003 * (next(calls) % 7))  # meanwhile others make it
        return there

    monkeypatch.setattr(Path, "is_dir", slow)
    folder = tmp_path / "a" / "b" / "c"
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda _: make_folder(folder), range(16)))
    assert folder.is_dir()


def test_a_file_in_the_way_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotADirectoryError):
            make_folder(folder)


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_saved_weights_have_the_mode_that_the_umask_asks_for(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        checkpoint = begin(tmp_path / "checkpoints", 3)
        save_file({"w": torch.zeros(2)}, checkpoint / "model.safetensors")
        commit(checkpoint, keep=1)
        with replacing(tmp_path / "adapters") as folder:
            (folder / "below").mkdir(parents=True)
            save_file({"w": torch.zeros(2)}, folder / "below" / "adapter_model.safetensors")
        write_synced(tmp_path / "config.json", b"{}")
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 5
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {oct(0o666 & ~umask)}
