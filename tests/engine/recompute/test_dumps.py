"""Rollouts of other frameworks: numbers planted in copies of real files are named, and the files raise no alarm."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.engine.recompute.dumps import FORMULAS
from grpo_tui.recorder import Recorder
from grpo_tui.tui.cli.main import run as grpo_tui

PEERS = Path(__file__).parents[1] / "imports" / "peer_dumps"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def wrong(dump: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[list[dict[str, Any]], str]:
    """The numbers that differ, and the lines for people."""
    capsys.readouterr()
    code = grpo_tui(["check", str(dump), "--recompute", "--json", *options])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert code == (1 if found else 0)
    grpo_tui(["check", str(dump), "--recompute", *options])
    return found, capsys.readouterr().out


@pytest.mark.parametrize(
    "name",
    [
        "verl/rollout",
        "verl/rollout_v0",
        "prime-rl/since-2026-09",
        "prime-rl/until-2026-08",
        "generic/groups.jsonl",
        "generic/openai-messages.jsonl",
        "generic/prompt-completion.jsonl",
        "generic/ms-swift/completions.jsonl",
        "trl",
    ],
)
def test_real_files_raise_no_alarm(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, text = wrong(PEERS / name, capsys)
    assert found == [] and text.splitlines()[-1].endswith("numbers recomputed, 0 wrong")


def changed(dump: Path, file: str, line: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a line of a file of JSON lines."""
    path = dump / file
    lines = path.read_text().splitlines()
    document = json.loads(lines[line])
    change(document)
    lines[line] = json.dumps(document)
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str], Path]:
    def copy(name: str) -> Path:
        to = tmp_path / "copy" / name
        (shutil.copytree if (PEERS / name).is_dir() else _copy_file)(PEERS / name, to)
        return to

    return copy


def _copy_file(source: Path, to: Path) -> None:
    to.parent.mkdir(parents=True)
    shutil.copy(source, to)


def test_a_planted_advantage_of_prime_rl_is_named(
    copied: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    dump = copied("prime-rl/since-2026-09")
    file = "monitors/file/traces/annotations/orch/00000.jsonl"

    def plant(document: dict[str, Any]) -> None:
        document["info"]["advantage"] = 0.25

    changed(dump, file, 0, plant)
    found, _ = wrong(dump, capsys)
    kinds = {f["kind"] for f in found}
    assert kinds == {"advantage", "advantage of the token"}
    planted = next(f for f in found if f["kind"] == "advantage")
    assert planted["recorded"] == 0.25 and planted["computed"] == pytest.approx(1.4936666)


def test_a_planted_advantage_of_a_token_of_prime_rl_is_named(
    copied: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    dump = copied("prime-rl/since-2026-09")

    def plant(document: dict[str, Any]) -> None:
        values = document["branches"][0]["advantages"]
        at = max(i for i, v in enumerate(values) if v is not None)
        values[at] = -values[at]

    changed(dump, "monitors/file/traces/annotations/orch/00000.jsonl", 1, plant)
    found, _ = wrong(dump, capsys)
    assert [f["kind"] for f in found] == ["advantage of the token"]
    assert found[0]["recorded"] == pytest.approx(-found[0]["computed"])


def test_a_planted_mean_of_prime_rl_is_named(copied: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    dump = copied("prime-rl/since-2026-09")
    changed(dump, "monitors/file/metrics.jsonl", 0, lambda row: row.update({"reward/all/mean": 0.5}))
    found, _ = wrong(dump, capsys)
    assert [(f["place"], f["kind"], f["recorded"]) for f in found] == [("step 1", "metric reward/all/mean", 0.5)]


def test_a_planted_score_of_verl_is_named_by_the_weights_that_the_others_show(
    copied: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    dump = copied("verl/rollout_v0")
    changed(dump, "1.jsonl", 1, lambda row: row.update(score=0.4))
    found, text = wrong(dump, capsys)
    assert [(f["kind"], f["recorded"], round(f["computed"], 6)) for f in found] == [
        ("weighted sum of rewards", 0.4, 0.099)
    ]
    assert "correct 1, format 0.2, length 0.1" in text


def test_a_planted_reward_and_a_planted_advantage_of_jsonl_are_named(
    copied: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    dump = copied("generic/groups.jsonl")
    changed(dump.parent, dump.name, 0, lambda row: row["advantages"].__setitem__(2, 0.9))
    found, text = wrong(dump, capsys)
    assert [(f["kind"], f["recorded"]) for f in found] == [("advantage", 0.9)]
    assert found[0]["computed"] == pytest.approx(-0.43545, abs=1e-4)
    assert "(r − mean) / (std + 0.0001) of the group, std with n − 1" in text
    changed(dump.parent, dump.name, 1, lambda row: row["rewards"].__setitem__(0, 3.0))
    found, _ = wrong(dump, capsys)
    assert len(found) == 1 + 4, "a reward changes the advantages of its whole group"


@pytest.mark.parametrize("name", [name for name in FORMULAS if name != "grpo"])
def test_the_formula_of_a_dump_is_found_or_declared(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(4)
    formula = FORMULAS[name][0]
    rows = []
    for step in range(1, 5):
        groups = [[chance.choice([0.0, 0.3, 1.0]) + chance.random() for _ in range(4)] for _ in range(3)]
        whole = [r for group in groups for r in group]
        for g, group in enumerate(groups):
            rows += [
                {"step": step, "group": f"g{g}", "prompt": f"{g}?", "completion": "a", "reward": r, "advantage": a}
                for r, a in zip(group, formula.compare(group, whole), strict=True)
            ]
    dump = tmp_path / "mine.jsonl"
    dump.write_text("\n".join(map(json.dumps, rows)))
    found, text = wrong(dump, capsys)
    assert found == [] and formula.text in text and "it gives those of 12 of 12 groups" in text
    found, _ = wrong(dump, capsys, "--formula", "grpo")
    assert len(found) > 20 and {f["kind"] for f in found} == {"advantage"}


def test_equal_rewards_show_no_formula(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"step": 1, "prompt": "q", "completion": "a", "reward": 1.0, "advantage": 0.0}
    (tmp_path / "flat.jsonl").write_text(f"{json.dumps(row)}\n" * 4)
    found, text = wrong(tmp_path / "flat.jsonl", capsys)
    assert found == [] and "rewards do not differ within groups" in text and "no formula" not in text


def test_an_unknown_formula_ends_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert grpo_tui(["check", str(PEERS / "generic/groups.jsonl"), "--recompute", "--formula", "grop"]) == 2
    assert "--formula grop is unknown; use one of grpo, dr_grpo, rloo" in capsys.readouterr().err


def test_a_recorded_loop_is_computed_again_and_its_wrong_numbers_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Recorder("mine", runs_dir=tmp_path) as record:
        for step in range(1, 4):
            rewards = [1.0, 0.0, 0.0, float(step)]
            mean = sum(rewards) / 4
            record.rollouts(
                step,
                [
                    {"prompt": "a?", "completion": "b", "reward": r, "advantage": r - mean + (i == 2 and step == 3)}
                    for i, r in enumerate(rewards)
                ],
            )
            record.metrics(step, {"critic/score/max": max(rewards) + (step == 2), "rewards/total/mean": mean})
    found, _ = wrong(tmp_path / "mine", capsys)
    assert [(f["place"], f["kind"]) for f in found] == [
        ("step 2", "metric critic/score/max"),
        ("step 3, rollout training-3-11", "advantage"),
    ]
    assert math.isclose(found[1]["recorded"], found[1]["computed"] + 1)
