"""Going on with a run: killed at any moment, with damaged files, on a full disk, twice at once, or when it is over."""

from __future__ import annotations

import json
import random
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from grpo_tui.engine.launch.settings import keep_settings
from grpo_tui.engine.runs.control.status import look
from grpo_tui.engine.runs.durable import write_checksums
from grpo_tui.engine.runs.health.checkpoints import checkpoint_folder, checkpoints, newest_whole
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.training.__main__ import run

from .runs import events, make_run, recorded_rollouts, recorded_steps, start

STEPS = 6


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("model") / "base"


@pytest.fixture(scope="module")
def whole(tmp_path_factory, base) -> Path:
    """A run that nobody disturbed."""
    folder = make_run(tmp_path_factory.mktemp("runs") / "whole", base, max_steps=STEPS, eval_every=3)
    assert run(folder) == 0
    return folder


@pytest.fixture
def copied(tmp_path, whole) -> Path:
    """A run of its own, finished, with two checkpoints."""
    folder = tmp_path / "copied"
    shutil.copytree(whole, folder)
    text = (folder / "config.yaml").read_text().replace(str(whole / "adapters"), str(folder / "adapters"))
    (folder / "config.yaml").write_text(text)
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapters" / "adapter_model.safetensors")


def recorded_evaluations(folder: Path) -> list[int]:
    with RunReader(folder) as reader:
        return [step for step, _ in reader.metrics.points("success/eval_greedy")]


def assert_same_run(folder: Path, whole: Path) -> None:
    """Every step once, none too many, every evaluation once, and bitwise the same adapters."""
    assert recorded_steps(folder) == recorded_steps(whole)
    assert recorded_rollouts(folder) == recorded_rollouts(whole)
    assert recorded_evaluations(folder) == recorded_evaluations(whole)
    ours, expected = weights(folder), weights(whole)
    assert ours.keys() == expected.keys()
    for name in expected:
        assert torch.equal(ours[name], expected[name]), name
    assert look(folder).status == "finished"
    assert look(folder).step == look(whole).step
    assert not list(checkpoint_folder(folder).glob(".tmp-*"))


def kill_when(folder: Path, moment: Callable[[], bool], later: float = 0.0, *, resume: bool) -> None:
    """Start or resume a run and SIGKILL it once `moment` has come and `later` seconds have passed."""
    process = start(folder, resume=resume)
    until = time.monotonic() + 120
    try:
        while not moment() and process.poll() is None:
            assert time.monotonic() < until, "waited in vain"
            time.sleep(0.002)
        time.sleep(later)
    finally:
        process.kill()
        process.wait()


def phase(folder: Path, name: str, step: int) -> bool:
    if not (folder / "record.sqlite").exists():
        return False
    with RunReader(folder) as reader:
        return any(e.data.get("name") == name and e.step == step for e in reader.events(["phase"]))


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "while it loads": lambda folder: phase(folder, "loading", 0),
    "in the first evaluation": lambda folder: phase(folder, "evaluating", 0),
    "before the first step is saved": lambda folder: phase(folder, "training", 0),
    "while a checkpoint is written": lambda folder: bool(list(checkpoint_folder(folder).glob(".tmp-checkpoint-2"))),
    "between checkpoints": lambda folder: look(folder).step >= 3,
    "in the last evaluation": lambda folder: phase(folder, "evaluating", STEPS),
    "after the last checkpoint": lambda folder: (checkpoint_folder(folder) / f"checkpoint-{STEPS}").exists(),
    "after the end": lambda folder: look(folder).status == "finished",
}


@pytest.mark.parametrize("moment", ["in the first evaluation", "in the last evaluation", "after the last checkpoint"])
def test_a_run_that_was_killed_becomes_the_run_that_was_not(tmp_path, base, whole, moment):
    folder = make_run(tmp_path / "killed", base, max_steps=STEPS, eval_every=3)
    kill_when(folder, lambda: MOMENTS[moment](folder), resume=False)
    assert run(folder, resume=True) == 0
    assert_same_run(folder, whole)


@pytest.mark.stress
@pytest.mark.parametrize("attempt", range(20))
def test_kills_at_random_moments(tmp_path, base, whole, attempt):
    folder, moments = make_run(tmp_path / "killed", base, max_steps=STEPS, eval_every=3), list(MOMENTS)
    for number in range(random.randint(1, 3)):
        name = moments[attempt % len(moments)] if number == 0 else random.choice(moments)
        kill_when(folder, lambda at=name: MOMENTS[at](folder), random.uniform(0, 0.7), resume=number > 0)
    assert run(folder, resume=True) == 0
    assert_same_run(folder, whole)


def test_a_run_that_is_over_makes_no_further_step(copied, whole):
    assert run(copied, resume=True) == 0
    assert_same_run(copied, whole)


def test_a_resumed_run_takes_the_learning_rate_of_its_configuration(copied):
    """Lowering it is the suggestion of a run whose policy moves too fast."""

    def rates() -> dict[int, float]:
        with RunReader(copied) as reader:
            return dict(reader.metrics.points("train/learning_rate"))

    config = yaml.safe_load((copied / "config.yaml").read_text())
    lower = rates()[1] / 10
    config["training"] |= {"learning_rate": lower, "max_steps": STEPS + 2}
    (copied / "config.yaml").write_text(yaml.safe_dump(config))
    assert run(copied, resume=True) == 0
    assert 0 < rates()[STEPS + 2] <= lower * (1 + 1e-9)


def test_state_that_a_changed_setting_lacks_begins_anew_and_other_adapters_are_refused(copied, capsys):
    config = yaml.safe_load((copied / "config.yaml").read_text())
    config["data"] = {"sampler": "difficulty"}
    checkpoint = checkpoint_folder(copied) / f"checkpoint-{STEPS}"
    replay = json.loads((checkpoint / "replay.json").read_text())
    (checkpoint / "replay.json").write_text(json.dumps({k: v for k, v in replay.items() if k != "absent"}))
    write_checksums(checkpoint)
    config["training"] |= {"trl": {"optim": "adafactor"}, "max_steps": STEPS + 1}
    (copied / "config.yaml").write_text(yaml.safe_dump(config))
    assert run(copied, resume=True) == 0
    assert recorded_steps(copied) == list(range(1, STEPS + 2))
    anew = [message for message in events(copied, "record") if "starts empty" in message]
    assert len(anew) == 2 and "another version wrote it, without 'absent'" in "".join(anew)
    keep_settings(copied)  # as the launcher does
    before = (copied / "config.yaml").read_text()
    config["model"]["lora"]["target_modules"] = ["q_proj"]
    config["training"]["max_steps"] = STEPS + 2
    (copied / "config.yaml").write_text(yaml.safe_dump(config))
    assert run(copied, resume=True) == 1
    assert "it has adapters of other modules; keep model.lora.target_modules" in capsys.readouterr().err
    assert (copied / "config.yaml").read_text() == before
    assert "no step ran with the changed settings" in events(copied, "note")[-1]
    assert recorded_steps(copied) == list(range(1, STEPS + 2))


def test_what_was_recorded_is_not_given_up_when_there_is_nothing_to_go_on_from(copied, capsys):
    before = recorded_rollouts(copied)
    shutil.rmtree(checkpoint_folder(copied))
    assert run(copied, resume=True) == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "has no complete checkpoint; its 6 recorded steps are unchanged" in said
    assert recorded_rollouts(copied) == before


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path, at: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(at * (len(data) - 1))] ^= 0x40
    path.write_bytes(bytes(data))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": truncate,
    "emptied": lambda path: path.write_bytes(b""),
    "deleted": lambda path: path.unlink(),
    "its first byte flipped": lambda path: flip(path, 0.0),
    "its middle flipped": lambda path: flip(path, 0.5),
    "its last byte flipped": lambda path: flip(path, 1.0),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_to_any_file_is_seen_before_it_is_used(copied, damage):
    folder = checkpoint_folder(copied)
    (before, _), (newest, path) = checkpoints(folder)
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        kept = file.read_bytes()
        DAMAGE[damage](file)
        found, damaged = newest_whole(folder)
        assert found is not None and found[0] == before, file.name
        assert [d.path for d in damaged] == [path]
        # A wrong digit within `checksums.json` shows as damage to the file whose checksum it is.
        assert file.name in damaged[0].why or (
            file.name == "checksums.json" and "has changed since it was written" in damaged[0].why
        )
        file.write_bytes(kept)
    assert newest_whole(folder)[0] == (newest, path)


def test_a_damaged_checkpoint_is_said_and_made_again(copied, whole):
    flip(checkpoint_folder(copied) / f"checkpoint-{STEPS}" / "adapter_model.safetensors", 0.7)
    assert run(copied, resume=True) == 0
    said = [m for m in events(copied, "record") if "damaged" in m]
    assert said == [
        f"checkpoint-{STEPS} is damaged (adapter_model.safetensors has changed since it was written); resuming from "
        f"checkpoint-{STEPS - 2}; the 2 steps after it are repeated"
    ]
    assert_same_run(copied, whole)
    kept = ["adapters-1", "adapters-2", "checkpoint-4", "checkpoint-6"]
    assert sorted(p.name for p in checkpoint_folder(copied).iterdir()) == kept


def test_a_run_whose_checkpoints_are_all_damaged_is_refused_and_loses_nothing(copied, capsys):
    for _, path in checkpoints(checkpoint_folder(copied)):
        truncate(path / "optimizer.safetensors")
    before = recorded_rollouts(copied)
    assert run(copied, resume=True) == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert "checkpoint-6 is damaged (optimizer.safetensors has" in said and "checkpoint-4 is damaged" in said
    assert recorded_rollouts(copied) == before
    assert len(checkpoints(checkpoint_folder(copied))) == 2


def test_a_full_disk_costs_checkpoints_and_the_result_waits_for_room(tmp_path, base, whole):
    """No file may grow beyond 40 kB, as on a disk without room; at the end the limit is taken away."""
    folder = make_run(tmp_path / "full", base, max_steps=STEPS, eval_every=3)
    process = start(folder)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
    try:
        until = time.monotonic() + 240
        while "saving to" not in (folder / "log.txt").read_text():
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.1)
        assert "the checkpoint of step 2 could not be saved" in (folder / "log.txt").read_text()
        assert not list(checkpoint_folder(folder).glob(".tmp-*"))
        while (now := look(folder).progress) is None or now.phase != "waiting for disk space":
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.1)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
    for name, expected in weights(whole).items():
        assert torch.equal(weights(folder)[name], expected)
    assert not list(folder.glob(".tmp-*"))


def test_one_run_is_trained_by_one_process_at_a_time(tmp_path, base, whole):
    folder = make_run(tmp_path / "twice", base, max_steps=STEPS, eval_every=3)
    kill_when(folder, lambda: look(folder).step >= 2, resume=False)
    both = [start(folder, resume=True) for _ in range(2)]
    codes = sorted(process.wait(120) for process in both)
    assert codes == [0, 1]
    assert "stop it first" in (folder / "log.txt").read_text()
    assert_same_run(folder, whole)


def test_a_killed_run_of_trees_becomes_the_run_that_was_not(tmp_path, base):
    whole, folder = (
        make_run(tmp_path / name, base, max_steps=STEPS, advantages="tree") for name in ("whole", "killed")
    )
    assert run(whole) == 0
    kill_when(folder, lambda: MOMENTS["between checkpoints"](folder), resume=False)
    assert run(folder, resume=True) == 0
    assert_same_run(folder, whole)
    with RunReader(folder) as reader:
        assert any("tree_parent" in row.extra for row in reader.rollouts.page(limit=100))
