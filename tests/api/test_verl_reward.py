"""Reward functions of grpo-tui in verl: by themselves, and through verl's own reward manager and trainers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import grpo_tui.verl
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.rewards.functions import RewardFunctionError
from tests.engine.training.parts import tokenizer

FUNCTIONS = """
def accuracy(completions, answer, **kwargs):
    return [(float(a in c), f"{a} is {'in' if a in c else 'not in'} the answer") for c, a in zip(completions, answer)]

def short(completions, limit):
    return [None if n is None else -max(0, len(c) - n) / 10 for c, n in zip(completions, limit)]
"""


@pytest.fixture
def chosen(tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "rewards.py"
    file.write_text(FUNCTIONS)
    return {"functions": [f"{file}:accuracy", f"{file}:short"], "weights": [2.0, 0.5]}


@pytest.mark.parametrize(
    ("said", "limit", "score", "short"), [("it is red", 9, 2.0, 0.0), ("blue!", 3, -0.1, -0.2), ("red", None, 2.0, 0.0)]
)
def test_the_score_is_the_weighted_sum_with_an_explanation(
    chosen: dict[str, Any], said: str, limit: int | None, score: float, short: float
) -> None:
    found = grpo_tui.verl.compute_score(
        "visual", said, "red", {"limit": limit, "answer": "A cherry. #### red"}, **chosen
    )
    assert found == {
        "score": pytest.approx(score),
        "accuracy": float("red" in said),
        "accuracy_why": f"red is {'in' if 'red' in said else 'not in'} the answer",
        "short": pytest.approx(short),
        "short_why": "",
    }


def test_a_column_that_the_data_lacks_is_one_sentence(chosen: dict[str, Any]) -> None:
    with pytest.raises(RewardFunctionError, match=r"short .* needs `limit`, but the data has no such column"):
        grpo_tui.verl.compute_score("visual", "x", "red", **chosen)


def test_each_function_needs_a_weight(chosen: dict[str, Any]) -> None:
    with pytest.raises(RewardFunctionError, match="1 weights for 2 reward functions"):
        grpo_tui.verl.compute_score("visual", "x", "red", functions=chosen["functions"], weights=[1.0])
    plain = grpo_tui.verl.compute_score("visual", "red", "red", {"limit": 1}, functions=chosen["functions"])
    assert plain["score"] == pytest.approx(1.0 - 0.2)


def test_it_needs_no_torch() -> None:
    code = "import sys; from grpo_tui.verl import compute_score; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed (0.9.1 was tried)")
def test_verls_reward_manager_and_its_trainers_record_the_explanations(chosen: dict[str, Any], tmp_path: Path) -> None:
    from verl import DataProto  # type: ignore[import-not-found]
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager  # type: ignore[import-not-found]
    from verl.trainer.ppo.reward import get_custom_reward_fn  # type: ignore[import-not-found]

    given = {"path": "pkg://grpo_tui.verl", "name": "compute_score", "reward_kwargs": chosen}
    compute = get_custom_reward_fn(SimpleNamespace(reward={"custom_reward_function": given}))
    words = tokenizer()

    async def judged(said: str) -> dict[str, Any]:
        manager = NaiveRewardManager(SimpleNamespace(), words, compute)
        ids = torch.tensor([words.encode(said)])
        data = DataProto.from_dict(
            {"responses": ids, "attention_mask": torch.ones_like(ids)},
            {
                "data_source": np.array(["visual"], object),
                "reward_model": np.array([{"ground_truth": "red"}], object),
                "extra_info": np.array([{"limit": 20}], object),
            },
        )
        return await manager.run_single(data)

    results = [asyncio.run(judged(said)) for said in ("red", "blue")]
    assert [r["reward_score"] for r in results] == [2.0, 0.0]
    grpo_tui.verl.attach(runs_dir=tmp_path)
    trainer = object.__new__(grpo_tui.verl._registry()["sync"])
    trainer.config = SimpleNamespace(trainer={"rollout_data_dir": str(tmp_path / "dump"), "experiment_name": "verl"})
    trainer.global_steps = 1
    trainer._init_dump_executor()

    def fit(self: Any) -> None:
        extra = {key: [r["reward_extra_info"][key] for r in results] for key in results[0]["reward_extra_info"]}
        self._dump_generations(
            inputs=["user\nWhich?\nassistant\n"] * 2,
            outputs=["red", "blue"],
            gts=["red"] * 2,
            scores=[r["reward_score"] for r in results],
            reward_extra_infos_dict=extra,
            dump_path=str(tmp_path / "dump"),
        )
        self._shutdown_dump_executor()

    base = type(trainer).__mro__[2]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(base, "fit", fit)
        trainer.fit()
    assert (tmp_path / "dump" / "1.jsonl").is_file(), "verl's own dump is written as before"
    with RunReader(tmp_path / "verl") as reader:
        rows = reader.rollouts.page(limit=9)
        assert [row.reward for row in rows] == [2.0, 0.0]
        assert rows[1].extra["accuracy_why"] == "red is not in the answer"
        breakdown = reader.bodies.trajectory(rows[0].n).breakdown
        assert breakdown is not None and "accuracy" in str(breakdown)
