"""One update: its loss against an independent computation, its order, its state, and each guard on its own."""

from __future__ import annotations

import copy
import itertools
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from grpo_tui.engine.online.learn import policy_update
from grpo_tui.engine.online.learn.influence import PRIOR, Influence, RatingBaseline, RobustBaseline
from grpo_tui.engine.online.learn.policy_update import PolicyUpdater
from grpo_tui.engine.online.store.update_task import OriginalLogits, TaskError, UpdateTask
from grpo_tui.engine.policy.kl import BetaController
from grpo_tui.engine.policy.prepared import PreparedModel

from .tiny import logits_of, logprobs_of, lora_model, make_task, online_config


def updater(model: Any = None, **changes: Any) -> PolicyUpdater:
    return PolicyUpdater(model if model is not None else lora_model(), online_config(**changes))


def parameters(u: PolicyUpdater) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in u.parameters.values()])


def ema(u: PolicyUpdater) -> torch.Tensor:
    return torch.cat([p.flatten().clone() for p in u.ema.values()])


def drifted(seed: int = 5, cuts: tuple[int, ...] = ()) -> tuple[Any, UpdateTask]:
    """A model that has moved on since it answered, and the task of that answer."""
    model = lora_model()
    task = make_task(model, rows=3, cuts=cuts)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.add_(0.05 * torch.randn(p.shape, generator=generator))
    return model, task


def independent_loss(model: Any, task: UpdateTask, beta: float, epsilon: float, limit: float, baseline: float) -> dict:
    """Total_Loss in float64, by loops over tokens, from the plain logits of the whole rows."""
    e = task.experience
    with torch.no_grad():
        ids = [torch.from_numpy(row.token_ids).long()[None] for row in e.rows]
        logits = [model(input_ids=row).logits[0].double().numpy() for row in ids]
    original = task.original_logits.parts[0].double().numpy()
    rewards = task.reward_tensor.double().numpy().sum(-1)
    rl = kl = 0.0
    count = clipped = 0
    for row, arrays in enumerate(e.rows):
        for t in np.flatnonzero(arrays.agent_mask):
            x = logits[row][t - 1]
            logp = x - np.log(np.exp(x - x.max()).sum()) - x.max()
            y = original[count]
            logq = y - np.log(np.exp(y - y.max()).sum()) - y.max()
            advantage = float(np.clip(rewards[row, int(arrays.turn[t]) :].sum() - baseline, -limit, limit))
            ratio = math.exp(logp[int(arrays.token_ids[t])] - float(arrays.logprobs[t]))
            bounded = min(max(ratio, 1 - epsilon), 1 + epsilon)
            clipped += bounded * advantage < ratio * advantage
            rl -= min(ratio * advantage, bounded * advantage)
            kl += float((np.exp(logp) * (logp - logq)).sum())
            count += 1
    return {
        "rl_loss": rl / count,
        "kl_before": kl / count,
        "loss": rl / count + beta * kl / count,
        "clip": clipped / count,
    }


def test_the_loss_is_the_requirements_formula() -> None:
    model, task = drifted()
    u = updater(model, kl={"initial_beta": 0.7})
    for _ in range(3):
        u.baseline.add(0.4)
    expected = independent_loss(model, task, 0.7, 0.2, 3.0, baseline=0.4)
    report, _ = u.apply(task)
    assert report.baseline == pytest.approx(0.4)
    assert report.rl_loss == pytest.approx(expected["rl_loss"], abs=1e-6)
    assert report.kl_before == pytest.approx(expected["kl_before"], abs=1e-6)
    assert report.loss == pytest.approx(expected["loss"], abs=1e-6)
    assert report.clip_fraction == pytest.approx(expected["clip"])
    assert expected["kl_before"] > 1e-3 and expected["clip"] > 0  # or this would show nothing


def test_the_reported_kl_is_that_of_the_updated_policy() -> None:
    model, task = drifted()
    report, _ = updater(model).apply(task)
    after = independent_loss(model, task, 0.0, 0.2, 3.0, 0.0)
    assert report.kl == pytest.approx(after["kl_before"], abs=1e-6)


@pytest.mark.parametrize("packed", [False, True])
def test_rows_of_different_length_give_the_loss_of_the_definition(packed: bool) -> None:
    model, task = drifted(cuts=(0, 4, 2))
    assert {len(row) for row in task.experience.rows} == {10, 6, 8}
    u = updater(model, kl={"initial_beta": 0.7})
    assert not packed or PreparedModel(model).packed
    for _ in range(3):
        u.baseline.add(0.4)
    expected = independent_loss(model, task, 0.7, 0.2, 3.0, baseline=0.4)
    report, _ = u.apply(UpdateTask.from_bytes(task.to_bytes()))
    assert report.loss == pytest.approx(expected["loss"], abs=1e-6)
    assert report.clip_fraction == pytest.approx(expected["clip"])
    assert report.tokens == 7 + 3 + 5


def test_chunks_give_the_same_update(monkeypatch: pytest.MonkeyPatch) -> None:
    model, task = drifted()
    one, two = updater(copy.deepcopy(model)), updater(copy.deepcopy(model))
    report, _ = one.apply(task)
    monkeypatch.setattr(policy_update, "DENSE_LOGITS", 1)
    chunked, _ = two.apply(task)
    assert chunked.loss == pytest.approx(report.loss, abs=1e-6)
    torch.testing.assert_close(parameters(two), parameters(one), rtol=1e-4, atol=1e-6)


def test_top_k_logits_bound_the_kl_from_below() -> None:
    model, task = drifted()
    top = replace(task, original_logits=OriginalLogits.of(task.original_logits.parts[0], 8))
    exact, _ = updater(copy.deepcopy(model)).apply(task)
    bound, _ = updater(copy.deepcopy(model)).apply(top)
    assert 0 < bound.kl_before <= exact.kl_before + 1e-9


def test_gradients_are_clipped_between_backward_and_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model, task = drifted()
    u = updater(model, max_norm=0.05)
    seen: list[float] = []
    step = u.optimizer.step

    def spy() -> None:
        seen.append(float(torch.nn.utils.get_total_norm([p.grad for p in u.parameters.values() if p.grad is not None])))
        step()

    monkeypatch.setattr(u.optimizer, "step", spy)
    report, _ = u.apply(task)
    assert report.grad_norm > 0.05
    assert seen == [pytest.approx(0.05, rel=1e-4)] and report.clipped_grad_norm == pytest.approx(0.05, rel=1e-4)


def test_the_ema_is_the_running_mean_of_the_parameters() -> None:
    u = updater(ema_decay=0.8)
    expected = ema(u).double()
    for i in range(4):
        u.apply(make_task(u.model, f"request-{i}", seed=i))
        expected = 0.8 * expected + 0.2 * parameters(u).double()
    torch.testing.assert_close(ema(u).double(), expected, rtol=1e-5, atol=1e-6)


def test_learning_makes_the_rewarded_row_likelier_and_the_other_less_likely() -> None:
    """Reward-weighted likelihood would make both likelier."""
    u = updater(lr_correction=1e-3)
    u.baseline.add(0.5)
    rewards = torch.tensor([[[0.0], [1.0]], [[0.0], [0.0]]])
    task = replace(make_task(u.model, rewards=rewards), components=("task",))
    e = task.experience

    def likelihood() -> torch.Tensor:
        return logprobs_of(u.model, e).view(2, -1).sum(1)

    before = likelihood()
    for _ in range(5):
        u.apply(task)
    gained = likelihood() - before
    assert gained[0] > 0 > gained[1]


def test_a_task_without_signal_moves_nothing() -> None:
    """Adam would enlarge the rounding errors of the penalty's gradient to a whole step."""
    u = updater()
    task = make_task(u.model, rewards=torch.tensor([[[0.0], [1.0]], [[0.0], [1.0]]]))
    task = replace(task, components=("task",), facts={**task.facts, "feedback": "answer"})
    noisy = replace(task, original_logits=OriginalLogits((logits_of(u.model, task.experience) + 1e-6,)))
    u.baseline = RobustBaseline()
    for _ in range(3):
        u.baseline.add(1.0)
    before = parameters(u)
    report, _ = u.apply(noisy)
    assert report.update == 1 and report.advantages == (0.0, 0.0) and report.mean_return == 1.0
    assert report.step_norm == 0.0 and torch.equal(parameters(u), before) and not u.optimizer.state


def test_state_goes_on_bit_for_bit() -> None:
    one = updater()
    tasks = [make_task(one.model, f"request-{i}", seed=i) for i in range(6)]
    for task in tasks[:3]:
        one.apply(task)
    two = updater(lora_model(seed=9))
    two.load_state(*one.state())
    two.model.load_state_dict(one.model.state_dict())  # the frozen base, too
    for task in tasks[3:]:
        assert one.apply(task) == two.apply(task)
    assert torch.equal(parameters(one), parameters(two)) and torch.equal(ema(one), ema(two))


def test_weights_of_another_model_are_refused() -> None:
    u = updater()
    with pytest.raises(ValueError, match="of another model"):
        u.load_weights({"x": torch.zeros(1)})
    wrong = {n: p.detach()[..., :1] for n, p in u.parameters.items()}
    with pytest.raises(ValueError, match="of another model"):
        u.load_weights(wrong)


# ----------------------------------------------------------------------------------------------------------- guards

POISON = torch.full((2, 2, 2), 1e6) * torch.tensor([1.0, -1.0])[:, None, None]
LIMIT = 5e-3
OFF: dict[str, Any] = {"max_norm": 1e12, "max_update_norm": 1e12, "ema_decay": 0.0, "advantage_limit": 1e12}


def poisoned(u: PolicyUpdater, **changes: Any) -> UpdateTask:
    return make_task(u.model, rewards=POISON, learning_rate=LIMIT, **changes)


def kl_to_original(u: PolicyUpdater, task: UpdateTask, weights: dict[str, torch.Tensor]) -> float:
    with torch.no_grad():
        for n, p in u.parameters.items():
            p.copy_(weights[n])
    return independent_loss(u.model, task, 0.0, 0.2, 3.0, 0.0)["kl_before"]


def test_the_behavioural_guard_alone_bounds_a_poisoned_task() -> None:
    u = updater(**OFF, kl={"limit": 1e-5})
    before = ema(u)
    report, _ = u.apply(poisoned(u))
    assert report.rejected is not None and report.kl > 1e-5
    assert torch.equal(ema(u), before)  # taken back as a whole
    assert u.beta.mean_kl_divergence == report.kl  # and still counted


@pytest.mark.parametrize("limit", [1e-4, 1e-3, 1e-2])
def test_the_served_model_stays_within_the_kl_limit(limit: float) -> None:
    u = updater(**OFF, kl={"limit": limit})
    task = poisoned(u)
    u.apply(task)
    assert kl_to_original(u, task, u.ema) <= limit


@pytest.mark.parametrize("target", [1e-4, 1e-3])
def test_a_step_beyond_the_target_kl_is_shortened_to_it(target: float) -> None:
    free, held = (
        updater(**OFF, kl={"limit": 1e9, "target_kl": 1e6}),
        updater(**OFF, kl={"limit": 1e9, "target_kl": target}),
    )
    start, (far, _) = parameters(held), free.apply(poisoned(free))
    task = poisoned(held)
    near, _ = held.apply(task)
    assert far.kl > 3 * target and near.clipped and not far.clipped
    assert near.kl == pytest.approx(target, rel=0.3)
    assert kl_to_original(held, task, held.ema) == pytest.approx(near.kl, abs=1e-6)
    step, whole = parameters(held) - start, parameters(free) - start
    assert float(step.norm()) == pytest.approx(near.step_norm, rel=1e-3)
    assert float(torch.cosine_similarity(step, whole, dim=0)) == pytest.approx(1.0, abs=1e-4)


def test_beyond_the_target_kl_only_steps_back_are_made() -> None:
    outcomes = set()
    for sign in (1.0, -1.0):
        model, task = drifted()
        task = replace(task, reward_tensor=sign * torch.ones_like(task.reward_tensor))
        free = updater(copy.deepcopy(model), **OFF, kl={"limit": 1e9, "target_kl": 1e6})
        held = updater(model, **OFF, kl={"limit": 1e9, "target_kl": 1e-6})
        start, (far, _), (near, _) = parameters(held), free.apply(task), held.apply(task)
        assert near.kl_before > 1e-6
        if far.kl > near.kl_before:
            assert torch.equal(parameters(held), start) and near.step_norm == 0 and near.clipped
            assert near.kl == pytest.approx(near.kl_before) and near.rejected is None
            assert held.optimizer.state[next(iter(held.parameters.values()))]["exp_avg"].any()  # kept for later steps
        else:
            assert torch.equal(parameters(held), parameters(free)) and near.kl == far.kl
        outcomes.add(far.kl > near.kl_before)
    assert outcomes == {True, False}


def test_the_magnitude_guard_alone_bounds_a_poisoned_task() -> None:
    u = updater(**{**OFF, "max_norm": 1.0, "max_update_norm": 0.02}, kl={"limit": 1e9})
    before = ema(u)
    report, _ = u.apply(poisoned(u))
    assert report.rejected is None and report.grad_norm > 1e4 and report.clipped_grad_norm <= 1.0 + 1e-5
    assert 0 < float((ema(u) - before).norm()) <= 0.02 * (1 + 1e-4)


def test_clipping_keeps_the_optimiser_usable_after_a_poisoned_task() -> None:
    """Without it Adam's second moments would be huge, and the next updates nothing, for thousands of steps."""
    clipped, unclipped = (updater(**{**OFF, "max_norm": norm}, kl={"limit": 1e9}) for norm in (1.0, 1e12))
    steps = []
    for u in (clipped, unclipped):
        u.apply(poisoned(u))
        task = make_task(u.model, seed=3, rows=1, length=6, learning_rate=1e-4)
        steps.append([u.apply(task)[0].step_norm for _ in range(25)][-1])
    assert steps[0] > 2 * steps[1] > 0


def test_the_temporal_guard_alone_bounds_a_poisoned_task() -> None:
    u = updater(**{**OFF, "ema_decay": 0.99}, kl={"limit": 1e9})
    before, served = parameters(u), ema(u)
    u.apply(poisoned(u))
    live_moved = float((parameters(u) - before).norm())
    assert live_moved > 0.01
    assert float((ema(u) - served).norm()) == pytest.approx(0.01 * live_moved, rel=1e-3)


def test_a_single_reward_cannot_shout() -> None:
    u = updater(advantage_limit=2.0)
    for _ in range(3):
        u.baseline.add(0.0)
    report, _ = u.apply(poisoned(u))
    assert report.advantage == 2.0
    assert u.baseline.value([7.0]) == 0.0


def test_one_absurd_return_does_not_move_the_baseline() -> None:
    baseline = RobustBaseline()
    baseline.add(2500.0)  # the very first task
    for value in (0.9, 1.0, 1.1, 1.0):
        baseline.add(value)
    assert baseline.value([1.0]) == 1.0


@pytest.mark.parametrize("seed", range(3))
def test_the_baseline_of_ratings_is_the_shrunken_mean_of_their_source(seed: int) -> None:
    rng, found, given = np.random.default_rng(seed), RatingBaseline(), []
    for n in range(40):
        for source in "abc":
            own = np.array([r for s, r in given if s == source])
            everyone = np.array([r for _, r in given])
            mean = (0.95 ** np.arange(n)[::-1] * everyone).sum() / ((0.95 ** np.arange(n)).sum() + 1)
            weights = 0.95 ** np.arange(len(own))[::-1]
            expected = ((weights * own).sum() + PRIOR * mean) / (weights.sum() + PRIOR)
            assert found.value(source) == pytest.approx(expected, abs=1e-12)
        given.append((str(rng.choice(["a", "b"], p=[0.7, 0.3])), float(rng.choice([-1, 1]))))
        found.add(*given[-1])
    again = RatingBaseline()
    again.load_state_dict(json.loads(json.dumps(found.state_dict())))
    assert again.value("a") == found.value("a") and again.value("b") == found.value("b")
    again.load_state_dict([1.0, -1.0])  # of an earlier version
    assert -1 < again.value("a") < 0


def test_a_source_that_always_says_the_same_teaches_less_and_less() -> None:
    u = updater()
    for n in range(60):
        source, reward = (("constant", 1.0), ("mixed", 1.0 - 2 * (n % 4 > 1)))[n % 2]
        facts = {"feedback": "rating", "source": source, "prompt": f"request {n}"}
        rewards = torch.zeros(1, 2, 2)
        rewards[0, 1, 0] = reward  # of the last turn: both turns return it
        report, _ = u.apply(make_task(u.model, f"request-{n}", seed=n, rows=1, rewards=rewards, facts=facts))
        if n >= 56:
            assert (report.advantage < 0.3) == (source == "constant")


@pytest.mark.parametrize("agrees", [[True, True, False], [True, False, False], [True, True, True]])
@pytest.mark.parametrize("rating", [1.0, -1.0])
def test_a_rating_judges_all_samples_with_the_same_answer(agrees: list[bool], rating: float) -> None:
    u, given = updater(), [1.0, 1.0, -1.0]
    for earlier in given:
        u.ratings.add("person", earlier)
    weights = 0.95 ** np.arange(3)[::-1]
    # The mean of all sources has one rating of 0 before it. It counts as PRIOR ratings of this source.
    everyone = (weights * given).sum() / (weights.sum() + 1)
    mean = ((weights * given).sum() + PRIOR * everyone) / (weights.sum() + PRIOR)
    surprise = np.where(agrees, rating - mean, 0.0)
    expected = surprise if all(agrees) else surprise - surprise.mean()
    rewards = torch.zeros(3, 2, 2)
    rewards[:, 1, 0] = rating * torch.tensor(agrees)
    facts = {"feedback": "rating", "source": "person", "prompt": "a request", "agrees": agrees}
    report, _ = u.apply(make_task(u.model, "request-1", rows=3, rewards=rewards, facts=facts))
    assert report.advantages == pytest.approx(tuple(expected), abs=1e-6)
    assert u.ratings.state_dict()[-1] == ["person", rating]


def test_repetitions_count_less_and_less_and_a_source_up_to_its_share() -> None:
    influence = Influence(window=100, share=0.25)
    assert sum(influence.weigh("same", "") for _ in range(300)) < 1.7
    assert influence.weigh("another", "") == 1.0
    influence = Influence(window=200, share=0.25)
    weights = {"many": 0.0, "": 0.0}
    for i in range(400):  # of each two tasks one is of the same source, every one about something else
        source = "many" if i % 2 else ""
        weights[source] += influence.weigh(f"{i}", source, labelled=bool(source))
    assert weights[""] == 200 and weights["many"] <= 0.25 * 400 * 1.1
    again = Influence(window=200, share=0.25)
    again.load_state_dict(influence.state_dict())
    assert again.weigh("300", "many") == pytest.approx(influence.weigh("300", "many"))


def test_a_caller_gains_nothing_by_inventing_users_and_a_single_one_is_not_slowed_down() -> None:
    honest = [f"address-{i}" for i in range(5)]
    influence = Influence(window=200, share=0.25)
    taught = dict.fromkeys(["loud", *honest], 0.0)
    for i in range(1000):  # of ten questions five are of one caller, each time as another user
        source = f"loud/{i}" if i % 2 else honest[i // 2 % 5]
        taught[source.partition("/")[0]] += influence.weigh(f"{i}", source)
    assert taught["loud"] == pytest.approx(0.25 * 1000, rel=0.1)
    assert all(taught[name] == 100 for name in honest)
    alone = Influence(window=200, share=0.25)
    assert all(alone.weigh(f"{i}", "one") == 1 for i in range(400))
    assert alone.weigh("400", "one", labelled=True) == pytest.approx(0.25)
    two = Influence(window=200, share=0.25)
    assert sum(two.weigh(f"{i}", "rare" if i % 10 == 0 else "often") for i in range(400)) < 0.65 * 400


def test_a_repeated_request_moves_the_policy_less_and_less() -> None:
    u = updater()
    moves = []
    for i in range(4):
        before = parameters(u)
        report, _ = u.apply(make_task(u.model, f"request-{i}", seed=i, facts={"prompt": "the same"}))
        assert report.weight == pytest.approx(1 / (i + 1) ** 2)
        moves.append(float((parameters(u) - before).norm()))
    assert moves == sorted(moves, reverse=True) and moves[3] < 0.15 * moves[0]


def test_beta_does_not_fall_while_the_policy_leaves_its_start() -> None:
    u = updater()
    u.beta = BetaController(target_kl=10.0, window=8)  # every update is far below the target
    betas = []
    for i in range(12):
        report, _ = u.apply(
            make_task(u.model, f"request-{i}", seed=0, rewards=torch.full((2, 2, 2), 1.0 - 2 * (i % 2)))
        )
        betas.append((u.beta.leaving, report.kl_start, u.beta.beta))
    for (_, _, before), (leaving, _, after) in itertools.pairwise(betas):
        assert after == before if leaving else after <= before
    assert any(leaving for leaving, _, _ in betas)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda t: replace(t, reward_tensor=t.reward_tensor * math.nan),
        lambda t: replace(t, original_logits=OriginalLogits((t.original_logits.parts[0] * math.nan,))),
        lambda t: replace(t, learning_rate=1.0),
        lambda t: replace(t, reward_tensor=t.reward_tensor * math.inf),
    ],
)
def test_refused_tasks_change_nothing(spoil: Any) -> None:
    u = updater()
    u.apply(make_task(u.model))
    tensors, values = u.state()
    with pytest.raises(TaskError):
        u.apply(spoil(make_task(u.model, seed=2)))
    after, later = u.state()
    assert values == later
    assert all(torch.equal(tensors[k], after[k]) for k in tensors)


def test_a_loss_that_overflows_is_refused_before_the_step() -> None:
    u = updater()
    task = make_task(u.model)
    logits = task.original_logits.parts[0].clone()
    logits[:, 1:] = -math.inf  # impossible tokens of the original: the KL is infinite
    before = parameters(u)
    with pytest.raises(TaskError, match="its loss is inf"):
        u.apply(replace(task, original_logits=OriginalLogits((logits,))))
    assert torch.equal(parameters(u), before)


def test_an_update_that_leads_back_is_taken_even_beyond_the_limit() -> None:
    """Else a policy that has drifted too far could never return."""
    model, task = drifted()
    u = updater(model, kl={"limit": 1e-6, "initial_beta": 10.0})
    calm = replace(task, reward_tensor=torch.zeros_like(task.reward_tensor), learning_rate=1e-4)
    report, _ = u.apply(calm)
    assert report.rejected is None and 1e-6 < report.kl < report.kl_before


def test_a_model_without_trainable_parameters_is_refused() -> None:
    model = lora_model().requires_grad_(False)
    with pytest.raises(ValueError, match="no trainable parameter"):
        PolicyUpdater(model, online_config())
