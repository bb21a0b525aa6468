"""Each kind of addition, made as CONTRIBUTING.md says: in files of one's own, and in a copy of the package."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import ANEW, forked_processes, train

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"```python\n# file: (\S+)\n(.*?)```", re.S)
SETTINGS = (
    "model.device=cpu",
    "training.max_steps=1",
    "training.prompts_per_step=2",
    "training.num_generations=2",
    "environment.train_tasks=4",
    "environment.eval_tasks=0",
    "training.max_turn_tokens=12",
    "training.max_trajectory_tokens=512",
    "rewards.w_curiosity=0",
    "rewards.w_coherence=0",
    "training.beta=0",
)


def shown() -> dict[str, str]:
    """The files that CONTRIBUTING.md shows, and the environment of its page, by name."""
    files = dict(CODE.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    page = (ROOT / "docs" / "write-your-own-environment.md").read_text(encoding="utf-8")
    return {**files, "guess.py": re.findall(r"```python\n# guess.py\n(.*?)```", page, re.S)[0]}


def trained(folder: Path, settings: tuple[str, ...], **environment: str) -> Path:
    """The folder of a run of one step, trained by the program's own command."""
    words = [word for setting in (*SETTINGS, *settings) for word in ("--set", setting)]
    command = [sys.executable, "-m", "grpo_tui.tui.cli", "train", "--headless", "--runs-dir", "runs", *words]
    settings_of = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", ANEW: "1", **environment}
    with forked_processes():
        answer = subprocess.run(command, cwd=folder, env=settings_of, capture_output=True, text=True, timeout=400)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    (run,) = (p for p in (folder / "runs").iterdir() if (p / "record.sqlite").exists())
    return run


def test_what_one_writes_in_files_of_ones_own_trains(tmp_path: Path):
    """An environment, a rule, an advantage method, a loss and a reward component, in one training."""
    from grpo_tui.engine.runs.read.reader import RunReader

    for name, code in shown().items():
        (tmp_path / name).write_text(code)
    run = tmp_path / "runs" / "mine"
    train(
        run,
        None,
        (
            *SETTINGS,
            "environment.class_path=guess.py:GuessEnv",
            "environment.config={}",
            "rewards.penalty_rules=[{class_path: too_many_zooms.py:TooManyZooms}]",
            "training.advantages=halves.py:Halves",
            "training.loss_type=clipped.py:clipped",
            "rewards.extra_components={brevity: {class_path: brevity.py:Brevity, weight: 0.1}}",
        ),
        cwd=tmp_path,
    )
    with RunReader(run) as reader:
        latest = reader.metrics.latest()
        rows = [reader.bodies.trajectory(n) for n in range(1, 5)]
    assert latest["rewards/weight/brevity"] == 0.1
    for record in rows:
        assert record.trajectory.env == "guess" and record.breakdown is not None
        for step, reward in zip(record.trajectory.steps, record.breakdown.steps, strict=True):
            value = reward.components["brevity"]
            assert value.raw == pytest.approx(-len(step.text) / 100)
            assert value.contribution == pytest.approx(0.1 * (value.raw or 0.0))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, to which each addition is made by the page: one new file and one changed one."""
    folder = tmp_path_factory.mktemp("copy")
    top = folder / "grpo_tui"
    shutil.copytree(ROOT / "api", top)  # with what Python has compiled: else each command would compile it again
    for room in ("configs", "envs", "rewards", "engine", "tui"):
        shutil.copytree(ROOT / room, top / room)
    files = shown()

    def add(target: str, code: str, registry: str, before: str, after: str) -> None:
        (top / target).write_text(code)
        text = (top / registry).read_text()
        assert text.count(before) == 1, f"{registry} has no place for {after!r}"
        (top / registry).write_text(text.replace(before, after))

    settings = "configs/sections/training.py"
    losses, methods = "engine/training/losses", "rewards/advantages"
    add(f"{losses}/clipped.py", files["clipped.py"], settings, '["reinforce"]', '["reinforce", "clipped"]')
    method = files["halves.py"].replace("class Halves", "class HalvesAdvantage")
    add(f"{methods}/halves.py", method, settings, '["group", "turn"', '["group", "halves", "turn"')
    component = files["brevity.py"]
    components = "rewards/components"
    extra = "EXTRA: dict[str, type[RewardComponent]] = {"
    entry = f"from .brevity import Brevity\n\n{extra}'brevity': Brevity, "
    add(f"{components}/brevity.py", component, f"{components}/__init__.py", extra, entry)
    further = "FURTHER: dict[str, tuple[str, str]] = {"
    line = further + '"Longest rollouts": ("longest", "LongestScreen"), '
    add("tui/app/screens/longest.py", files["longest.py"], "tui/app/destinations.py", further, line)
    formats = "engine/imports/formats"
    first = "FORMATS: tuple[Format, ...] = (\n"
    known = f"from .diary import Diary\n\n{first}    Diary(),\n"
    add(f"{formats}/diary.py", files["diary.py"], f"{formats}/__init__.py", first, known)
    return folder


def test_what_comes_with_the_package_trains_by_its_name(package: Path, tmp_path: Path):
    run = trained(
        tmp_path,
        (
            "environment.class_path=grpo_tui.envs.calculator.CalculatorEnv",
            "environment.config={}",
            "training.advantages=halves",
            "training.loss_type=clipped",
            "rewards.extra_components={brevity: {weight: 0.5}}",
        ),
        PYTHONPATH=str(package),
    )
    from grpo_tui.engine.runs.read.reader import RunReader
    from grpo_tui.tui.advantage import equation

    with RunReader(run) as reader:
        assert reader.metrics.latest()["rewards/weight/brevity"] == 0.5
        formula = reader.bodies.trajectory(1).formula
    assert formula is not None and formula.method == "halves"
    (*_, said) = equation(formula, 0, formula.advantage(0))
    assert said.startswith("the rewards from this step on, each counting half") or "equal" in said
    command = [sys.executable, "-m", "grpo_tui.tui.entry", "check", "--recompute", str(run)]
    environment = {**os.environ, "PYTHONPATH": str(package), ANEW: "1"}
    with forked_processes():
        checked = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=True)
    assert " 0 wrong" in checked.stdout and "returns that are compared" not in checked.stdout


def test_a_screen_is_in_the_palette_and_opens(package: Path, tmp_path: Path):
    code = """
import asyncio, sys
from pathlib import Path
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.tui.app.app import GrpoApp
from grpo_tui.tui.app.destinations import Live
import grpo_tui
assert grpo_tui.__file__.startswith(sys.argv[1]), grpo_tui.__file__
run = Path("runs/one")
run.mkdir(parents=True)
writer = RunWriter(run)
writer.metrics(7, {"train/loss": 1.0})
writer.flush(10)
writer.close()

async def look():
    app = GrpoApp(Path("runs"), Live(run))
    async with app.run_test(size=(100, 30)) as pilot:
        await pilot.pause()
        commands = {c.title: c for c in app.get_system_commands(app.screen)}
        commands["Longest rollouts"].callback()
        await pilot.pause()
        await pilot.pause()
        lines = ["".join(s.text for s in strip) for strip in app.screen._compositor.render_strips()]
        assert any("7 steps recorded" in line for line in lines), lines
        await pilot.press("escape")
        await pilot.pause()
        assert type(app.screen).__name__ == "LiveScreen"

asyncio.run(look())
"""
    answer = in_copy(package, tmp_path, "-c", code, str(package))
    assert answer.returncode == 0, answer.stderr


def test_a_format_opens_what_its_writer_wrote(package: Path, tmp_path: Path):
    lines = [{"diary": 1, "question": "2 + 2?", "reply": f"It is {n}.", "points": n} for n in (4, 5)]
    (tmp_path / "dump.jsonl").write_text("\n".join(map(json.dumps, lines)))
    answer = in_copy(package, tmp_path, *["-m", "grpo_tui.tui.cli", "inspect", "dump.jsonl", "--json", "--filter"], "")
    assert answer.returncode == 0, answer.stderr
    found = [json.loads(line) for line in answer.stdout.splitlines() if line.startswith("{")]
    assert [row["reward"] for row in found] == [4.0, 5.0], answer.stdout


def in_copy(package: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python with the copied package, in a folder."""
    here = {**os.environ, "PYTHONPATH": str(package), "XDG_CACHE_HOME": str(folder), "XDG_STATE_HOME": str(folder)}
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=folder, env=here, capture_output=True, text=True, timeout=120)
