"""On-policy distillation: a teacher's log-probs on the policy's own rollouts."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from peft import PeftModel

from grpo_tui.configs.schema import RunConfig
from grpo_tui.engine.launch.settings import read_config
from grpo_tui.engine.policy.models import load_base, load_policy
from grpo_tui.engine.recompute.check import recompute, recompute_steps
from grpo_tui.engine.recompute.items import steps_of
from grpo_tui.engine.rollouts.distillation import Distillation, reverse_kl
from grpo_tui.engine.rollouts.rollout import Rollout
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.training.__main__ import run
from grpo_tui.rewards.breakdown import AdvantageFormula, AdvantageTerm

from ..agents.fake_vllm import FakeVLLM
from .parts import policy, tokenizer
from .runs import make_run

STEPS = 2


def trained(place: Path, teacher: str, **training: object) -> Path:
    distillation = {"teacher": teacher, **training.pop("distillation", {})}  # type: ignore[dict-item]
    settings = {"max_steps": STEPS, "save_every": 0, "learning_rate": 0.02, "beta_mode": "fixed", **training}
    settings["eval_tasks"] = 0
    folder = make_run(place / "runs" / "run", place / "base", **settings, distillation=distillation)
    assert run(folder) == 0
    return folder


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole model with other weights than the policy of `make_run`."""
    folder = tmp_path_factory.mktemp("teacher") / "model"
    policy(seed=5).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def logprobs_by(folder: Path, token_ids: np.ndarray) -> np.ndarray:
    """In float64, one row at a time; 0 for the first token."""
    model = load_base(RunConfig.model_validate({"model": {"base": str(folder), "device": "cpu"}}).model).double().eval()
    ids = torch.as_tensor(np.asarray(token_ids, dtype=np.int64))
    with torch.no_grad():
        logits = model(input_ids=ids[None]).logits[0, :-1]
    found = logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
    return np.concatenate([[0.0], found.numpy()])


@pytest.mark.parametrize("with_reward", [True, False])
def test_the_advantage_of_each_token_is_the_teachers_lead(teacher: Path, tmp_path: Path, with_reward: bool) -> None:
    folder = trained(tmp_path, str(teacher), distillation={"weight": 0.5, "with_reward": with_reward})
    with RunReader(folder) as reader:
        steps = list(steps_of(reader))
        metrics = reader.metrics.by_step()
    for step, items in steps:
        agents, leads = [], []
        for item in items:
            assert item.tokens is not None
            agents.append(np.array(item.tokens.agent_mask, bool))
            leads.append(logprobs_by(teacher, np.array(item.tokens.token_ids)) - np.array(item.tokens.logprobs))
        mean = np.concatenate([lead[agent] for lead, agent in zip(leads, agents, strict=True)]).mean()
        for item, agent, lead in zip(items, agents, leads, strict=True):
            tokens = item.tokens
            assert tokens is not None and tokens.advantages is not None
            turn = np.array(tokens.turn)
            reward_terms = [
                sum(t.result(1e-4) for t in item.record.formula.terms(s) if t.name != "teacher")  # type: ignore[union-attr]
                for s in range(max(turn) + 1)
            ]
            expected = np.where(agent, np.array(reward_terms)[np.maximum(turn, 0)] + 0.5 * (lead - mean), 0.0)
            np.testing.assert_allclose(np.array(tokens.advantages), expected, atol=2e-4)
            assert with_reward or not any(reward_terms)
            assert item.record.use is not None and item.record.use.kind == "trained"
        assert metrics[step]["distillation/reverse_kl"] == pytest.approx(-mean, abs=1e-4)
    with RunReader(folder) as reader:
        assert recompute(reader, read_config(folder)).wrong == []


def test_a_wrong_advantage_of_a_token_is_found(teacher: Path, tmp_path: Path) -> None:
    folder = trained(tmp_path, str(teacher))
    with RunReader(folder) as reader:
        steps, metrics = list(steps_of(reader)), reader.metrics.by_step()
    step, items = steps[1]
    tokens = items[0].tokens
    assert tokens is not None
    given = np.array(tokens.overlays["teacher"], np.float32)
    given[np.flatnonzero(tokens.agent_mask)[0]] += 0.5
    wrong = replace(items[0], tokens=replace(tokens, overlays={"teacher": memoryview(given.data)}))
    config = read_config(folder)
    assert recompute_steps(steps, metrics, config).wrong == []
    changed = [(s, [wrong, *rest[1:]] if s == step else rest) for s, rest in steps]
    found = recompute_steps(changed, metrics, config).wrong
    assert any("advantage" in str(each) for each in found)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adapters of an earlier run of the same policy, which it can reach."""
    place = tmp_path_factory.mktemp("earlier")
    first = make_run(place / "run", place / "base", max_steps=4, save_every=0, eval_tasks=0, learning_rate=0.1)
    assert run(first) == 0
    return first / "adapters"


def test_a_policy_approaches_its_teacher(adapters: Path, tmp_path: Path) -> None:
    settings = {"max_steps": 6, "num_generations": 8, "beta": 0.0, "distillation": {"with_reward": False}}
    folder = trained(tmp_path, str(adapters), **settings)
    with RunReader(folder) as reader:
        kl = [value or 0.0 for _, value in reader.metrics.points("distillation/reverse_kl")]
    assert len(kl) == 6 and np.mean(kl[-3:]) < 0.6 * kl[0]


def test_adapters_and_servers_score_alike(adapters: Path, tmp_path: Path) -> None:
    """A server serves the whole model with these adapters merged."""
    config = read_config(adapters.parent)
    model, _ = load_policy(config.model, adapters=str(adapters), trainable=False)
    server = FakeVLLM(copy.deepcopy(cast(PeftModel, model).merge_and_unload()), tokenizer()).start()
    try:
        kept = {}
        for name, chosen in (("adapters", str(adapters)), ("server", server.url)):
            folder = trained(tmp_path / name, chosen, max_steps=1)
            with RunReader(folder) as reader:
                ((_, items),) = list(steps_of(reader))
            kept[name] = [np.array(item.tokens.overlays["teacher"]) for item in items if item.tokens is not None]
        for by_adapters, by_server in zip(kept["adapters"], kept["server"], strict=True):
            np.testing.assert_allclose(by_adapters[by_adapters != 0], by_server[by_adapters != 0], atol=1e-3)
    finally:
        server.stop()


def test_the_arithmetic_with_masks_and_without_turns() -> None:
    random = np.random.default_rng(0)
    mask, turns = np.array([0, 0, 1, 1, 0, 1, 0], bool), np.array([-1, -1, 0, 0, 0, 1, 1], np.int16)
    formula = AdvantageFormula("group", "none", 1e-4, ((AdvantageTerm(2.0, 0.5, None, 4),),))

    def rollout(agent: np.ndarray, of: AdvantageFormula | None) -> Rollout:
        own, teacher = random.normal(-1, 0.3, (2, len(agent))).astype(np.float32)
        return Rollout(
            *(np.arange(len(agent)), agent, turns, np.zeros(len(agent), np.float32), 0, 0),
            logprobs=own,
            teacher_logprobs=teacher,
            advantages=np.where(agent, 1.5, 0).astype(np.float32),
            formula=of,
        )

    first, silent, unscored = rollout(mask, formula), rollout(mask & False, formula), rollout(mask, None)
    done = Distillation(2.0).added([first, silent, unscored])
    lead = first.teacher_logprobs - first.logprobs  # type: ignore[operator]
    ahead = lead - lead[mask].mean()
    assert done[0].formula is not None and done[0].advantages is not None
    np.testing.assert_allclose(done[0].advantages, np.where(mask, 1.5 + 2 * ahead, 0), rtol=1e-6)
    assert done[0].formula.advantage(0) == pytest.approx(1.5 + ahead[2:4].sum(), rel=1e-6)
    assert done[0].formula.advantage(1) == pytest.approx(1.5 + 2 * ahead[5], rel=1e-6)
    assert not np.any(done[1].advantages) and done[2] is unscored
    both = [first, unscored]
    sums = [(r.logprobs - r.teacher_logprobs)[mask].sum() for r in both]  # type: ignore[operator]
    assert reverse_kl(both) == pytest.approx(sum(sums) / 6, rel=1e-6)
    assert reverse_kl([silent]) == 0
