"""Metrics without rollouts: files that the real packages write, and damaged ones."""

from __future__ import annotations

import csv
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grpo_tui.engine.imports.containers.scalar_logs import TensorBoard, crc32c
from grpo_tui.engine.imports.errors import DumpError
from grpo_tui.engine.imports.opening import open_dump
from grpo_tui.engine.imports.readers import open_reader
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.tui.cli.main import run as command
from tests.forked import ROOT, ForkedProcess

STEPS = 40
NAMES = {
    "reward": "rewards/total/mean",
    "reward_std": "rewards/total/std",
    "kl": "kl/mean",
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "entropy": "train/entropy",
    "clip_ratio/region_mean": "train/clip_fraction",
    "frac_reward_zero_std": "grpo/filtering_rate",
    "completions/mean_length": "completions/mean_length",
}
"""TRL's names, and the names in a record."""


def logged() -> Iterator[tuple[int, dict[str, float]]]:
    """A training whose KL explodes at step 30."""
    rng = random.Random(0)
    for step in range(1, STEPS + 1):
        values = {name: rng.random() for name in NAMES}
        yield step, {**values, "kl": 0.01 if step < 30 else 10.0 * step, "entropy": 1.0}


def written_by_transformers(folder: Path) -> None:
    state = pytest.importorskip("transformers.trainer_callback").TrainerState()
    state.global_step = STEPS
    state.log_history = [{**values, "step": step, "epoch": 0.1} for step, values in logged()]
    state.save_to_json(str(folder / "trainer_state.json"))


def written_by_tensorboard(folder: Path) -> None:
    pytest.importorskip("tensorboard", reason="event files are written by tensorboard: pip install tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        for step, values in logged():
            for at, (name, value) in enumerate(values.items()):
                writer.add_scalar(f"train/{name}", value, step, new_style=at % 2 == 0)
        writer.add_text("args", "a text")


OFFLINE = """
import sys, wandb
from tests.engine.imports.test_scalars import logged
from tests.repeated import lighten_wandb
lighten_wandb()
run = wandb.init(project="p", dir=sys.argv[1], mode="offline")
for step, values in logged():
    run.log({**{"train/" + name: value for name, value in values.items()}, "train/global_step": step})
run.finish()
"""


def written_by_wandb(folder: Path) -> None:
    pytest.importorskip("wandb", reason="offline runs are written by wandb: pip install wandb")
    environment = {**os.environ, "WANDB_SILENT": "true"}
    command = [sys.executable, "-c", OFFLINE, str(folder)]
    assert ForkedProcess(command, cwd=ROOT, env=environment, light=True).wait(120) == 0


def history_of_wandb(folder: Path) -> None:
    with (folder / "wandb-history.jsonl").open("w") as file:
        for at, (step, values) in enumerate(logged()):
            known = {f"train/{name}": value for name, value in values.items()}
            file.write(json.dumps({**known, "train/global_step": step, "_step": at, "_runtime": 1.5 * at}) + "\n")


def export_of_wandb(folder: Path) -> None:
    with (folder / "wandb_export.csv").open("w") as file:
        rows = csv.writer(file, quoting=csv.QUOTE_ALL)
        rows.writerow(["Step", *(f"lively-1 - train/{n}{end}" for n in NAMES for end in ("", "__MIN", "__MAX"))])
        for step, values in logged():
            rows.writerow([step, *(values[name] + end for name in NAMES for end in (0, -9, 9))])


def points(reader: RunReader) -> dict[str, list[tuple[int, float]]]:
    return {name: reader.metrics.points(name) for name in reader.metrics.names()}


@pytest.mark.parametrize(
    "write",
    [written_by_transformers, written_by_tensorboard, written_by_wandb, history_of_wandb, export_of_wandb],
    ids=lambda f: f.__name__,
)
def test_scalars_have_trls_meaning(write: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "logs"
    folder.mkdir()
    write(folder)
    with open_reader(open_dump(folder, whole=True).folder) as reader:
        found = points(reader)
        for name, ours in NAMES.items():
            expected = [(step, pytest.approx(values[name], rel=1e-6)) for step, values in logged()]
            assert found[ours] == expected, name
        assert reader.rollouts.total() == 0
        assert found.keys() - NAMES.values() <= {"epoch"}
    assert command(["inspect", str(folder)]) == 0
    assert "train/grad_norm" in capsys.readouterr().out
    assert command(["check", str(folder)]) == 1
    told = capsys.readouterr().out
    assert "the policy leaves its reference too fast" in told
    assert "not checked: reward_hack needs rewards and agent texts" in told


def test_the_file_logger_of_verl_and_its_names(tmp_path: Path):
    lines = [{"step": step, "data": {"actor/entropy": 1 / step, "timing_s/gen": 2.5}} for step in (1, 2)]
    (tmp_path / "verl.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with open_reader(open_dump(tmp_path, whole=True).folder) as reader:
        assert points(reader) == {"train/entropy": [(1, 1.0), (2, 0.5)], "timing_s/gen": [(1, 2.5), (2, 2.5)]}


def test_an_event_file_reads_like_tensorboards_own_reader(tmp_path: Path):
    pytest.importorskip("tensorboard", reason="event files are written by tensorboard: pip install tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import (  # pyright: ignore[reportMissingImports]
        EventAccumulator,
    )
    from tensorboard.util import tensor_util  # pyright: ignore[reportMissingImports]

    written_by_tensorboard(tmp_path)
    theirs = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    tags = theirs.Tags()
    expected = {(tag, e.step): e.value for tag in tags["scalars"] for e in theirs.Scalars(tag)}
    for tag in tags["tensors"]:
        for event in theirs.Tensors(tag):
            array = tensor_util.make_ndarray(event.tensor_proto)
            if array.dtype.kind == "f":  # the text is one, too
                expected[tag, event.step] = array.item()
    (path,) = tmp_path.iterdir()
    found = {(k, f.document["step"]): v for f in TensorBoard().open(path) for k, v in f.document["tensorboard"].items()}
    assert found == expected and len(found) == STEPS * len(NAMES)


def test_a_damaged_record_is_named_and_the_others_are_read(tmp_path: Path):
    written_by_tensorboard(tmp_path)
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    whole = list(TensorBoard().open(path))
    data[whole[10].offset + 20] ^= 0xFF
    path.write_bytes(data)
    found = list(TensorBoard().open(path))
    (problem,) = [f.problem for f in found if f.problem]
    assert problem.endswith("is damaged (its checksum is wrong)")
    assert len({f.document["step"] for f in found if f.document}) == STEPS
    path.write_bytes(data[:-30])
    assert not [f for f in TensorBoard().open(path) if f.problem and f.problem != problem], "an end that grows"


def test_a_log_that_grows_is_followed(tmp_path: Path):
    written_by_tensorboard(tmp_path)
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    cut = list(TensorBoard().open(path))[20].offset + 30
    path.write_bytes(data[:cut])
    with open_reader(open_dump(tmp_path, whole=True).folder) as reader:
        assert reader.metrics.last_step() == 20
    path.write_bytes(data)
    with open_reader(open_dump(tmp_path, whole=True).folder) as reader:
        assert [step for step, _ in reader.metrics.points("kl/mean")] == list(range(1, STEPS + 1))


def test_the_checksum_is_castagnolis():
    unmasked = crc32c(b"123456789") - 0xA282EAD8 & 0xFFFFFFFF
    assert (unmasked << 15 | unmasked >> 17) & 0xFFFFFFFF == 0xE3069283, "the check value of CRC-32C"


def test_a_table_of_something_else_is_no_dump(tmp_path: Path):
    (tmp_path / "a.csv").write_text("step,colour\n1,red\n2,blue\n")
    with pytest.raises(DumpError, match="no known format"):
        open_dump(tmp_path, whole=True)
