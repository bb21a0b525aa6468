"""Gradient checkpointing recomputes all layers but the last, and no attention."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grpo_tui.configs.schema import RunConfig
from grpo_tui.configs.sections.training import TrainingConfig
from grpo_tui.engine.policy import activations
from grpo_tui.engine.policy.activations import (
    ATTENTION,
    KEPT,
    bytes_of_token,
    checkpoint_activations,
    numbers_of_layer,
    spare_memory,
)
from grpo_tui.engine.policy.memory import micro_batch
from grpo_tui.engine.policy.models import load_policy
from grpo_tui.engine.policy.packed import PackedForward
from grpo_tui.engine.policy.packing import pack
from grpo_tui.engine.policy.unwrap import base_of
from grpo_tui.engine.policy.versions import enable_checkpointing, is_checkpointing
from grpo_tui.engine.record.step_recorder import StepRecorder
from grpo_tui.engine.runs.write.writer import NullWriter
from grpo_tui.engine.training.rft import build_trainer

from .parts import policy


class AttentionCalls(TorchDispatchMode):
    """Counts the forward kernels of attention that run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func in ATTENTION
        return func(*args, **(kwargs or {}))


def gradients(model, backward_calls: AttentionCalls) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(0)
    ids = [rng.integers(3, 250, n) for n in (30, 24)]
    packing = pack(ids, [np.arange(len(row)) > 8 for row in ids])
    model.train()
    forward = PackedForward(model)
    forward.short_tail = False
    with forward.attention():
        loss = (forward(packing).logprobs * torch.linspace(-1, 1, 36)).sum()
        with backward_calls:
            loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def test_attention_and_the_last_layer_are_not_computed_again():
    plain, model = policy(layers=3), policy(layers=3)
    enable_checkpointing(plain, {"use_reentrant": False})
    checkpoint_activations(model)
    runs: Counter[int] = Counter()
    for index, layer in enumerate(model.model.layers):
        layer.mlp.register_forward_pre_hook(lambda *_, index=index: runs.update([index]))

    everything, nothing = AttentionCalls(), AttentionCalls()
    expected, ours = gradients(plain, everything), gradients(model, nothing)
    assert everything.count >= 3  # plain checkpointing runs every layer's attention again
    assert nothing.count == 0
    assert runs == {0: 2, 1: 2, 2: 1}
    assert is_checkpointing(model)
    for name, gradient in expected.items():
        assert torch.equal(ours[name], gradient), name


def test_the_only_layer_of_a_model_stays_checkpointed():
    model = policy(layers=1)
    checkpoint_activations(model)
    assert is_checkpointing(model)


@pytest.mark.parametrize("layers", [2, 5])
def test_the_estimate_of_what_is_kept_is_that_of_autograd(layers):
    """Counted: bytes of the tensors that autograd saves for each further token, weights and shared storage left out."""
    model = policy(layers=layers).train()
    model.lm_head.requires_grad_(False)
    text = model.config
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    counted = []
    for tokens in (1000, 2000):
        saved: dict[int, torch.UntypedStorage] = {}

        def keep(tensor, saved=saved):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                saved[storage.data_ptr()] = storage
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = model.model(torch.arange(tokens)[None] % 250, use_cache=False).last_hidden_state
        counted.append(sum(storage.nbytes() for storage in saved.values()))
        del output
    expected = 1000 * 4 * layers * numbers_of_layer(text)
    assert 0.5 < (counted[1] - counted[0]) / expected < 2


def test_auto_keeps_what_is_small_enough():
    fits = KEPT // (4 * 3 * numbers_of_layer(policy().config))
    for setting, tokens, expected in [
        ("auto", fits, False),
        ("auto", fits + 1, True),
        (True, 1, True),
        (False, fits + 1, False),
    ]:
        model = policy(layers=3)
        spare_memory(model, setting, tokens)
        assert is_checkpointing(model) == expected, (setting, tokens)


@pytest.mark.parametrize(
    ("rows", "group", "limit", "most", "expected"),
    [
        (32, 8, 64, None, 32),  # nothing known of the model
        (32, 8, 64, 40, 32),
        (32, 8, 64, 31, 16),
        (32, 8, 64, 9, 8),
        (32, 8, 64, 7, 4),  # not even one group
        (32, 8, 64, 0, 32),  # not even one trajectory: layers are run again
        (24, 6, 20, 12, 12),
        (30, 5, 12, 9, 5),
        (30, 5, 3, 1, 1),
    ],
)
def test_micro_batches_shrink_until_they_fit_if_possible_to_whole_groups(rows, group, limit, most, expected):
    given = TrainingConfig(num_generations=group, max_trajectory_tokens=100, micro_batch_tokens=100 * limit)
    assert micro_batch(rows, given, most) == expected
    chosen = given.model_copy(update={"micro_batch_size": rows // 2})
    assert micro_batch(rows, chosen, most) == rows // 2


def test_a_pass_that_fits_in_parts_runs_no_layer_again(tmp_path):
    """The trainer takes the room from the model's activations, the longest trajectory and the group."""
    given = {"prompts_per_step": 4, "num_generations": 4, "max_trajectory_tokens": 64, "max_turn_tokens": 16}
    config = RunConfig.model_validate(
        {
            "model": {"device": "cpu"},  # a GPU has more room
            "training": {**given, "max_steps": 1},
            "environment": {"train_tasks": 8, "eval_tasks": 0},
        }
    )
    base = load_policy(config.model, adapters=None, trainable=True)[0]
    group = 4 * 64 * bytes_of_token(base_of(base))
    fitting = ((4 * group, 16), (3 * group, 8), (group, 4), (group - 1, 2))
    for most, micro, again in [*((*row, False) for row in fitting), (group // 4 - 1, 16, True)]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(activations, "KEPT", most)
            writer = NullWriter()
            trainer, _ = build_trainer(config, tmp_path / str(most), StepRecorder(writer))
        assert trainer.args.per_device_train_batch_size == micro
        assert is_checkpointing(base_of(trainer.model)) == again
