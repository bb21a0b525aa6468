"""Selective sample replay: who is drawn, how old, and how it comes back from disk."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from grpo_tui.configs.errors import ConfigError
from grpo_tui.configs.loading import load_config
from grpo_tui.engine.rollouts.advantages import advantage_method
from grpo_tui.engine.rollouts.replay import ReplayBuffer, fill_from_replay, magnitude
from grpo_tui.engine.rollouts.rollout import Group, Rollout, rollouts_of
from grpo_tui.engine.rollouts.scoring import Scorer
from grpo_tui.engine.training.batch import make_batch
from grpo_tui.engine.training.pipeline import kl_of_rollouts

from .parts import make_trainer, playback_rows, rollout


def sample(index: int, advantage: float, number: int = 0, step: int = 0) -> Rollout:
    row = rollout(index, number)
    n = len(row["ids"])
    return Rollout(
        token_ids=row["ids"],
        agent_mask=row["mask"],
        rewards=np.zeros(n, np.float32),
        turn_ids=np.where(row["mask"], 0, -1).astype(np.int16),
        group=index,
        index=number,
        policy_version=step,
        logprobs=np.linspace(-2, -1, n).astype(np.float32),
        ref_logprobs=np.linspace(-3, -1, n).astype(np.float32),
        advantages=np.where(row["mask"], advantage, 0).astype(np.float32),
    )


def test_probability_is_advantage_to_the_alpha_times_decay_with_age():
    buffer = ReplayBuffer(alpha=2.0, tau=3.0, max_age=5)
    for step, advantage in [(1, 1.0), (3, -2.0), (4, 0.5)]:
        buffer.add([sample(step, advantage, step=step)])
    weights = np.array([1.0**2 * np.exp(-5 / 3), 2.0**2 * np.exp(-3 / 3), 0.5**2 * np.exp(-2 / 3)])
    assert buffer.weights(6) == pytest.approx(weights / weights.sum())


def test_draws_follow_the_probabilities():
    buffer = ReplayBuffer(alpha=1.0, tau=2.0, seed=1)
    for step in range(4):
        buffer.add([sample(step, 0.5 + step, step=step)])
    expected = buffer.weights(4)
    drawn = [buffer.sample(1, 4)[0].group for _ in range(4000)]
    counts = np.bincount(drawn, minlength=4)
    assert chisquare(counts, expected * 4000).pvalue > 1e-4


def test_nothing_older_than_the_maximum_age_is_drawn():
    buffer = ReplayBuffer(max_age=3)
    buffer.add([sample(0, 5.0)])
    buffer.add([sample(1, 0.1, step=2)])
    assert {s.group for s in buffer.sample(2, 3)} == {0, 1}
    assert [s.group for s in buffer.sample(2, 4)] == [1]
    assert len(buffer) == 1, "what is too old takes no room"
    assert buffer.sample(2, 9) == []
    assert len(buffer) == 0


def test_a_first_token_is_never_scored():
    """Nothing comes before it, so it has no log-prob, whoever wrote it."""
    first = sample(0, 1.0)
    spoken = dataclasses.replace(first, agent_mask=np.ones(len(first), bool))
    batch = make_batch([spoken], pad_token_id=0, device=torch.device("cpu"))
    assert batch["agent_token_mask"].tolist() == [[0] + [1] * (len(first) - 1)]


def test_no_trajectory_is_drawn_twice_at_once():
    buffer = ReplayBuffer()
    buffer.add([sample(i, 1.0) for i in range(5)])
    assert sorted(s.group for s in buffer.sample(9, 1)) == [0, 1, 2, 3, 4]


def test_trajectories_without_advantage_or_log_probs_are_not_kept():
    buffer = ReplayBuffer()
    buffer.add([sample(0, 0.0), dataclasses.replace(sample(1, 1.0), logprobs=None)])
    assert len(buffer) == 0


def test_the_oldest_make_room():
    buffer = ReplayBuffer(capacity=3)
    buffer.add([sample(i, 1.0) for i in range(5)])
    assert [s.group for s in buffer.entries] == [2, 3, 4]


def test_a_buffer_comes_back_from_disk_with_its_random_state(tmp_path):
    buffer, back = ReplayBuffer(seed=5), ReplayBuffer(seed=99)
    for step in range(6):
        buffer.add(
            [
                sample(step, 1.0 + step, step=step),
                dataclasses.replace(sample(step + 10, 1.0, step=step), ref_logprobs=None, masked=True),
            ]
        )
    buffer.sample(2, 6)
    buffer.save(tmp_path)
    back.load(tmp_path)
    for mine, its in zip(buffer.entries, back.entries, strict=True):
        for name in ("token_ids", "agent_mask", "turn_ids", "logprobs", "advantages"):
            assert np.array_equal(getattr(mine, name), getattr(its, name)), name
        assert (mine.ref_logprobs is None) == (its.ref_logprobs is None)
        for name in ("policy_version", "group", "index", "masked"):
            assert getattr(mine, name) == getattr(its, name), name
    assert [s.group for s in buffer.sample(4, 7)] == [s.group for s in back.sample(4, 7)]


def test_an_empty_buffer_comes_back_too(tmp_path):
    ReplayBuffer().save(tmp_path)
    back = ReplayBuffer()
    back.load(tmp_path)
    assert len(back) == 0


def group(prompt: int, rewards: list[float]) -> list[Rollout]:
    made = []
    for number, reward in enumerate(rewards):
        new = sample(prompt, 0.0, number)
        new.rewards[np.flatnonzero(new.agent_mask)[-1]] = reward
        made.append(new)
    return made


def replayed(batch: list[Rollout]) -> int:
    return sum(r.replayed for r in batch)


def test_places_of_groups_without_signal_are_filled_and_the_batch_keeps_its_size():
    buffer, scorer = ReplayBuffer(), Scorer(4)
    first, _ = scorer.score(group(0, [0, 1, 0, 1]) + group(1, [0, 0, 1, 0]))
    batch = fill_from_replay(first, buffer, 1)
    assert (len(batch), replayed(batch), len(buffer)) == (8, 0, 8)
    second, _ = scorer.score(group(2, [1, 1, 1, 1]) + group(3, [1, 0, 1, 1]))
    assert [g.signal for g in second] == [False, True]
    batch = fill_from_replay(second, buffer, 2)
    assert (len(batch), replayed(batch)) == (8, 4)
    assert all(magnitude(s) > 0 for s in batch)
    assert {s.group for s in batch[:4]} <= {0, 1}
    assert [s.group for s in batch[4:]] == [3] * 4
    assert batch[0].logprobs is not None  # the behaviour log-probs that it was sampled with
    assert len(buffer) == 12  # the fresh group went in after the draw, the silent one did not


def solved(rows: list[Rollout]) -> list[Rollout]:
    from grpo_tui.envs.trajectory import Trajectory

    def right(number: int) -> Trajectory:
        return Trajectory("t", "e", "p", "g", number, "", (), stop_reason="answer", correct=True)

    return [dataclasses.replace(row, trajectory=right(number)) for number, row in enumerate(rows)]


def test_a_group_that_is_all_right_stays_in_its_place():
    buffer, scorer = ReplayBuffer(), Scorer(4)
    fill_from_replay(scorer.score(group(0, [0, 1, 0, 1]) + group(1, [0, 0, 1, 0]))[0], buffer, 1)
    scored, _ = scorer.score(solved(group(2, [1, 1, 1, 1])) + group(3, [0, 0, 0, 0]))
    assert [(g.signal, g.solved) for g in scored] == [(False, True), (False, False)]
    batch = fill_from_replay(scored, buffer, 2)
    assert [r.replayed for r in batch] == [False] * 4 + [True] * 4
    assert [r.group for r in batch[:4]] == [2] * 4 and all(magnitude(r) == 0 for r in batch[:4])


@pytest.mark.parametrize(
    ("among", "taught", "rewards", "expected"),
    [
        ("peers", True, [1.0] * 4, True),
        ("peers", False, [1.0] * 4, False),
        ("group", True, [1.0] * 4, False),
        ("peers", True, [1.0, 1.0, 1.0, 1.0005], False),  # the goal differs by noise, which must not be made loud
    ],
)
def test_shaping_teaches_a_group_that_is_all_right_where_it_decides_between_equals(among, taught, rewards, expected):
    from grpo_tui.rewards.breakdown import ComponentValue, RewardBreakdown, StepReward

    rows = []
    for number, (row, reward) in enumerate(zip(solved(group(0, rewards)), rewards, strict=True)):
        found = {
            "task": ComponentValue(reward, reward, 1.0, reward),
            "penalty": ComponentValue(-float(number), -float(number), 0.2, -0.2 * number),
        }
        step = StepReward(0, found, total=reward - 0.2 * number)
        breakdown = RewardBreakdown(str(number), (step,), step.total)
        rows.append(dataclasses.replace(row, breakdown=breakdown, turn_rewards=np.array([step.total], np.float32)))
    method = advantage_method("group", among)
    scorer = Scorer(4, method=method, min_group_std=1e-3, signal="task", solved=taught)
    (found,) = scorer.advantages(rows)
    assert found.signal is expected
    if expected:
        agent = [float(np.asarray(r.advantages)[r.agent_mask].max()) for r in found.rollouts]
        right = [0.2 * (1.5 - n) / (np.std(range(4), ddof=1) + 1e-4) for n in range(4)]
        assert agent == pytest.approx(right, abs=1e-6)


def test_what_the_buffer_cannot_fill_stays_without_gradient():
    scored, _ = Scorer(4, min_group_std=0.5).score(group(0, [0.5, 0.51, 0.5, 0.51]))
    assert [g.signal for g in scored] == [False]
    batch = fill_from_replay(scored, ReplayBuffer(), 1)
    assert replayed(batch) == 0
    assert all(magnitude(s) == 0 for s in batch)


def test_rollouts_that_the_environment_failed_count_in_no_mean():
    from grpo_tui.envs.trajectory import Trajectory

    rows = group(0, [0.0, 1.0, 1.0, 0.0])
    for number, row in enumerate(rows):
        failed = "error" if number == 3 else "answer"
        trajectory = Trajectory("t", "e", "p", "g", number, "", (), stop_reason=failed, correct=None)
        rows[number] = dataclasses.replace(row, trajectory=trajectory)
    scored, _ = Scorer(4, scale="none").score(rows)
    largest = [float(np.abs(np.asarray(r.advantages)).max()) for r in rollouts_of(scored)]
    assert largest == pytest.approx([2 / 3, 1 / 3, 1 / 3, 0.0], abs=1e-6)


@pytest.mark.parametrize("wrong", ["capacity=0", "alpha=-1", "tau=0", "max_age=0"])
def test_a_buffer_that_makes_no_sense_is_refused(wrong: str):
    with pytest.raises(ConfigError, match=rf"training\.replay\.{wrong.partition('=')[0]}: .* is not allowed"):
        load_config(None, [f"training.replay.{wrong}"])


def test_scored_keeps_order():
    scored, _ = Scorer(4).score(group(0, [0, 1, 0, 1]) + group(1, [0, 0, 1, 0]))
    assert all(isinstance(g, Group) for g in scored)
    assert [r.group for r in rollouts_of(scored)] == [0] * 4 + [1] * 4


@pytest.mark.parametrize("packed", [True, False])
def test_replayed_rows_have_no_kl_and_no_gradient_of_it(tmp_path, packed):
    trainer = make_trainer(tmp_path, playback_rows(12), packed=packed, beta=0.5, replay=ReplayBuffer())
    trainer.model.double().eval()  # in single precision a sum's order is worth 1e-5 of an entry

    def measure(rows: list[int], fresh: list[bool]) -> tuple[float, list[torch.Tensor]]:
        """The loss, whose only term is the KL, and its gradient."""
        trainer.model.zero_grad()
        random = torch.Generator().manual_seed(0)
        ids = torch.randint(5, 20, (4, 9), generator=random)[rows]
        mask = (torch.rand(4, 9, generator=random) > 0.4).long()[rows]
        mask[:, 0] = 0
        reference = -5 * torch.rand(4, 9, generator=random)[rows]
        inputs = {
            "prompt_completion_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "agent_token_mask": mask,
            "advantages": torch.zeros(ids.shape),
            "old_per_token_logps": torch.full(ids.shape, -9.0),
            "ref_per_token_logps": reference,
            "num_items_in_batch": torch.tensor(10),
            "replayed": ~torch.tensor(fresh),
        }
        loss = trainer.compute_loss(trainer.model, inputs)
        loss.backward()
        return float(loss.detach()), [p.grad.clone() for p in trainer.model.parameters() if p.grad is not None]

    alone, wanted = measure([0, 2], [True, True])
    mixed, found = measure([0, 1, 2, 3], [True, False, True, False])
    assert alone > 0.1
    assert mixed == pytest.approx(alone, rel=1e-5)
    assert any(g.abs().max() > 1e-3 for g in wanted)
    for a, b in zip(wanted, found, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_the_logged_kl_is_the_mean_log_ratio_over_all_rollouts_of_the_step(tmp_path):
    trainer = make_trainer(
        tmp_path, playback_rows(12), beta=0.5, replay=ReplayBuffer(), max_steps=3, learning_rate=0.05
    )
    expected = []
    complete = trainer.pipeline.complete

    def watched(rollouts, reference):
        done = complete(rollouts, reference)
        ratios = [
            float(s.logprobs[t]) - float(s.ref_logprobs[t]) for s in done for t in range(1, len(s)) if s.agent_mask[t]
        ]
        expected.append(sum(ratios) / len(ratios))
        return done

    trainer.pipeline.complete = watched
    trainer.train()
    logged = [entry["kl"] for entry in trainer.state.log_history if "loss" in entry]
    assert logged == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert len({round(v, 6) for v in logged}) == 3 and kl_of_rollouts([]) == 0.0


def test_what_comes_from_the_buffer_says_so():
    samples = group(0, [1.0, 0.0]) + group(1, [1.0, 1.0])
    scored, _ = Scorer(2).score(samples)
    buffer = ReplayBuffer(seed=0)
    buffer.add([sample(0, 1.0, step=1), sample(1, -1.0, step=1)])
    batch = fill_from_replay(scored, buffer, 2)
    assert [s.replayed for s in batch] == [False, False, True, True]
    assert not any(s.replayed for s in buffer.entries)
