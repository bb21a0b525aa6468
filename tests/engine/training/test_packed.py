"""The packed forward gives what the padded one gives, value and gradient."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GraniteConfig, GraniteForCausalLM
from trl.trainer import utils

from grpo_tui.engine.policy import token_scores
from grpo_tui.engine.policy.activations import checkpoint_activations
from grpo_tui.engine.policy.attention_layout import Layout
from grpo_tui.engine.policy.packed import PackedForward
from grpo_tui.engine.policy.packing import pack
from grpo_tui.engine.policy.token_scores import score_tokens, turn_embeddings
from grpo_tui.engine.rollouts.trial import turns_of
from tests.engine.agents import models

from .parts import policy


def trajectories(seed: int, groups: int, size: int, longest: int = 12) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Groups that share prompts of at most `longest` tokens, several turns, every length different; some rows end with
    environment text."""
    rng = np.random.default_rng(seed)
    ids, masks = [], []
    for _ in range(groups):
        prompt = rng.integers(3, 250, rng.integers(longest // 2, longest))
        for _ in range(size):
            parts, mask = [prompt], [np.zeros(len(prompt), bool)]
            for kind in rng.integers(0, 2, rng.integers(1, 6)):
                parts.append(rng.integers(3, 250, rng.integers(1, 8)))
                mask.append(np.full(len(parts[-1]), bool(kind)))
            ids.append(np.concatenate(parts))
            masks.append(np.concatenate(mask))
    return ids, masks


def padded_log_probs(model, ids, masks) -> torch.Tensor:
    length = max(map(len, ids))
    tokens, there = torch.zeros(len(ids), length, dtype=torch.long), torch.zeros(len(ids), length, dtype=torch.long)
    agent = torch.zeros(len(ids), length, dtype=torch.bool)
    for i, (row, mask) in enumerate(zip(ids, masks, strict=True)):
        tokens[i, : len(row)], there[i, : len(row)] = torch.from_numpy(row), 1
        agent[i, : len(row)] = torch.from_numpy(mask)
    agent[:, 0] = False
    logits = model(input_ids=tokens, attention_mask=there).logits
    logps = torch.log_softmax(logits[:, :-1].float(), -1).gather(-1, tokens[:, 1:, None])[..., 0]
    return torch.nn.functional.pad(logps, (1, 0)) * agent


def gradients(model, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([3, 12, 90]),
    st.booleans(),
    st.booleans(),
)
def test_log_probs_and_gradients_equal_those_of_the_padded_pass(seed, groups, size, longest, checkpointing, tail):
    """Also of groups whose prompt is so long that their rows attend to it apart from themselves."""
    model = policy()
    forward = PackedForward(model)
    forward.short_tail = tail
    ids, masks = trajectories(seed, groups, size, longest)
    expected = padded_log_probs(model, ids, masks)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(seed))
    wanted = gradients(model, (expected * weights).sum())
    if checkpointing:
        checkpoint_activations(model)
        model.train()
    packing = pack(ids, masks)
    with forward.installed(), forward.attention():
        ours = packing.pad(model(packing=packing).logprobs)
        got = gradients(model, (ours * weights).sum())
    assert (ours - expected).abs().max() < 1e-5
    scale = max(1.0, max(g.abs().max().item() for g in wanted.values()))
    for name, gradient in wanted.items():
        assert (got[name] - gradient).abs().max() < 1e-5 * scale, name


def test_a_prompt_that_many_share_is_attended_to_apart_and_its_rows_stay_causal():
    model = policy()
    forward = PackedForward(model)
    ids, masks = trajectories(1, groups=1, size=4, longest=90)
    packing = pack(ids, masks)
    assert any(block.allowed is not None for block in packing.layout.blocks)
    with forward.installed(), forward.attention(), torch.no_grad():
        ours = packing.pad(model(packing=packing).logprobs)
    torch.testing.assert_close(ours, padded_log_probs(model, ids, masks), atol=1e-5, rtol=0)


def test_the_last_layer_attends_from_what_is_read_alone_where_that_costs_less():
    """Short answers between long observations; every token read needs all that came before it."""
    model = policy()
    forward = PackedForward(model)
    rng = np.random.default_rng(0)
    lengths = [2, 30, 3, 40, 1, 25, 4]
    ids = [rng.integers(3, 250, 5 * i + sum(lengths)) for i in (1, 1, 3)]
    masks = [
        np.concatenate([np.zeros(len(row) - sum(lengths), bool), *(np.full(n, n < 5) for n in lengths)]) for row in ids
    ]
    packing = pack(ids, masks)
    assert packing.last.cost < 0.3 * packing.layout.cost
    with forward.installed(), forward.attention(), torch.no_grad():
        ours = packing.pad(model(packing=packing).logprobs)
    torch.testing.assert_close(ours, padded_log_probs(model, ids, masks), atol=1e-5, rtol=0)
    dense = pack([ids[0]], [np.ones(len(ids[0]), bool)])
    assert dense.last is dense.layout, "where every token is read, a causal kernel is cheaper"


def test_prompts_are_encoded_once_and_padding_never():
    ids = [np.array([5, 6, 7, 8, 9]), np.array([5, 6, 7, 10]), np.array([4, 11, 12])]
    masks = [np.array([0, 0, 0, 1, 1], bool), np.array([0, 0, 0, 1], bool), np.array([0, 1, 0], bool)]
    packing = pack(ids, masks)
    assert packing.token_ids.tolist() == [[5, 6, 7, 4, 8, 9, 10, 11]]  # the last row's 12 is never needed
    assert packing.positions.tolist() == [[0, 1, 2, 0, 3, 4, 3, 1]]


@pytest.mark.parametrize("architecture", ["qwen3", "llama"])
def test_common_architectures_are_packed(architecture):
    model = models.model(architecture)
    with fused(model) as forward:
        assert forward.agrees()
        assert forward.short_tail


def test_a_last_layer_that_is_put_together_otherwise_runs_on_all_tokens():
    """Granite's has the same parts and multiplies what they give."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = GraniteForCausalLM(GraniteConfig(vocab_size=300, residual_multiplier=0.5, **sizes))  # type: ignore[arg-type]
    with fused(model) as forward:
        assert forward.short_tail
        assert forward.agrees()
        assert not forward.short_tail


def test_step_embeddings_are_means_over_each_turns_agent_tokens():
    model = policy()
    forward = PackedForward(model)
    ids, masks = trajectories(3, 2, 3)
    turns = [turns_of(m) for m in masks]
    packing = pack(ids, masks)
    with torch.no_grad(), forward.attention():
        found = turn_embeddings(forward(packing).hidden, packing, turns)
    for row, mask, turn, ours in zip(ids, masks, turns, found, strict=True):
        hidden = model.model(input_ids=torch.from_numpy(row)[None]).last_hidden_state[0].detach().numpy()
        scored = mask & (np.arange(len(mask)) > 0)
        for t in range(len(ours)):
            where = scored & (turn == t)
            assert np.allclose(ours[t], hidden[where].mean(0) if where.any() else 0.0, atol=1e-5)
        assert len(ours) == (turn[scored].max() + 1 if scored.any() else 0)


@pytest.mark.parametrize("kind", ["gemma3_text", "mistral", "olmo3", "phi3", "qwen2"])
def test_layers_with_a_sliding_window_are_packed_with_the_same_log_probs_and_gradients(kind):
    """Of rows of many windows, whose prompts are shorter than one and longer; also in the last layer alone."""
    model = models.model_of_type(kind)
    ids, masks = trajectories(1, groups=2, size=3, longest=9)
    more = [trajectories(2, groups=1, size=2, longest=150), trajectories(3, groups=1, size=1, longest=400)]
    ids, masks = ids + more[0][0] + more[1][0], masks + more[0][1] + more[1][1]
    expected = padded_log_probs(model, ids, masks)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0))
    wanted = gradients(model, (expected * weights).sum())
    with fused(model) as forward:
        assert forward.agrees()
        with forward.attention():
            packing = pack(ids, masks)
            ours = packing.pad(model(packing=packing).logprobs)
            got = gradients(model, (ours * weights).sum())
    assert (ours - expected).abs().max() < 1e-5
    scale = max(1.0, max(g.abs().max().item() for g in wanted.values()))
    for name, gradient in wanted.items():
        assert (got[name] - gradient).abs().max() < 1e-5 * scale, name


@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss", "gpt_neo", "llama4_text", "lfm2"])
def test_models_with_other_attention_keep_the_padded_path(kind):
    model = models.model_of_type(kind)
    before = model.config._attn_implementation
    with fused(model) as forward:
        assert not forward.agrees()
    assert model.config._attn_implementation == before


def test_a_window_that_the_packed_pass_forgets_is_seen_on_short_rows(monkeypatch):
    """The window is longer than the rows that are compared, and shorter than those of training."""
    monkeypatch.setattr(Layout, "within", lambda self, window: self)
    with fused(models.model_of_type("mistral", sliding_window=512)) as forward:
        assert not forward.agrees()
        assert forward.model.config.sliding_window == 512


@contextlib.contextmanager
def fused(model):
    """With TRL's scoring head on it, as in training."""
    if hasattr(utils, "add_fused_lm_head"):  # TRL 1.14 has none
        utils.add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    forward = PackedForward(model)
    with forward.installed():
        yield forward


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_large_vocabularies_are_scored_in_chunks_with_the_same_result(monkeypatch, temperature):
    torch.manual_seed(0)
    hidden, weight = torch.randn(6, 8, requires_grad=True), torch.randn(50, 8)
    target = torch.tensor([0, 3, 49, 7, 7, 20])
    dense = score_tokens(hidden, weight, None, target, temperature, entropy_grad=True)
    (dense[0].sum() + dense[1].sum()).backward()
    assert hidden.grad is not None
    expected = hidden.grad.clone()
    hidden.grad.zero_()
    monkeypatch.setattr(token_scores, "DENSE_LOGITS", 1)
    chunked = score_tokens(hidden, weight, None, target, temperature, entropy_grad=True)
    (chunked[0].sum() + chunked[1].sum()).backward()
    for a, b in zip(dense, chunked, strict=True):
        assert torch.allclose(a, b, atol=1e-6)
    assert torch.allclose(hidden.grad, expected, atol=1e-5)
