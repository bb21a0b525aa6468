"""`grpo-tui train --seeds`: runs one after another, the mean over them, and how a stopped one goes on."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scipy import stats

from grpo_tui.engine.runs.health.headline import Headline
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.types import RunInfo
from grpo_tui.tui.app.run_list import by_configuration, seeds_line
from tests.e2e.world import grpo_tui, save_model, variables, write_world


def test_the_mean_over_seeds_is_scipys() -> None:
    success, reward = [0.25, 0.5, 0.875], [0.5, 1.5, 0.7]
    said = seeds_line(
        [Headline({"success/eval_greedy": s, "rewards/total/mean": r}) for s, r in zip(success, reward, strict=True)]
    )
    low, high = stats.t.interval(0.95, 2, loc=sum(success) / 3, scale=stats.sem(success))
    assert f"3 seeds: success 54 % ({100 * low:.0f} to {100 * high:.0f})".replace("-", "−") in said.replace("-", "−")
    low, high = stats.t.interval(0.95, 2, loc=0.9, scale=stats.sem(reward))
    found = re.search(r"reward (\S+) \((\S+) to (\S+)\)", said.replace("−", "-"))
    assert found and [float(x) for x in found.groups()] == pytest.approx([0.9, low, high], abs=0.00501)
    assert seeds_line([Headline({"success/eval_greedy": 0.5}), Headline()]) == "2 seeds"


def test_only_finished_runs_of_one_configuration_and_other_seeds_belong_together() -> None:
    def run(name: str, configuration: str, seed: int, created: float = 1.0, status: str = "finished") -> RunInfo:
        facts = {"configuration": configuration, "seed": seed}
        return RunInfo(name, name, "rft", status, created=created, facts=facts)  # type: ignore[arg-type]

    runs = [
        run("a", "x", 0),
        run("b", "x", 1),
        run("c", "x", 1, 2.0),
        run("d", "x", 2, status="crashed"),
        run("e", "y", 0),
    ]
    runs += [RunInfo("f", "f", "rft", "finished"), RunInfo("g", "g", "rft", "finished")]
    assert [[r.id for r in seeds] for seeds in by_configuration(runs)] == [["a", "c"]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("seeds")
    write_world(folder, save_model(folder / "model"), max_steps=4, save_every=1)
    return folder


@pytest.mark.stress
def test_a_stopped_command_goes_on_with_its_seed_and_the_others(world: Path) -> None:
    command = ["train", "letters.yaml", "--seeds", "2", "--run-id", "mine"]
    started = subprocess.Popen(
        [sys.executable, "-m", "grpo_tui.tui.cli", *command, "--set", "training.prompts_per_step=8"],
        cwd=world, env=variables(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    record = world / "runs" / "mine-0" / "record.sqlite"
    for _ in range(1200):
        if record.exists() and list((world / "runs" / "mine-0" / "checkpoints").glob("checkpoint-*")):
            break
        time.sleep(0.1)
    started.send_signal(signal.SIGINT)
    said, _ = started.communicate(timeout=240)
    assert started.returncode == 130 and "the same command continues" in said, said
    done = grpo_tui(world, *command, "--set", "training.prompts_per_step=8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seed 0, 1 of 2: run mine-0 resumes" in done.stdout and "seed 1, 2 of 2: run mine-1 started" in done.stdout
    rewards = []
    for name in ("mine-0", "mine-1"):
        with RunReader(world / "runs" / name) as reader:
            points = reader.metrics.points("rewards/total/mean")
        assert [step for step, _ in points] == [1, 2, 3, 4]
        rewards.append(points[-1][1])
    listed = grpo_tui(world, "runs").stdout
    line = next(line for line in listed.splitlines() if line.startswith("2 seeds"))
    assert line in done.stdout.splitlines()[-1] + line[line.index(" · ") :] and "mine-0, mine-1" in line
    assert line.startswith("2 seeds: ") and f"{sum(rewards) / 2:.2g}"[:4] in line
    facts = [json.loads(text)["facts"] for text in grpo_tui(world, "runs", "--json").stdout.splitlines()]
    assert len({f["configuration"] for f in facts}) == 1 and {f["seed"] for f in facts} == {0, 1}
    again = grpo_tui(world, *command, "--set", "training.prompts_per_step=8")
    assert again.returncode == 0 and again.stdout.count("has finished") == 2
    wrong = grpo_tui(world, "train", "--resume", "mine-0", "--seeds", "2")
    assert wrong.returncode == 2 and "leave --resume out" in wrong.stderr
