"""CUDA graphs of decoding: the texts and log-probs are those of passes started from Python. Needs a GPU."""

from typing import Any

import numpy as np
import pytest
import torch

from grpo_tui.engine.agents import cached_rows
from grpo_tui.engine.agents.session import TransformersSession
from grpo_tui.engine.agents.transformers_agent import TransformersAgent
from grpo_tui.engine.policy.prepared import acting

from .models import model, tokenizer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def conversation(net: Any, blocks: int = 1) -> tuple[list[np.ndarray], list[np.ndarray], int]:
    """Two turns of six rows, with the weights prepared once or for each turn. Returns ids, log-probs and graphs."""
    agent = TransformersAgent(net, tokenizer(), max_turn_tokens=100, max_trajectory_tokens=600)
    prompts: Any = [[{"role": "user", "content": text}] for text in ("red 12", "the area of the mask at (31, 40)")]
    captured = 0
    with acting(net):
        session = agent.start(prompts, 3, seed=5)
        assert isinstance(session, TransformersSession)
        session.act(range(6))
        captured += len(graphs_of(session))
        session.observe([0, 2, 5], ["blue circle"] * 3)
        if blocks == 1:
            session.act([0, 2, 5])
    if blocks == 2:
        with acting(net):
            session.act([0, 2, 5])
    captured += len(graphs_of(session))
    rows = [session.history.arrays(row) for row in range(6)]
    return [r.token_ids for r in rows], [r.logprobs for r in rows], captured


def graphs_of(session: TransformersSession) -> dict[Any, Any]:
    return session._rows._graphs._captured  # type: ignore[union-attr]


@pytest.mark.parametrize("blocks", [1, 2])
def test_texts_and_log_probs_are_those_of_passes_from_python(monkeypatch: pytest.MonkeyPatch, blocks: int):
    net: Any = model("qwen3")
    net.to("cuda")
    ids, logprobs, captured = conversation(net, blocks)
    assert captured > 0
    monkeypatch.setattr(cached_rows, "WORTH", 10**9)
    plain_ids, plain, none = conversation(net, blocks)
    assert none == 0
    for a, b in zip(ids, plain_ids, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(logprobs, plain, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_pass_that_cannot_be_captured_runs_from_python(monkeypatch: pytest.MonkeyPatch):
    net: Any = model("qwen3")
    net.to("cuda")
    plain = cached_rows.Decoder.forward

    def reads_back(self: Any, tokens: Any, *rest: Any) -> Any:
        float(tokens.sum())  # waits for the device, which a capture forbids
        return plain(self, tokens, *rest)

    monkeypatch.setattr(cached_rows.Decoder, "forward", reads_back)
    ids, _, captured = conversation(net)
    assert captured == 0
    assert all(len(row) for row in ids)
