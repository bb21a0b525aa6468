"""Half precision that loses no learning: sums in float32, adapters rounded once, on-policy ratios."""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from peft import LoraConfig, get_peft_model

from grpo_tui.configs.sections.model import ModelConfig
from grpo_tui.engine.policy.packed import HalfAttention
from grpo_tui.engine.policy.precision import PATIENCE, Arithmetic, FixedWeight, set_arithmetic
from grpo_tui.engine.policy.prepared import PreparedModel, acting
from grpo_tui.engine.policy.vocabulary_head import TokenLogProbs
from grpo_tui.engine.rollouts.correction import Weighting
from grpo_tui.engine.rollouts.rollout import Rollout
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.training.__main__ import run
from grpo_tui.engine.training.batch import make_batch
from grpo_tui.engine.training.mismatch import Mismatch

from .parts import make_trainer, playback_rows, policy
from .runs import make_run

HALF = {"weights": "bfloat16", "compute": "bfloat16", "sampling": "bfloat16"}
MASTER = {**HALF, "weights": "float32"}
STORED = {"weights": "bfloat16", "compute": "float32", "sampling": "float32"}


def half_policy(lora: bool = True, formats: dict[str, str] = HALF) -> Any:
    """A random policy with number formats as they are set on a loaded one."""
    model = policy(lora=lora)
    base = model.get_base_model() if lora else model
    if formats["weights"] == "bfloat16":
        for name, parameter in base.named_parameters():
            if "lora" not in name:
                parameter.data = parameter.data.bfloat16()
    set_arithmetic(model, ModelConfig.model_validate({"base": "x/y", **formats}))
    return model


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("head_learns", [False, True])
@pytest.mark.parametrize("tokens", [1, 37])
def test_log_probs_from_tiles_are_those_of_the_definition_with_every_gradient(
    bias, entropy, head_learns, tokens, monkeypatch
):
    monkeypatch.setattr("grpo_tui.engine.policy.vocabulary_head.TILE", 1000)
    monkeypatch.setattr("grpo_tui.engine.policy.vocabulary_head.STRIP", 300)
    torch.manual_seed(tokens)
    hidden = torch.randn(tokens, 8, requires_grad=True)
    weight = torch.randn(90, 8, requires_grad=head_learns)
    offset = torch.randn(90, requires_grad=head_learns) if bias else None
    target = torch.randint(0, 90, (tokens,))
    got: Any = TokenLogProbs.apply(hidden, weight, offset, target, 0.7, torch.float32, entropy)
    given = [x for x in (hidden, weight, offset) if x is not None]
    exact = [x.detach().double().requires_grad_() for x in given]
    logits = exact[0] @ exact[1].T + (exact[2] if bias else 0)
    log_p = (logits / 0.7).log_softmax(-1)
    right = log_p.gather(1, target[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)
    weights = torch.randn(2, tokens)
    used = 2 if entropy else 1
    loss: Any = sum((g * w).sum() for g, w in zip(got[:used], weights, strict=False))
    true: Any = sum((r * w).sum() for r, w in zip(right[:used], weights, strict=False))
    for mine, theirs in zip(got, right, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=2e-5)
    learn = [i for i, x in enumerate(given) if x.requires_grad]
    gradients = torch.autograd.grad(loss, [given[i] for i in learn])
    for mine, theirs in zip(gradients, torch.autograd.grad(true, [exact[i] for i in learn]), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-4)


def test_a_token_that_is_next_to_impossible_has_a_finite_log_prob():
    hidden, weight = torch.tensor([[1.0, 0.0]], requires_grad=True), torch.tensor([[-200.0, 0.0], [300.0, 1.0]])
    found: Any = TokenLogProbs.apply(hidden, weight, None, torch.tensor([0]), 1.0, torch.float32, False)
    logprob, entropy = found
    assert logprob.item() == pytest.approx(-500)
    assert entropy.item() == pytest.approx(0, abs=1e-6)
    logprob.sum().backward()
    torch.testing.assert_close(hidden.grad, torch.tensor([[-500.0, -1.0]]))


def test_likely_tokens_keep_their_digits_in_bfloat16():
    torch.manual_seed(0)
    hidden, weight = torch.randn(200, 64).bfloat16().float() * 4, torch.randn(500, 64).bfloat16()
    logits = hidden @ weight.float().T
    target = torch.distributions.Categorical(logits=logits).sample()
    true = logits.double().log_softmax(-1).gather(1, target[:, None])[:, 0]
    rounded = (hidden.bfloat16() @ weight.T).float().log_softmax(-1).gather(1, target[:, None])[:, 0]
    mine: Any = TokenLogProbs.apply(hidden, weight, None, target, 1.0, torch.bfloat16, False)
    assert (mine[0] - true).abs().mean() < 0.1 * (rounded - true).abs().mean()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("heads", "groups", "length"), [(9, 3, 37), (4, 4, 1), (8, 2, 130)])
def test_the_backward_pass_of_attention_in_bfloat16_is_that_of_the_definition(masked, heads, groups, length):
    torch.manual_seed(length)
    keys = length + 5 if masked else length
    shapes = [(3, heads, length, 32), (3, groups, keys, 32), (3, groups, keys, 32), (3, heads, length, 32)]
    values = [torch.randn(shape).bfloat16() for shape in shapes]
    allowed = torch.rand(3, 1, length, keys) < 0.6 if masked else torch.ones(length, keys, dtype=torch.bool).tril()
    allowed[..., 0] = True

    def results(attend, dtype):
        *inputs, grad = (v.to(dtype, copy=True) for v in values)
        inputs = [x.requires_grad_() for x in inputs]
        out = attend(*inputs)
        out.backward(grad)
        return [out.detach(), *(x.grad for x in inputs)]

    def definition(query, key, value):
        key, value = (x.repeat_interleave(heads // groups, 1) for x in (key, value))
        scores = (query @ key.mT / 32**0.5).masked_fill(~allowed, -torch.inf)
        return scores.softmax(-1) @ value

    ours = results(lambda q, k, v: HalfAttention.apply(q, k, v, allowed if masked else None, None), torch.bfloat16)
    for found, right in zip(ours, results(definition, torch.float64), strict=True):
        assert (found - right).norm() <= 2**-8 * right.norm() + 1e-5


def test_small_updates_of_adapters_reach_the_policy():
    def change(layer, x, by):
        before = layer(x).double()
        layer.lora_B["default"].weight.data += by
        return layer(x).double() - before

    torch.manual_seed(0)
    x, linear = torch.randn(400, 64), torch.nn.Sequential(torch.nn.Linear(64, 48))
    adapted: Any = get_peft_model(linear, LoraConfig(r=4, target_modules=["0"]))  # type: ignore[arg-type]
    plain = adapted.base_model.model[0]
    layers: dict[str, Any] = {"float32": plain, "peft": copy.deepcopy(plain), "ours": copy.deepcopy(plain)}
    for name in ("peft", "ours"):
        layers[name].base_layer.to(torch.bfloat16)
    model = half_policy()
    layers["ours"].arithmetic = Arithmetic.of(model)
    ours: Any = next(m for m in model.modules() if hasattr(m, "lora_A") and hasattr(m, "arithmetic"))
    layers["ours"].forward = type(ours.forward)(ours.forward.__func__, layers["ours"])
    by = torch.randn(48, 4) * 2e-4
    true = change(layers["float32"], x, by)
    delivered = {
        name: ((change(layer, x if name == "ours" else x.bfloat16(), by) * true).sum() / true.square().sum()).item()
        for name, layer in layers.items()
        if name != "float32"
    }
    assert delivered["ours"] == pytest.approx(1, abs=0.1)
    assert delivered["peft"] < 0.8, "the form that loses them"


@pytest.mark.parametrize(("lora", "formats"), [(True, HALF), (False, MASTER), (False, HALF), (False, STORED)])
def test_the_unchanged_policy_has_no_kl_and_nothing_is_clipped(tmp_path, lora, formats):
    model = half_policy(lora, formats)
    trainer = make_trainer(tmp_path, playback_rows(4), model=model, beta=0.1, max_steps=1, learning_rate=1e-3)
    trainer.train()
    logged = trainer.state.log_history[0]
    assert abs(logged["kl"]) < 1e-6
    assert logged["clip_ratio/region_mean"] == 0
    assert all(r.trained_logprobs is not None for r in trainer.rollouts.generated)
    trained = [p for p in trainer.model.parameters() if p.requires_grad]
    assert trained
    kept = torch.bfloat16 if formats is HALF and not lora else torch.float32
    assert {p.dtype for p in trained if p.dim() > 1} == {kept}


@pytest.mark.parametrize("adapters", [0, 1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_fixed_weights_multiply_as_defined_in_either_layout(adapters, bias):
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no products in bfloat16")
    generator = torch.Generator().manual_seed(adapters)
    shapes = [(48, 40), (48,), *[(4, 40), (48, 4)] * adapters]
    weight, offset, *rest = (torch.randn(shape, generator=generator).bfloat16() for shape in shapes)
    parts = {str(i): (rest[2 * i], rest[2 * i + 1]) for i in range(adapters)}
    product = FixedWeight(weight, offset if bias else None, parts, packs=True)
    for shape in [(3, 5, 40), (1, 1, 40), (70, 40)] * 4:  # both sides of `PATIENCE`
        x = torch.randn(shape, generator=generator).bfloat16()
        y = x.double() @ weight.double().T + (offset.double() if bias else 0)
        size = x.double().abs() @ weight.double().abs().T + 1
        for a, b in parts.values():
            thin = (x @ a.T).double()
            y, size = y + thin @ b.double().T, size + thin.abs() @ b.double().abs().T
        assert product(x).shape == y.shape and product(x).dtype == torch.bfloat16
        assert float(((product(x).double() - y).abs() / size).max()) < 2**-8 * (1 + adapters)
    assert product._weight is None


def test_adapters_that_are_off_in_a_block_of_sampling_are_left_out():
    model = half_policy()
    ids = torch.arange(12)[None] % 40
    with torch.no_grad(), model.disable_adapter():
        expected = model(input_ids=ids).logits
    with acting(model):
        for _ in range(PATIENCE + 2):
            model(input_ids=ids)
        with model.disable_adapter():
            assert torch.equal(model(input_ids=ids).logits, expected)
        assert float((model(input_ids=ids).logits - expected).abs().max()) > 1e-3


def test_a_copy_computes_with_its_own_weights():
    model = half_policy()
    copied = copy.deepcopy(model)
    ids = torch.tensor([[5, 6, 7]])
    before = model(input_ids=ids).logits
    for parameter in copied.parameters():
        parameter.data.zero_()
    torch.testing.assert_close(model(input_ids=ids).logits, before)
    assert copied(input_ids=ids).logits.abs().max() == 0
    assert before.dtype == torch.float32


@pytest.mark.parametrize("lora", [True, False])
def test_sampling_may_be_in_another_format_than_training(lora):
    model = half_policy(lora, {"weights": "float32", "compute": "float32", "sampling": "bfloat16"})
    ids = torch.tensor([[5, 6, 7]])
    trained = model(input_ids=ids).logits
    with acting(model):
        sampled = model(input_ids=ids).logits
    assert 0 < (sampled - trained).abs().max() < 0.5
    torch.testing.assert_close(model(input_ids=ids).logits, trained, rtol=0, atol=0)


def test_the_packed_pass_agrees_in_half_precision():
    assert PreparedModel(half_policy()).packed


def test_mismatch_is_measured_by_the_definition_without_replayed_rows():
    rng = np.random.default_rng(0)
    rollouts = [
        Rollout(
            token_ids=np.arange(n),
            agent_mask=np.arange(n) >= 2,
            turn_ids=np.where(np.arange(n) >= 2, 0, -1).astype(np.int16),
            rewards=np.zeros(n, np.float32),
            group=i,
            index=0,
            logprobs=rng.normal(-1, 0.5, n).astype(np.float32),
            advantages=rng.normal(size=n).astype(np.float32),
            replayed=i == 2,
            id=str(i),
        )
        for i, n in enumerate((5, 9, 7))
    ]
    batch = {**make_batch(rollouts, pad_token_id=0, device=torch.device("cpu")), "rollouts": rollouts}
    now = batch["old_per_token_logps"] + 0.3 * torch.randn(3, 9)
    apart = [(now[i, 2:n] - batch["old_per_token_logps"][i, 2:n]).double() for i, n in enumerate((5, 9))]
    every = torch.cat(apart)
    found = Mismatch(0.2, 0.2)
    found.add(batch, now)
    measured = found.metrics()
    assert measured["sampler/kl"] == pytest.approx(float((every.exp() - 1 - every).mean()), rel=1e-5)
    assert measured["sampler/clipped"] == pytest.approx(float(((every.exp() - 1).abs() > 0.2).float().mean()))
    assert measured["sampler/largest_ratio"] == pytest.approx(max(abs(float(a.sum())) for a in apart), rel=1e-5)
    before = batch["advantages"].clone()
    found.on_policy(batch, now, Weighting("token_truncate", cap=1.2))
    weights = every.exp().clamp(max=1.2)
    taken = torch.cat([batch["advantages"][i, 2:n] / before[i, 2:n] for i, n in enumerate((5, 9))])
    torch.testing.assert_close(taken.double(), weights, rtol=1e-5, atol=1e-6)
    assert torch.equal(batch["advantages"][2], before[2]), "replayed rows keep their own"
    assert set(found.trained) == {"0", "1"}


def trained(folder: Path, base: Path, learning_rate: float = 1e-6, steps: int = 4, **model: Any) -> dict[str, Any]:
    """A run: its sampler KL, its KL, and the detectors of its alerts."""
    make_run(folder, base, max_steps=steps, learning_rate=learning_rate, save_every=0, eval_tasks=0)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["model"] |= model
    config["rewards"]["diagnosis"] = {"window": steps}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert run(folder) == 0
    with RunReader(folder) as reader:
        alerts = [e.data.get("detector") for e in reader.events(["alert"])]
        kl = [v for _, v in reader.metrics.points("kl/mean")]
        return {"sampler": [v for _, v in reader.metrics.points("sampler/kl")], "kl": kl, "alerts": alerts}


def test_a_sampler_in_another_format_is_seen_and_reported(tmp_path):
    base = tmp_path / "base"
    formats: dict[str, Any] = {"weights": "float32", "compute": "float32"}
    same = trained(tmp_path / "same", base, **formats, sampling="float32")
    assert max(same["sampler"]) < 1e-9 and "sampler_mismatch" not in same["alerts"]
    other = trained(tmp_path / "other", base, **formats, sampling="bfloat16")
    assert min(other["sampler"]) > 1e-6 and "sampler_mismatch" in other["alerts"]
    assert abs(other["kl"][0]) < 1e-9, "measured with the trainer's log-probs"


def test_a_sampler_with_stale_weights_is_seen_and_reported(tmp_path, monkeypatch):
    from grpo_tui.engine.training import pipeline

    kept: dict[str, torch.Tensor] = {}

    @contextlib.contextmanager
    def stale(model):
        """The policy as it was before training, while it samples."""
        weights = {n: p for n, p in model.named_parameters() if ".default." in n}
        present = {n: p.detach().clone() for n, p in weights.items()}
        with torch.no_grad():
            for name, parameter in weights.items():
                parameter.copy_(kept.setdefault(name, present[name]))
        with acting(model):
            yield
        with torch.no_grad():
            for name, parameter in weights.items():
                parameter.copy_(present[name])

    monkeypatch.setattr(pipeline, "acting", stale)
    found = trained(tmp_path / "run", tmp_path / "base", learning_rate=0.02)
    assert found["sampler"][0] < 1e-9 < 1e-6 < found["sampler"][-1]
    assert "sampler_mismatch" in found["alerts"]


@pytest.mark.parametrize(("weights", "still"), [("bfloat16", True), ("float32", False)])
def test_weights_kept_in_bfloat16_do_not_move_and_the_run_reports_it_by_step_10(tmp_path, weights, still):
    formats = {"lora": None, "weights": weights, "compute": "bfloat16", "sampling": "bfloat16"}
    found = trained(tmp_path / "run", tmp_path / "base", learning_rate=1e-5, steps=10, **formats)
    assert ("no_movement" in found["alerts"]) is still
