"""The fast form of RMSNorm against its definition in float64."""

from __future__ import annotations

import pytest
import torch

from grpo_tui.engine.policy.norms import SMALL, RMSNorm, fast_norms
from tests.engine.agents import models

from .parts import policy


@pytest.mark.parametrize("shape", [(3, 16), (1, 700, 4, 32)])
def test_value_and_gradients_are_those_of_the_definition(shape):
    torch.manual_seed(0)
    x = (torch.randn(shape) * torch.rand(shape[:-1])[..., None] * 10).requires_grad_()
    weight = torch.randn(shape[-1], requires_grad=True)
    above = torch.randn(shape)
    y = RMSNorm.apply(x, weight, 1e-5)
    ours = torch.autograd.grad(y, (x, weight), above)  # type: ignore[arg-type]

    exact_x, exact_weight = (t.detach().double().requires_grad_() for t in (x, weight))
    exact = exact_weight * exact_x / (exact_x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    expected = torch.autograd.grad(exact, (exact_x, exact_weight), above.double())
    assert torch.allclose(y.double(), exact, rtol=1e-5, atol=1e-6)  # type: ignore[union-attr]
    for a, b in zip(ours, expected, strict=True):
        assert (a.double() - b).abs().max() < 1e-5 * b.abs().max()


def test_rows_of_zeros_have_finite_gradients():
    x = torch.zeros(2, 8, requires_grad=True)
    RMSNorm.apply(x, torch.ones(8), 1e-6).sum().backward()  # type: ignore[union-attr]
    assert x.grad is not None and torch.isfinite(x.grad).all()


def test_gradcheck():
    torch.manual_seed(0)
    x, weight = (torch.randn(*shape, dtype=torch.float64, requires_grad=True) for shape in ((4, 6), (6,)))
    assert torch.autograd.gradcheck(lambda a, b: RMSNorm.apply(a, b, 1e-5), (x, weight))


@pytest.mark.parametrize("tokens", [5, SMALL // 32 + 1])
def test_a_model_computes_what_it_did_before(tokens):
    plain, fast = policy(), policy()
    ids = torch.arange(tokens)[None] % 250
    with torch.no_grad(), fast_norms(fast) as norms:
        assert norms == 2 * 4 + 1  # two layers of four (with those of queries and keys), and the last
        assert torch.allclose(fast(input_ids=ids).logits, plain(input_ids=ids).logits, atol=1e-4)


def test_norms_of_another_kind_and_half_precision_are_left_alone():
    with fast_norms(models.model("gemma3")) as norms:
        assert norms == 0  # these multiply by 1 + weight
    with fast_norms(policy().bfloat16()) as norms:
        assert norms == 0


def test_norms_that_take_a_gate_are_left_alone():
    net = models.model_of_type("bamba")
    ids = torch.arange(6)[None]
    before = net(input_ids=ids, use_cache=False).logits
    with fast_norms(net):
        assert torch.allclose(net(input_ids=ids, use_cache=False).logits, before, atol=1e-5)
