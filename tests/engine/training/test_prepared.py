"""One owner of what is changed in a model: everything comes off again, in whatever way the changes were nested."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from grpo_tui.engine.policy.patches import patched
from grpo_tui.engine.policy.prepared import PreparedModel, acting, decoding, forward_agent_tokens
from grpo_tui.engine.policy.unwrap import base_of

from .parts import policy


def changed(model: Any) -> dict[str, Any]:
    """What instances have in the place of their class's, and which attention is in use."""
    own = {f"{n}.{k}": v for n, m in model.named_modules() for k, v in vars(m).items() if k in ("forward", "prepared")}
    return {**own, "attention": base_of(model).config._attn_implementation, "training": model.training}


@pytest.mark.parametrize("lora", [False, True])
def test_a_restored_model_is_what_it_was(lora):
    model = policy(lora=lora)
    before = changed(model)
    prepared = PreparedModel(model)
    assert prepared.packed and PreparedModel.of(model) is prepared
    assert len(changed(model)) > len(before)
    prepared.restore()
    assert changed(model) == before and PreparedModel.of(model) is None


def test_changes_for_a_block_nest_and_leave_nothing():
    model = policy(lora=True).train()
    prepared = PreparedModel(model)
    before = changed(model)
    with acting(model), acting(model), decoding(model, "sdpa"):
        assert not model.training
    with prepared.packed_pass(), acting(model):
        assert base_of(model).config._attn_implementation == "grpo_tui_packed"
    with pytest.raises(RuntimeError, match="half way"), prepared.packed_pass():
        raise RuntimeError("half way")
    assert changed(model) == before


def test_a_model_that_is_prepared_twice_gives_the_same_and_comes_off_twice():
    model = policy(lora=True)
    ids, agent = [np.arange(3, 15)], [np.arange(12) > 4]
    expected = forward_agent_tokens(model, ids, agent).logits
    before = changed(model)
    first, second = PreparedModel(model), PreparedModel(model)
    torch.testing.assert_close(forward_agent_tokens(model, ids, agent).logits, expected)
    second.restore()
    assert PreparedModel.of(model) is first
    first.restore()
    assert changed(model) == before


def test_what_a_block_replaced_comes_back_whether_it_was_there_or_not():
    class Thing:
        name = "of the class"

    own, inherited = Thing(), Thing()
    own.name = "its own"
    with patched(own, "name", "other"), patched(inherited, "name", "other"):
        assert own.name == inherited.name == "other"
    assert own.name == "its own"
    assert vars(inherited) == {} and inherited.name == "of the class"
