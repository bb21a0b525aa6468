"""The dynamics model and the reward made of its error: it learns, its cache is one, and noise is told from news."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_tui.envs.trajectory import Step
from grpo_tui.rewards.components.curiosity import (
    ActionEncoder,
    CuriosityDrivenRewardModule,
    DynamicsModel,
    rms_normalized,
)
from tests.forked import ForkedProcess

from .episodes import step

D = 16
SMALL = {"hidden": 64, "learning_rate": 1e-2}


def pairs(states: torch.Tensor, following: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Trajectories of two steps each, [2 N, D], and which steps have a next one."""
    flat = torch.stack((states, following), dim=1).reshape(-1, states.shape[-1])
    return flat, torch.tensor([True, False] * len(states))


def actions(names: list[str]) -> tuple[list[Step], list[str]]:
    """The steps of `pairs`, acting by these names, and their keys."""
    steps = [step(i, name) for name in names for i in range(2)]
    return steps, [s.action_key for s in steps]


class Stream:
    """Transitions of a world in which each action adds its own fixed vector to the state."""

    def __init__(self, noisy: bool = False, seed: int = 0) -> None:
        self.random = torch.Generator().manual_seed(seed)
        self.effects = torch.randn(4, D, generator=self.random)
        self.places = torch.randn(8, D, generator=self.random)
        self.noisy = noisy

    def batch(self, size: int = 32):
        place = torch.randint(0, 8, (size,), generator=self.random)
        action = torch.randint(0, 4, (size,), generator=self.random)
        state = self.places[place]
        after = torch.randn(size, D, generator=self.random) if self.noisy else state + self.effects[action]
        flat, has_next = pairs(state, after)
        return flat, *actions([f"ACT_{a}" for a in action.tolist()]), has_next


@settings(max_examples=25, deadline=None)
@given(width=st.integers(1, 1500), hidden=st.integers(64, 300), rank=st.integers(1, 64))
def test_at_most_a_tenth_of_the_parameters_train(width: int, hidden: int, rank: int):
    model = DynamicsModel(width, hidden=hidden, lora_rank=rank)
    trained = sum(p.numel() for p in model.adapters().values())
    assert 0 < trained <= 0.1 * sum(p.numel() for p in model.parameters())
    assert 1 <= model.lora_rank <= rank
    assert all("lora_" in name for name in model.adapters())


def test_training_changes_the_adapters_and_never_the_base():
    module = CuriosityDrivenRewardModule(D, **SMALL)
    before = {name: p.detach().clone() for name, p in module.model.named_parameters()}
    for _ in range(3):
        module.compute(*Stream().batch())
        module.update()
    for name, parameter in module.model.named_parameters():
        assert torch.equal(parameter, before[name]) == ("lora_" not in name), name


def test_the_loss_falls_on_a_stationary_stream():
    module, stream = CuriosityDrivenRewardModule(D, **SMALL), Stream()
    losses = []
    for _ in range(150):
        module.compute(*stream.batch())
        losses.append(module.update())
    assert np.mean(losses[-10:]) < 0.25 * np.mean(losses[:10])


def test_curiosity_on_a_repeated_transition_falls():
    module = CuriosityDrivenRewardModule(D, **SMALL)
    flat, has_next = pairs(torch.randn(1, D, generator=torch.Generator().manual_seed(1)), torch.ones(1, D))
    seen = []
    for _ in range(60):
        seen.append(float(module.compute(flat, *actions(["LOOK"]), has_next)[0]))
        module.update()
    thirds = [float(np.mean(seen[i : i + 20])) for i in (0, 20, 40)]
    assert thirds[2] < thirds[1] < thirds[0]
    assert seen[-1] < 0.05 * seen[0]


def test_the_error_stays_on_noise_and_falls_where_the_world_can_be_predicted():
    early: dict[bool, float] = {}
    late: dict[bool, float] = {}
    for noisy in (False, True):
        module, stream = CuriosityDrivenRewardModule(D, **SMALL), Stream(noisy)
        rewards = []
        for _ in range(150):
            batch = stream.batch()
            rewards.append(float(module.compute(*batch)[batch[-1]].mean()))
            module.update()
        early[noisy], late[noisy] = float(np.mean(rewards[5:35])), float(np.mean(rewards[-30:]))
    assert late[True] > 0.8  # the world stays as surprising as it was
    assert late[True] > 4 * late[False]
    assert late[True] > 0.5 * early[True]


def test_the_reward_is_the_mean_squared_error_of_the_predicted_change():
    module = CuriosityDrivenRewardModule(D, **SMALL)
    generator = torch.Generator().manual_seed(3)
    flat = torch.randn(7, D, generator=generator) * 40
    has_next = torch.tensor([True, True, False, True, True, True, False])
    steps = [step(i, "LOOK", {"at": i}) for i in range(7)]
    rewards = module.compute(flat, steps, [s.action_key for s in steps], has_next)

    unit = flat.double() / flat.double().square().mean(-1, keepdim=True).sqrt()
    for i in range(7):
        if not has_next[i]:
            assert rewards[i] == 0  # no next state: nothing to be curious about
            continue
        action = module.encode([steps[i]], [steps[i].action_key])
        predicted = module.model(unit[i : i + 1].float(), action)[0].detach().double()
        assert float(rewards[i]) == pytest.approx(
            float((predicted - (unit[i + 1] - unit[i])).square().mean()), abs=1e-6
        )


def test_the_size_of_the_embeddings_does_not_matter():
    batch = Stream().batch()
    small, large = (CuriosityDrivenRewardModule(D, **SMALL) for _ in range(2))
    torch.testing.assert_close(small.compute(*batch), large.compute(batch[0] * 1000, *batch[1:]), atol=1e-5, rtol=1e-5)
    assert torch.equal(rms_normalized(torch.zeros(1, D)), torch.zeros(1, D))


def test_a_hit_saves_the_forward_pass():
    module = CuriosityDrivenRewardModule(D, **SMALL)
    batch = Stream().batch(20)
    predicted: list[int] = []
    module.model.register_forward_hook(lambda model, inputs, output: predicted.append(len(output)))
    first = module.compute(*batch)
    rows = sum(predicted)
    assert rows < 20  # equal (state, action) pairs within a batch are predicted once
    assert module.repeat_rate == pytest.approx(1 - rows / 20)
    assert module.hit_rate == 0.0  # no earlier batch
    assert torch.equal(module.compute(*batch), first)
    assert sum(predicted) == rows
    assert (module.hit_rate, module.repeat_rate) == (1.0, 0.0)
    module.update()  # the model learns, as after every batch of a training: what it said before is of no use
    module.compute(*batch)
    assert (module.hit_rate, module.repeat_rate) == (0.0, pytest.approx(1 - rows / 20))


def test_the_key_is_the_whole_state_and_the_whole_action():
    module = CuriosityDrivenRewardModule(D, **SMALL)
    flat, has_next = pairs(torch.ones(1, D), torch.zeros(1, D))
    base = [step(0, "LOOK", {"x": 1}), step(1, "ANSWER")]
    module.compute(flat, base, [s.action_key for s in base], has_next)
    other_argument = [step(0, "LOOK", {"x": 2}), step(1, "ANSWER")]
    module.compute(flat, other_argument, [s.action_key for s in other_argument], has_next)
    assert module.hit_rate == 0
    nudged = flat.clone()
    nudged[0, D - 1] += 1e-3  # the last number of the state
    module.compute(nudged, base, [s.action_key for s in base], has_next)
    assert module.hit_rate == 0
    elsewhere = flat.clone()
    elsewhere[1] = 5.0  # another outcome of the same (state, action): the prediction is the same
    module.compute(elsewhere, base, [s.action_key for s in base], has_next)
    assert module.hit_rate == 1


def test_a_stale_prediction_is_never_served():
    module = CuriosityDrivenRewardModule(D, **SMALL)
    batch = Stream().batch()
    before = module.compute(*batch)
    version = module.model.version
    module.update()
    assert module.model.version == version + 1
    after = module.compute(*batch)
    fresh = CuriosityDrivenRewardModule(D, **SMALL)
    fresh.load_state(module.state_tensors(), module.state_facts())
    assert torch.equal(after, fresh.compute(*batch))
    assert not torch.equal(after, before)

    saved = module.state_tensors(), module.state_facts()
    module.update()
    newer = module.compute(*batch)
    module.load_state(*saved)  # back to a version whose number comes twice
    module.update()
    module.compute(*batch)
    assert torch.equal(module.compute(*batch), module.compute(*batch))
    module.load_state(*saved)
    assert torch.equal(module.compute(*batch), after)
    assert not torch.equal(newer, after)


def test_the_cache_forgets_the_least_recently_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("grpo_tui.rewards.components.curiosity.CACHE_SIZE", 2)
    module = CuriosityDrivenRewardModule(D, **SMALL)

    def look(name: str) -> float:
        flat, has_next = pairs(torch.ones(1, D), torch.zeros(1, D))
        module.compute(flat, *actions([name]), has_next)
        return module.hit_rate

    assert [look("A"), look("B")] == [0, 0]
    assert look("A") == 1  # A is now used later than B
    assert look("C") == 0  # so B goes (a queue would have dropped A)
    assert [look("A"), look("C"), look("B")] == [1, 1, 0]


def test_embeddings_that_are_not_finite_do_not_reach_the_weights():
    module = CuriosityDrivenRewardModule(D, **SMALL)
    flat, steps, keys, has_next = Stream().batch()
    flat[0] = float("nan")
    rewards = module.compute(flat, steps, keys, has_next)
    assert rewards[0].isnan()
    assert rewards[2:].isfinite().all()
    module.update()
    assert all(p.isfinite().all() for p in module.model.parameters())
    module.compute(torch.full_like(flat, float("nan")), steps, keys, has_next)
    version = module.model.version
    module.update()
    assert module.model.version == version


def test_action_vectors_are_the_same_in_every_process():
    look, other = step(0, "LOOK", {"x": 1}), step(0, "LOOK", {"x": 2})
    vectors = ActionEncoder()([look, other, look], [look.action_key, other.action_key, look.action_key])
    assert torch.equal(vectors[0], vectors[2])
    assert not torch.equal(vectors[0], vectors[1])
    command = (
        "from grpo_tui.rewards.components.curiosity import ActionEncoder; from grpo_tui.envs.trajectory import Step;"
        "s = Step(0, '', action='LOOK', arguments={'x': 1}); print(ActionEncoder()([s], ['k']).tolist());"
        "print(hash('LOOK'))"
    )
    elsewhere = ForkedProcess([sys.executable, "-c", command], stdout=subprocess.PIPE, text=True)
    found, own = map(json.loads, elsewhere.communicate()[0].splitlines())
    assert found == [vectors[0].tolist()]
    assert own != hash("LOOK") or "PYTHONHASHSEED" in os.environ, "Python's own hash of a text is another one there"
