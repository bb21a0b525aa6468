"""Supervised fine-tuning of a policy that sees: its pictures are learnt from, and one that is broken is left out."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grpo_tui.configs.loading import load_config
from grpo_tui.configs.schema import RunConfig
from grpo_tui.engine.policy.models import load_policy, load_vision
from grpo_tui.engine.policy.unwrap import base_of
from grpo_tui.engine.policy.versions import OLD_CHECKPOINTING
from grpo_tui.engine.policy.vision.processor import stack_inputs
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.engine.training import TrainingError
from grpo_tui.engine.training.demonstrations import read_conversations
from grpo_tui.engine.training.sft import collect, run_sft

from .parts import tokenizer as text_tokenizer
from .pictures import make_pictures

pytestmark = pytest.mark.skipif(OLD_CHECKPOINTING, reason="vision policies need transformers 5.23")


def settings(folder: Path, *more: str) -> RunConfig:
    given = ["mode=sft", "sft.batch_size=8", "sft.eval_tasks=0", "sft.save_every=0", "sft.learning_rate=0.01"]
    given.append(f"sft.output_dir={folder / 'adapters'}")
    return load_config("tiny_vl", [*given, *more])


def losses(config: RunConfig, run_dir: Path) -> list[float]:
    writer = RunWriter(run_dir)
    try:
        assert run_sft(config, run_dir, writer)
    finally:
        writer.close()
    with RunReader(run_dir) as reader:
        return [loss for _, loss in reader.metrics.points("train/loss")]


def conversation(*turns: tuple[str, str]) -> str:
    """One line: a picture and a question, and the answer; for each turn."""
    messages = []
    for picture, answer in turns:
        blocks = [{"type": "image", "image": picture}, {"type": "text", "text": "what colour?"}]
        messages += [{"role": "user", "content": blocks}, {"role": "assistant", "content": answer}]
    return json.dumps({"messages": messages})


@pytest.fixture
def pictures(tmp_path: Path) -> dict[str, str]:
    return make_pictures(tmp_path)


def test_what_is_seen_is_learnt(tmp_path: Path, pictures: dict[str, str]):
    """Equal words, and answers that only the picture tells apart."""
    lines = [conversation((pictures[colour], colour), (pictures[other], other)) for colour, other in
             (("red", "blue"), ("blue", "red"))] * 4  # fmt: skip
    (tmp_path / "talk.jsonl").write_text("\n".join(lines))
    found = losses(settings(tmp_path, f"sft.data={tmp_path / 'talk.jsonl'}", "sft.max_steps=20"), tmp_path / "run")
    guessing = np.log(2) / 2  # nats a token: of the two tokens of an answer the first is a colour, the second its end
    assert found[0] > guessing and found[-1] < guessing / 3


def test_the_loss_is_that_of_the_models_own_pass(tmp_path: Path):
    config = settings(tmp_path, "sft.demonstrations=8", "sft.max_steps=1")
    model, words = load_policy(config.model, adapters=None, trainable=True)
    shown = collect(config, words, lambda name: True, load_vision(config.model, model, words))
    own: Any = base_of(model)
    total, count = 0.0, 0
    for one in shown:
        assert len(one.images) == 1
        ids = torch.from_numpy(one.tokens.token_ids.astype(np.int64))[None]
        kinds = (ids == own.config.image_token_id).int()
        with torch.no_grad():
            logits = own(input_ids=ids, mm_token_type_ids=kinds, **stack_inputs(one.images)).logits[0].float()
        said = torch.from_numpy(one.tokens.agent_mask)[1:]
        logprobs = logits[:-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        total, count = total - float(logprobs[said].sum()), count + int(said.sum())
    assert losses(config, tmp_path / "run") == pytest.approx([total / count], abs=1e-4)


def test_a_picture_that_cannot_be_shown_costs_its_own_conversation(
    tmp_path: Path, pictures: dict[str, str], caplog: pytest.LogCaptureFixture
):
    kinds = ["red", "broken", "cmyk", "huge", "animated", "pixel"]
    path = tmp_path / "talk.jsonl"
    path.write_text("\n".join(conversation((pictures[kind], "red")) for kind in kinds))
    config = settings(tmp_path, f"sft.data={path}", "sft.max_steps=1")
    model, words = load_policy(config.model, adapters=None, trainable=True)
    vision = load_vision(config.model, model, words)
    with caplog.at_level(logging.WARNING):
        found = collect(config, words, lambda name: True, vision)
    left_out = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert len(left_out) == len(kinds) - len(found)
    for number, why in ((2, "cannot be read as an image"), (4, "7,000 x 7,000 pixels")):
        assert any(f"line {number} is left out" in said and why in said for said in left_out), left_out
    path.write_text(conversation((pictures["broken"], "red")))
    with pytest.raises(TrainingError, match=r"contains no conversation of at most .* tokens; line 1: .*broken"):
        collect(config, words, lambda name: True, vision)
    path.write_text(conversation((pictures["missing"], "red")))
    with pytest.raises(TrainingError, match=r"line 1: there is no image .*missing.png"):
        collect(config, words, lambda name: True, vision)
    path.write_text(conversation((pictures["red"], "red")))
    with pytest.raises(TrainingError, match=r"line 1: it shows an image, but model.base takes no images"):
        read_conversations(path, text_tokenizer())
