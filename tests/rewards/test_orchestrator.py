"""The whole reward: it adds up to the last digit, is fair to equal rollouts, and says what it cannot do."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.configs.plain_data import from_plain
from grpo_tui.configs.sections.rewards import NormalizationConfig, RewardsConfig
from grpo_tui.engine.policy.token_scores import turn_means
from grpo_tui.envs.trajectory import Trajectory
from grpo_tui.rewards.batch_statistics import advantage_shares, covariances
from grpo_tui.rewards.batches import rollout_of
from grpo_tui.rewards.breakdown import RewardBreakdown
from grpo_tui.rewards.components import RewardError
from grpo_tui.rewards.orchestrator import RewardOrchestrator, RewardResult
from tests.properties import drawn

from .episodes import batches, good, step, trajectory

MODES = ["zscore", "scale_only", "group", "none"]


def known(value: float | None) -> float:
    """A number that this program itself computed is always recorded."""
    assert value is not None
    return value


def small(seed: int = 0, **more) -> RewardsConfig:
    """Weights and modes that differ from each other, with a small dynamics model."""
    modes = random.Random(seed).choices(MODES, k=5)
    return RewardsConfig(
        w_task=1.0,
        w_environment=0.3,
        w_curiosity=0.2,
        w_coherence=0.7,
        w_penalty=1.5,
        normalization=NormalizationConfig(
            **dict(zip(["task", "environment", "curiosity", "coherence", "penalty"], modes, strict=True))  # type: ignore[arg-type]
        ),
        **more,
    )


def score(config: RewardsConfig, batch: list[Trajectory], correctness, embeddings, **more) -> RewardResult:
    return RewardOrchestrator(config=config).calculate_total_reward(batch, correctness, embeddings=embeddings, **more)


@drawn(15, 300, batch=batches(), seed=st.integers(0, 30))
def test_contributions_add_up_to_the_total_for_each_step_and_the_whole(batch, seed: int):
    trajectories, correctness, embeddings = batch
    orchestrator = RewardOrchestrator(config=small(seed))
    for _ in range(2):  # without statistics, and with
        result = orchestrator.calculate_total_reward(trajectories, correctness, embeddings=embeddings)
        assert result.total.isfinite().all()
        for row, (found, breakdown) in enumerate(zip(trajectories, result.breakdowns, strict=True)):
            assert breakdown.trajectory_id == found.id
            assert len(breakdown.steps) == len(found.steps)
            whole = 0.0
            for n, at in enumerate(breakdown.steps):
                parts = [known(c.contribution) for c in at.components.values()]
                assert math.fsum(parts) == pytest.approx(at.total, abs=1e-6)
                assert float(result.total[row, n]) == pytest.approx(at.total, abs=1e-6, rel=1e-6)
                for name, value in at.components.items():
                    column = result.component_names.index(name)
                    assert value.contribution == pytest.approx(known(value.weight) * known(value.normalized), abs=1e-12)
                    assert value.weight == orchestrator.weights[name]
                    assert value.contribution == float(result.contributions[row, n, column])
                    assert all(math.isfinite(known(v)) for v in (value.raw, value.normalized, value.contribution))
                assert math.fsum(p.amount for p in at.penalties) == pytest.approx(
                    at.components["penalty"].raw, abs=1e-12
                )
                whole += known(at.total)
            assert breakdown.total == pytest.approx(whole, abs=1e-6)
            assert float(result.contributions[row].sum()) == pytest.approx(breakdown.total, abs=1e-6)
            assert (result.total[row, len(found.steps) :] == 0).all()
        for value in result.metrics.values():
            assert isinstance(value, dict) or math.isfinite(value)  # type: ignore[arg-type]


@drawn(15, 300, batch=batches(largest=3), seed=st.integers(0, 30), copies=st.integers(2, 3))
def test_equal_rollouts_get_equal_rewards(batch, seed: int, copies: int):
    trajectories, correctness, embeddings = batch
    result = score(small(seed), trajectories * copies, correctness * copies, embeddings * copies)
    first = result.total[: len(trajectories)]
    for n in range(1, copies):
        assert torch.equal(result.total[n * len(trajectories) : (n + 1) * len(trajectories)], first)


@drawn(15, 300, batch=batches(), seed=st.integers(0, 30), order=st.randoms(use_true_random=False))
def test_the_order_within_a_batch_does_not_matter(batch, seed: int, order: random.Random):
    trajectories, correctness, embeddings = batch
    rows = list(range(len(trajectories)))
    order.shuffle(rows)
    plain = score(small(seed), trajectories, correctness, embeddings)
    mixed = score(
        small(seed), [trajectories[i] for i in rows], [correctness[i] for i in rows], [embeddings[i] for i in rows]
    )
    torch.testing.assert_close(mixed.total, plain.total[rows], atol=1e-5, rtol=1e-5)
    for name, value in plain.metrics.items():
        if not isinstance(value, dict):
            assert mixed.metrics[name] == pytest.approx(value, abs=1e-5, rel=1e-5), name


def test_where_each_component_lands():
    config = RewardsConfig(w_environment=1.0)
    steps = [dataclasses.replace(s, reward=0.5) for s in good().steps]
    found = dataclasses.replace(good(), steps=tuple(steps))
    result = score(config, [found], [True], [torch.randn(3, 8)])
    at = [set(s.components) for s in result.breakdowns[0].steps]
    assert at[0] == {"environment", "curiosity", "penalty"}  # no step before it: no coherence
    assert at[1] == {"environment", "curiosity", "coherence", "penalty"}
    assert at[2] == {"task", "coherence", "penalty"}  # no next state: no curiosity; correctness says what it is worth
    assert result.breakdowns[0].steps[2].components["task"].raw == 1.0
    assert result.contributions[0, 2, result.component_names.index("curiosity")] == 0


def test_the_task_reward_is_correctness_a_score_or_the_environments_total():
    config = RewardsConfig(w_curiosity=0, w_coherence=0, w_penalty=0)

    def task(correctness, w_environment: float = 1.0, of_steps: float = 0.0) -> float:
        weighted = config.model_copy(update={"w_environment": w_environment})
        steps = tuple(dataclasses.replace(s, reward=of_steps) for s in good().steps)
        found = dataclasses.replace(good(env_reward=0.8), steps=steps)
        result = score(weighted, [found], [correctness], None)
        return known(result.breakdowns[0].steps[-1].components["task"].raw)

    assert [task(True), task(False), task(0.25), task(None)] == [1.0, 0.0, 0.25, 0.8]
    assert task(None, of_steps=0.2) == pytest.approx(0.2)  # 0.8 less what the environment's own component carries
    assert task(None, w_environment=0.0, of_steps=0.2) == 0.8


@given(
    st.lists(st.lists(st.floats(-2, 2), min_size=1, max_size=4), min_size=1, max_size=5),
    st.lists(st.sampled_from([None, True, False, 0.5]), min_size=5, max_size=5),
)
def test_nothing_that_the_environment_paid_is_lost_and_correctness_is_not_paid_twice(paid, known_answers):
    """By default: earlier steps as the environment paid them; the last one by correctness, where that is known."""
    config = RewardsConfig(w_curiosity=0, w_coherence=0, w_penalty=0)
    trajectories = [
        dataclasses.replace(
            good(env_reward=sum(rewards)),
            id=str(i),
            steps=tuple(dataclasses.replace(good().steps[0], index=t, reward=r) for t, r in enumerate(rewards)),
        )
        for i, rewards in enumerate(paid)
    ]
    answers = known_answers[: len(paid)]
    result = score(config, trajectories, answers, None)
    for rewards, correct, breakdown in zip(paid, answers, result.breakdowns, strict=True):
        expected = [*rewards[:-1], rewards[-1] if correct is None else float(correct)]
        assert [step.total for step in breakdown.steps] == pytest.approx(expected, abs=1e-6)


def test_one_trajectory_without_a_list():
    orchestrator = RewardOrchestrator(0.1, 0.1, 1.0)
    result = orchestrator.calculate_total_reward(good(), True, embeddings=torch.randn(3, 8))
    assert result.total.shape == (1, 3)


def test_scoring_changes_nothing_until_the_update():
    orchestrator = RewardOrchestrator(0.1, 0.1, 1.0, config=RewardsConfig())
    batch, embeddings = [good("a"), good("b")], [torch.randn(3, 8), torch.randn(3, 8)]
    first = orchestrator.calculate_total_reward(batch, [True, False], embeddings=embeddings, update=False)
    again = orchestrator.calculate_total_reward(batch, [True, False], embeddings=embeddings, update=False)
    assert torch.equal(first.total, again.total)
    assert orchestrator.normalizer.running["task"].count == 0
    orchestrator.update()
    assert orchestrator.normalizer.running["task"].count == 2  # the batch once, though it was scored twice
    assert orchestrator.normalizer.running["curiosity"].count == 4
    assert orchestrator.curiosity_module is not None
    assert orchestrator.curiosity_module.model.version == 1
    orchestrator.update()  # nothing new
    assert orchestrator.normalizer.running["task"].count == 2
    assert orchestrator.curiosity_module.model.version == 1


def test_values_that_are_not_finite_count_as_undefined_and_are_counted():
    orchestrator = RewardOrchestrator(0.1, 0.1, 1.0)
    embeddings = torch.randn(3, 8)
    embeddings[1] = math.nan
    result = orchestrator.calculate_total_reward([good()], [math.nan], embeddings=[embeddings])
    assert result.total.isfinite().all()
    assert result.metrics["rewards/nonfinite"] == 5  # the task, two transitions, two similarities
    assert all(math.isfinite(m.mean) for m in orchestrator.normalizer.running.values())


def test_missing_embeddings_are_an_error_that_says_what_to_do():
    with pytest.raises(RewardError, match="pass embeddings"):
        RewardOrchestrator(0.1, 0.1, 1.0).calculate_total_reward(good(), True)
    with pytest.raises(RewardError, match="pass embeddings"):
        RewardOrchestrator(0.0, 0.1, 1.0).calculate_total_reward(good(), True)
    assert score(RewardsConfig(w_curiosity=0, w_coherence=0), [good()], [True], None).component_names == (
        "task",
        "penalty",
    )


def test_inputs_that_do_not_fit_are_refused():
    orchestrator = RewardOrchestrator(0.1, 0.1, 1.0)
    with pytest.raises(RewardError, match="trajectory t has 3 steps, but its embeddings have shape"):
        orchestrator.calculate_total_reward([good()], [True], embeddings=[torch.randn(2, 8)])
    with pytest.raises(RewardError, match="2 correctness values"):
        orchestrator.calculate_total_reward([good()], [True, False], embeddings=[torch.randn(3, 8)])
    orchestrator.calculate_total_reward([good()], [True], embeddings=[torch.randn(3, 8)])
    with pytest.raises(RewardError, match="width 8, these have 9"):
        orchestrator.calculate_total_reward([good()], [True], embeddings=[torch.randn(3, 9)])


def test_step_embeddings_are_means_over_the_agents_tokens_of_a_step():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, 7, 4, generator=generator)
    turns = torch.tensor([[-1, 0, 0, 0, 1, 1, -1], [-1, -1, 0, 2, 2, -1, -1]])
    agent = torch.tensor([[0, 1, 1, 0, 1, 0, 0], [0, 0, 1, 1, 1, 0, 0]])
    own = [t[a.bool()].numpy() for t, a in zip(turns, agent, strict=True)]
    first, second = turn_means(hidden[agent.bool()], own, [2, 3])
    torch.testing.assert_close(first, torch.stack([hidden[0, 1:3].mean(0), hidden[0, 4]]))
    torch.testing.assert_close(second, torch.stack([hidden[1, 2], torch.zeros(4), hidden[1, 3:5].mean(0)]))


def test_the_share_of_each_component_in_the_advantage():
    config = RewardsConfig()
    batch = [good(f"t{i}", group=f"g{i % 2}") for i in range(8)]
    batch[0] = trajectory(step(0, "DANCE"), step(1, None), id="t0", group="g0")
    embeddings = [torch.randn(len(t.steps), 8, generator=torch.Generator().manual_seed(i)) for i, t in enumerate(batch)]
    result = score(config, batch, [i % 3 == 0 for i in range(8)], embeddings)
    shares = {n: result.metrics[f"rewards/advantage_share/{n}"] for n in result.component_names}
    assert sum(shares.values()) == pytest.approx(1.0)  # type: ignore[arg-type]
    rollouts = [rollout_of(t, b) for t, b in zip(batch, result.breakdowns, strict=True)]
    assert shares == pytest.approx(advantage_shares([covariances(rollouts)]))


def test_metrics_add_up_and_agree_with_the_breakdown():
    batch = [good("a"), trajectory(step(0, "TRACK_OBJECT", {"mask": 1}, masks=["1"]), id="b")]
    config = RewardsConfig()
    orchestrator = RewardOrchestrator(config=config)
    embeddings = [torch.randn(3, 8), torch.randn(1, 8)]
    result = orchestrator.calculate_total_reward(batch, [True, False], embeddings=embeddings)
    metrics = result.metrics
    values = {
        name: [s.components[name] for b in result.breakdowns for s in b.steps if name in s.components]
        for name in result.component_names
    }
    for name, seen in values.items():
        assert metrics[f"rewards/raw/{name}"] == pytest.approx(sum(known(v.raw) for v in seen) / len(seen))
        assert metrics[f"rewards/normalized/{name}"] == pytest.approx(
            sum(known(v.normalized) for v in seen) / len(seen)
        )
        assert metrics[f"rewards/contribution/{name}"] == pytest.approx(
            metrics[f"rewards/weight/{name}"] * metrics[f"rewards/normalized/{name}"]  # type: ignore[operator]
        )
        assert metrics[f"rewards/per_trajectory/{name}"] == pytest.approx(sum(known(v.contribution) for v in seen) / 2)
    assert sum(metrics[f"rewards/per_trajectory/{n}"] for n in values) == pytest.approx(metrics["rewards/total/mean"])  # type: ignore[misc]
    assert metrics["rewards/total/mean"] == pytest.approx(sum(known(b.total) for b in result.breakdowns) / 2)
    # Running statistics are those that the batch was normalised by; the batch counts from the next one on.
    assert metrics["rewards/running_mean/task"] == 0.0
    later = orchestrator.calculate_total_reward(batch, [True, False], embeddings=embeddings).metrics
    assert later["rewards/running_mean/task"] == 0.5
    assert later["rewards/running_std/task"] == 0.5
    assert metrics["behavior/action_distribution"] == {
        "ANSWER": 0.25,
        "GET_PROPERTIES": 0.25,
        "READ_TEXT": 0.0,
        "SEGMENT_OBJECT_AT": 0.25,
        "TRACK_OBJECT": 0.25,
    }


def test_a_breakdown_survives_json():
    result = score(RewardsConfig(w_curiosity=0, w_coherence=0), [trajectory(step(0, "DANCE"))], [False], None)
    assert from_plain(RewardBreakdown, dataclasses.asdict(result.breakdowns[0])) == result.breakdowns[0]


def test_trajectories_without_steps_get_nothing():
    result = score(small(), [trajectory()], [False], [torch.zeros(0, 8)])
    assert result.total.shape == (1, 0)
    assert result.breakdowns[0].total == 0.0
