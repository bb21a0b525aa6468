"""Validation of candidates: what was found is kept, and a process that was killed goes on there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_tui.configs.sections.online import OnlineConfig
from grpo_tui.engine.agents.transformers_agent import TransformersAgent
from grpo_tui.engine.online.learn import validation as module
from grpo_tui.engine.online.learn.validation import Validator
from grpo_tui.engine.online.learn.worker_state import StateError, write_state
from grpo_tui.engine.online.serve import watching
from grpo_tui.engine.online.serve.watching import ValidationProcess, WorkerWatch
from grpo_tui.engine.online.store.sqlite_queue import SqliteQueue
from grpo_tui.engine.rollouts.runner import RolloutRunner, Row
from grpo_tui.engine.runs.durable import write_json
from grpo_tui.engine.runs.paths import OnlineFolder

from .tiny import lora_model, tokenizer

WORDS = tokenizer()
ENV = f"{Path(__file__).with_name('tiny.py')}:ParityEnv"
ROWS = [Row(ENV, {}, {"question": f"is it? {i}", "answer": str(i % 3)}) for i in range(8)]
SAMPLES = 3


class Killed(BaseException):
    """As SIGKILL: nothing is tidied up."""


def process(folder: OnlineFolder, **settings: Any) -> tuple[Validator, SqliteQueue]:
    """Validation as a process of its own begins: with a model and a connection of its own."""
    model = lora_model(len(WORDS))
    runner = RolloutRunner(TransformersAgent(model, WORDS, max_turn_tokens=6, max_trajectory_tokens=64), WORDS, SAMPLES)
    validator = Validator(folder, model, runner, ROWS[3:], ROWS[:3], SAMPLES, settings)
    return validator, SqliteQueue(folder.queue)


def offer(folder: OnlineFolder, update: int) -> str:
    """A candidate whose live and smoothed models differ, the same ones for each update number."""
    parameters = {n: p for n, p in lora_model(len(WORDS)).named_parameters() if p.requires_grad}
    tensors = {}
    for part in ("live", "ema"):
        generator = torch.Generator().manual_seed(update + len(part))
        tensors |= {f"{part}/{n}": torch.randn(p.shape, generator=generator) for n, p in parameters.items()}
    state = write_state(folder.state, update, tensors, {})
    SqliteQueue(folder.queue).set(candidate={"state": state, "update": update})
    return state


def numbers(result: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in result.items() if k not in ("state", "seconds", "validated")}


def validated(folder: OnlineFolder, lives: int | None) -> dict[str, Any]:
    """Validate what waits; each process of `lives` dies after a portion of its own. None: one process does it all."""
    for _ in range(lives or 0):
        validation, queue = process(folder)
        assert validation.go_on(queue)
        queue.close()
    validation, queue = process(folder)
    portions = 0
    while validation.go_on(queue):
        portions += 1
    assert portions == 9 - (lives or 0)  # 3 of 5 live, 3 of 5 smoothed, 3 of 3 canary tasks: nothing is done twice
    return queue.get("validation")


@pytest.fixture(autouse=True)
def _small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PORTION", 2)


def test_a_validation_that_was_cut_off_goes_on_and_finds_the_same(tmp_path: Path) -> None:
    whole, cut = OnlineFolder(tmp_path / "whole"), OnlineFolder(tmp_path / "cut")
    for update, lives in ((16, 4), (32, 8)):
        found = [validated(folder, n) for folder, n in ((whole, None), (cut, lives)) if offer(folder, update)]
        assert numbers(found[0]) == numbers(found[1])
        assert found[0]["update"] == update and found[0]["n"] == 5 and found[0]["delta"] != 0
    assert found[0]["label_flips"] > 0 and "label_accuracy" in found[0]  # against the labels of the candidate before


def test_killed_within_a_portion_only_that_one_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = OnlineFolder(tmp_path)
    offer(folder, 0)
    validation, queue = process(folder)
    assert validation.go_on(queue)

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(RolloutRunner, "run", killed)
        with pytest.raises(Killed):
            validation.go_on(queue)
    queue.close()
    kept = SqliteQueue(folder.queue).get("validating")
    assert len(kept["live"]) == 2
    again, queue = process(folder)
    assert again.go_on(queue)
    assert queue.get("validating")["live"][:2] == kept["live"] and len(queue.get("validating")["live"]) == 4


@pytest.mark.parametrize("kept", [{"live": [True]}, "damaged", {"state": "other", "measure": "of others"}])
def test_what_does_not_belong_to_this_measure_is_not_added_to(tmp_path: Path, kept: Any) -> None:
    folder = OnlineFolder(tmp_path)
    state = offer(folder, 0)
    validation, queue = process(folder)
    validation.go_on(queue)
    own = queue.get("validating")
    assert own["state"] == state and len(own["live"]) == 2
    colder, _ = process(folder, temperature=0.5)
    assert colder.begun(state, own).live == []
    queue.set(validating=kept)
    validation.go_on(queue)
    assert queue.get("validating") | {"seconds": 0} == own | {"seconds": 0}


def test_a_damaged_candidate_is_told_and_a_missing_one_is_waited_for(tmp_path: Path) -> None:
    folder = OnlineFolder(tmp_path)
    path = folder.state / offer(folder, 0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"!")
    validation, queue = process(folder)
    assert validation.go_on(queue)
    assert "does not match its checksum" in queue.get("validation")["unreadable"]
    assert not validation.go_on(queue)
    path.unlink()
    queue.set(validation=None)
    with pytest.raises(StateError):
        validation.go_on(queue)


class Child:
    """What is used of a process."""

    def __init__(self) -> None:
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    """The children that were started."""
    children: list[Child] = []

    def spawn(run_dir: Path, name: str, command: list[str], **_: Any) -> Child:
        assert run_dir == tmp_path and name == "validation" and command[-2:] == [str(tmp_path), "--child"]
        children.append(Child())
        return children[-1]

    monkeypatch.setattr(watching, "spawn", spawn)
    monkeypatch.setattr(watching, "RESTART_S", 0.0)
    return children


def test_an_error_that_comes_back_ends_validation_and_a_kill_does_not(tmp_path: Path, started: list[Child]) -> None:
    folder, told = OnlineFolder(tmp_path), list[str]()
    queue = SqliteQueue(folder.queue)
    held = ValidationProcess(folder, queue, told.append)
    state = offer(folder, 0)
    write_json(tmp_path / "processes" / "validation.json", {"status": "crashed", "error": "VisualEnv has no option x."})

    def dies(code: int) -> None:
        held.keep_alive()
        started[-1].returncode = code
        for _ in range(3):
            held.keep_alive()

    for code in (-9,) * 5 + (1, 1):
        dies(code)
    queue.set(validating={"state": state, "seconds": 1.0})
    for _ in range(3):
        assert queue.get("validation") is None, "it has found something since"
        dies(1)
    assert len(started) == 10, "it is not started an 11th time"
    found = queue.get("validation")
    assert found["state"] == state
    assert found["missing"].endswith("is off until the run is resumed. The last error: VisualEnv has no option x")
    again = ValidationProcess(folder, queue, told.append)
    again.keep_alive()
    assert len(started) == 11 and queue.get("validation") is None, "a new life tries again"


def test_the_engine_starts_it_when_a_candidate_of_this_machine_waits_and_again_when_it_dies(
    tmp_path: Path, started: list[Child]
) -> None:
    told: list[str] = []
    folder = OnlineFolder(tmp_path)
    queue = SqliteQueue(folder.queue)
    held = ValidationProcess(folder, queue, told.append)
    held.keep_alive()
    queue.set(candidate={"state": "of another machine", "update": 0})
    held.keep_alive()
    assert started == []
    offer(folder, 0)
    for _ in range(3):
        held.keep_alive()
    assert len(started) == 1
    started[0].returncode = 1
    held.keep_alive()
    assert "Validation has died (logs/validation.log)" in told[0]
    held.keep_alive()
    assert len(started) == 2 and len(told) == 1


def test_nothing_is_waited_for_where_nothing_can_be_validated(tmp_path: Path) -> None:
    folder = OnlineFolder(tmp_path)
    queue = SqliteQueue(folder.queue)
    watch = WorkerWatch(tmp_path, OnlineConfig(), queue, lambda *_, **__: None, lambda: True)
    state = offer(folder, 0)
    queue.set(ending=True)
    assert not watch.all_validated()
    queue.set(validation={"state": state, "missing": "there are no held-out tasks"})
    assert watch.all_validated()
