"""A run as its process lives: killed, resumed, paused, stopped, refused."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from grpo_tui.configs.loading import load_config
from grpo_tui.engine.launch.start import start_run
from grpo_tui.engine.runs.control.requests import outcome, request
from grpo_tui.engine.runs.control.status import look
from grpo_tui.engine.training.__main__ import run
from grpo_tui.engine.training.checkpoints import checkpoint_folder, checkpoints
from tests.forked import forked_processes

from .runs import events, make_run, recorded_rollouts, recorded_steps, start


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("model") / "base"


@pytest.fixture(scope="module")
def whole(tmp_path_factory, base) -> Path:
    """A run that nobody disturbed."""
    folder = make_run(tmp_path_factory.mktemp("runs") / "whole", base, eval_every=4)
    assert run(folder) == 0
    return folder


def wait(condition: Callable[[], object], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapters" / "adapter_model.safetensors")


def test_a_finished_run_has_every_step_and_adapters_that_peft_loads(whole, base):
    assert recorded_steps(whole) == list(range(1, 9))
    assert recorded_rollouts(whole) == dict.fromkeys(range(1, 9), 8)
    assert look(whole).status == "finished"
    assert (whole / "adapters").readlink() == Path("adapters-whole")
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), str(whole / "adapters"))
    assert any("lora_B" in n and p.abs().max() > 0 for n, p in model.named_parameters())
    assert not list((whole / "adapters").glob("ref*"))
    assert len(events(whole, "eval")) == 3
    assert [step for step, _ in checkpoints(checkpoint_folder(whole))] == [6, 8]


def test_a_killed_and_resumed_run_misses_no_step_and_ends_where_the_whole_one_does(tmp_path, base, whole):
    folder = make_run(tmp_path / "killed", base, eval_every=4)
    process = start(folder)
    try:
        wait(lambda: (folder / "record.sqlite").exists() and len(recorded_steps(folder)) >= 3)
        time.sleep(random.uniform(0, 0.3))
    finally:
        process.kill()
        process.wait()
    assert look(folder).status == "crashed"
    assert run(folder, resume=True) == 0
    assert recorded_steps(folder) == list(range(1, 9))
    assert recorded_rollouts(folder) == dict.fromkeys(range(1, 9), 8)
    ours, expected = weights(folder), weights(whole)
    for name in expected:
        assert torch.equal(ours[name], expected[name]), name


def test_people_pause_save_and_stop_a_run_and_it_answers(tmp_path, base):
    folder = make_run(tmp_path / "asked", base, max_steps=10_000, save_every=0)
    process = start(folder)
    try:
        wait(lambda: look(folder).step >= 1)
        paused = request(folder, "pause")
        wait(lambda: look(folder).status == "paused")
        assert outcome(folder, paused) == "paused"
        step = look(folder).step
        saved = request(folder, "checkpoint")
        wait(lambda: outcome(folder, saved))
        assert outcome(folder, saved) == f"saved as checkpoint-{step}"
        assert look(folder).step == step
        request(folder, "resume")
        wait(lambda: look(folder).step > step)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
    info = look(folder)
    assert info.status == "stopped"
    assert [s for s, _ in checkpoints(checkpoint_folder(folder))][-1] == info.step
    assert recorded_steps(folder) == list(range(1, info.step + 1))


def test_what_was_asked_before_a_pause_is_saved_during_it_and_only_once(tmp_path, base):
    folder = make_run(tmp_path / "paused", base, max_steps=10_000, save_every=0)
    process = start(folder)
    try:
        saved, paused = request(folder, "checkpoint"), request(folder, "pause")  # both heard after the first step
        wait(lambda: outcome(folder, paused))
        wait(lambda: outcome(folder, saved))
        assert look(folder).status == "paused" and outcome(folder, saved) == "saved as checkpoint-1"
        assert look(folder).heard is not None
        stopped = request(folder, "stop")
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert outcome(folder, stopped) == "stopping; saved as checkpoint-1"
    assert events(folder, "checkpoint") == ["checkpoint of step 1"], "the step is saved once, not again for the stop"


def test_a_run_that_is_refused_says_why_in_one_sentence_and_keeps_the_traceback(tmp_path, base, capsys):
    folder = make_run(tmp_path / "refused", base, prompts_per_step=2)
    text = (folder / "config.yaml").read_text().replace("CalculatorEnv", "CalculatorEnw")
    (folder / "config.yaml").write_text(text)
    assert run(folder) == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("error: environment.class_path: ")
    assert "CalculatorEnv" in said
    info = look(folder)
    assert (info.status, info.error) == ("crashed", said.removeprefix("error: "))
    assert events(folder, "error") == [said.removeprefix("error: ")]


@pytest.mark.stress
def test_twenty_kills_at_random_moments_lose_nothing(tmp_path, base):
    folder = make_run(tmp_path / "often", base, max_steps=120, save_every=3)
    for attempt in range(20):
        process = start(folder, resume=attempt > 0)
        before = look(folder).step
        try:
            wait(lambda at=before, child=process: look(folder).step > at or child.poll() is not None)
            time.sleep(random.uniform(0, 1.0))
        finally:
            process.kill()
            process.wait()
        steps = recorded_steps(folder)
        assert steps == list(range(1, len(steps) + 1))
    assert run(folder, resume=True) == 0
    assert recorded_steps(folder) == list(range(1, 121))
    assert set(recorded_rollouts(folder).values()) == {8}


def test_two_processes_train_one_run_and_only_the_first_records(tmp_path, base):
    """Through the launcher, as `grpo-tui train --num-processes 2` does."""
    text = (make_run(tmp_path / "model", base, max_steps=3, eval_every=3) / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(text)
    with forked_processes():
        info = start_run(load_config(tmp_path / "config.yaml"), runs_dir=tmp_path / "runs", num_processes=2)
    folder = Path(info.path)
    wait(lambda: look(folder).status in ("finished", "crashed"))
    assert look(folder).status == "finished", look(folder).error
    assert recorded_steps(folder) == [1, 2, 3]
    assert recorded_rollouts(folder) == {1: 8, 2: 8, 3: 8}
    assert sorted(p.name for p in checkpoint_folder(folder).glob("checkpoint-*/rng_*.json")) == [
        "rng_0.json",
        "rng_0.json",
        "rng_1.json",
        "rng_1.json",
    ]
    assert "greedy" in events(folder, "eval")[-1]
    assert re.search(r"\d+% \(\d+% to \d+%\) greedy", events(folder, "eval")[-1])
