"""Drawing tokens: the frequencies, the truncation and the log-probs against plain float64 arithmetic."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from grpo_tui.engine.agents.sampling import SamplingSettings, float64_device, sample

GRID = 4000
"""Evenly spaced random numbers: the share of a token among them is its probability, up to 1 / GRID at each end."""


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def truncated(logits: np.ndarray, temperature: float, top_p: float, top_k: int) -> np.ndarray:
    """Probabilities after temperature, then top-k, then top-p, one token at a time."""
    probs = softmax(logits / temperature)
    order = np.argsort(-probs, kind="stable")
    kept = set(order[: top_k or len(order)].tolist())
    mass = sum(probs[i] for i in kept)
    before, chosen = 0.0, []
    for i in order:
        if i in kept and before < top_p - 1e-9:
            chosen.append(i)
            before += probs[i] / mass
    out = np.zeros_like(probs)
    out[chosen] = probs[chosen]
    return out / out.sum()


@given(
    logits=st.lists(st.integers(-60, 60), min_size=2, max_size=12, unique=True),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    top_p=st.sampled_from([0.3, 0.77, 1.0]),
    top_k=st.integers(0, 6),
)
def test_tokens_come_with_their_probability_and_log_prob(logits, temperature, top_p, top_k):
    x = np.array(logits, dtype=np.float64) / 10
    uniform = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
    rows = torch.tensor(x, dtype=torch.float32).expand(GRID, -1)
    tokens, logprobs = sample(rows, SamplingSettings(temperature, top_p, top_k), uniform)

    expected = truncated(x, temperature, top_p, top_k)
    found = np.bincount(tokens.numpy(), minlength=len(x)) / GRID
    np.testing.assert_allclose(found, expected, atol=1.5 / GRID + 1e-6)
    whole = np.log(softmax(x / temperature))
    np.testing.assert_allclose(logprobs.numpy(), whole[tokens.numpy()], atol=1e-5)


@given(
    logits=st.lists(st.integers(-60, 60), min_size=2, max_size=12, unique=True),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    penalty=st.sampled_from([0.8, 1.0, 1.5]),
    data=st.data(),
)
def test_min_p_and_the_penalty_of_repetition_are_those_of_their_definition(logits, temperature, min_p, penalty, data):
    x = np.array(logits, dtype=np.float64) / 10
    written = np.array(data.draw(st.lists(st.booleans(), min_size=len(x), max_size=len(x))))
    lowered = np.where(written, np.where(x < 0, x * penalty, x / penalty), x)
    expected = softmax(lowered / temperature)
    expected = np.where(expected < min_p * expected.max() * (1 - 1e-6), 0.0, expected)
    uniform = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
    rows = torch.tensor(x, dtype=torch.float32).expand(GRID, -1)
    settings = SamplingSettings(temperature, min_p=min_p, repetition_penalty=penalty)
    tokens, logprobs = sample(rows, settings, uniform, seen=torch.tensor(written).expand(GRID, -1))
    found = np.bincount(tokens.numpy(), minlength=len(x)) / GRID
    np.testing.assert_allclose(found, expected / expected.sum(), atol=1.5 / GRID + 1e-6)
    np.testing.assert_allclose(logprobs.numpy(), np.log(softmax(x / temperature))[tokens.numpy()], atol=1e-5)


def test_greedy_takes_the_largest_and_writes_down_temperature_one():
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, -1.0]])
    tokens, logprobs = sample(logits, SamplingSettings(temperature=0), None)
    assert tokens.tolist() == [1, 0]
    np.testing.assert_allclose(logprobs, logits.log_softmax(-1)[[0, 1], [1, 0]])


@pytest.mark.parametrize("last", [1 - 2**-53, 0.0])
def test_the_ends_of_the_unit_interval_draw_possible_tokens(last):
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]])
    tokens, logprobs = sample(logits, SamplingSettings(), torch.tensor([last], dtype=torch.float64))
    assert tokens.item() in (1, 2)
    assert torch.isfinite(logprobs).all()


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"temperature": -1}, "temperature"), ({"top_p": 0}, "top_p"), ({"top_k": -2}, "top_k")],
)
def test_impossible_settings_are_refused(settings, name):
    with pytest.raises(ValueError, match=name):
        SamplingSettings(**settings)


class NoFloat64(TorchDispatchMode):
    """Refuses float64 on Apple's GPUs, as torch does there."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor) and out.device.type == "mps" and out.dtype == torch.float64:
            raise TypeError(f"{func}: MPS has no float64")
        return out


@pytest.mark.parametrize("settings", [SamplingSettings(0.7, 0.9, 5), SamplingSettings(temperature=0)])
def test_apples_gpus_draw_without_float64(settings):
    with FakeTensorMode(), NoFloat64():
        logits = torch.zeros(3, 50, device="mps")
        with pytest.raises(TypeError):
            logits.cumsum(-1, dtype=torch.float64)
        uniform = torch.rand(3, dtype=torch.float64, device=float64_device(logits.device))
        never = torch.full((1,), 7, device="mps")
        tokens, logprobs = sample(logits, settings, uniform if settings.temperature else None, never)
        assert tokens.device == logprobs.device == logits.device
        assert (tokens.dtype, logprobs.dtype) == (torch.int64, torch.float32)
