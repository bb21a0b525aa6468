"""Serving a policy that sees: pictures of callers reach it, and an update runs on what it saw, found by content."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import get_peft_model
from PIL import Image

from grpo_tui.configs.schema import CHAT_ENV
from grpo_tui.configs.sections import EnvironmentConfig
from grpo_tui.configs.sections.model import LoraSection
from grpo_tui.engine.online.learn.policy_update import PolicyUpdater
from grpo_tui.engine.online.serve.feedback import label
from grpo_tui.engine.online.serve.http.conversation import Uploads, row_of
from grpo_tui.engine.online.serve.http.problems import HttpProblem
from grpo_tui.engine.online.serve.http.schema import ChatMessage
from grpo_tui.engine.online.serve.inference_engine import InferenceEngine
from grpo_tui.engine.online.serve.requests import Request
from grpo_tui.engine.online.serve.sample_passes import behaviour_logprobs
from grpo_tui.engine.online.store.images import ImageFolder
from grpo_tui.engine.online.store.update_task import TaskError, UpdateTask
from grpo_tui.engine.policy.models import lora_config
from grpo_tui.engine.rollouts.runner import RolloutRunner, parse_row
from grpo_tui.envs.chat import ChatEnv
from grpo_tui.rewards.orchestrator import RewardOrchestrator
from tests.engine.agents.seeing_models import agent, model, tokenizer

from .tiny import online_config


def url(colour: str) -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (32, 24), colour).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def conversation(*colours: str) -> list[ChatMessage]:
    pictures = [{"type": "image_url", "image_url": {"url": url(colour)}} for colour in colours]
    return [
        ChatMessage.model_validate({"role": "user", "content": [*pictures, {"type": "text", "text": "What colour?"}]}),
        ChatMessage.model_validate({"role": "assistant", "content": "red"}),
        ChatMessage.model_validate({"role": "user", "content": "What colour is the object?"}),
    ]


def test_pictures_of_a_conversation_go_to_a_policy_that_sees(tmp_path):
    uploads, config = Uploads(tmp_path), EnvironmentConfig()
    row = row_of(conversation("red", "blue"), uploads, config, None, sees=True)
    blocks = row["task_data"]["messages"][0]["content"]
    assert [b["type"] for b in blocks] == ["image", "image", "text"]
    assert all(Path(b["image"]).is_file() for b in blocks[:2])
    with pytest.raises(HttpProblem, match="images are only supported in a single question"):
        row_of(conversation("red"), uploads, config, None)


def test_a_picture_in_a_first_question_is_not_lost(tmp_path):
    uploads, config = Uploads(tmp_path), EnvironmentConfig(class_path=CHAT_ENV)
    row = row_of(conversation("red")[:1], uploads, config, ChatEnv, sees=True)
    assert [b["type"] for b in row["task_data"]["messages"][0]["content"]] == ["image", "text"]
    with pytest.raises(HttpProblem, match="the policy reads no images"):
        row_of(conversation("red")[:1], uploads, config, ChatEnv)


def test_an_update_runs_on_the_images_that_the_answer_was_given_to(tmp_path):
    base = model("qwen3_vl", end_bias=0.0)
    net: Any = get_peft_model(base, lora_config(LoraSection(r=4), base))
    acting = agent("qwen3_vl", net, max_turn_tokens=4)
    images = ImageFolder(tmp_path / "seen")
    config = online_config(samples=4, min_confidence=0.0, neighbours=2)
    row = parse_row(row_of(conversation("red", "blue"), Uploads(tmp_path), EnvironmentConfig(), None, sees=True))
    engine = InferenceEngine(
        net,
        RolloutRunner(acting, tokenizer("qwen3_vl"), config.samples),
        RewardOrchestrator(config=_rewards(), seed=0),
        config,
        images=images,
    )
    answers = engine.answer([Request(replace(row, task_data={**row.task_data, "answer": "red"}), number=1)], 0)
    assert answers[0].error is None and all(len(s.images) == 2 for s in answers[0].samples)
    assert engine.learn(answers)[0].records
    sample = answers[0].samples[0]
    found = behaviour_logprobs(net, sample, acting.config.temperature)
    assert sample.logprobs == pytest.approx(found, abs=1e-4), "of a text that was written about these images"
    right = next(s.trajectory.answer for s in answers[0].samples if s.trajectory is not None)
    task = label(engine, answers[0], right, None).task
    assert task is not None and {len(names) for names in task.experience.images} == {2}
    assert len(list((tmp_path / "seen").iterdir())) == 2, "each picture once, and none in the queue"
    again = UpdateTask.from_bytes(task.to_bytes())
    assert again.experience.images == task.experience.images
    assert len(task.to_bytes()) < 2_000_000

    updater = PolicyUpdater(net, config, images=ImageFolder(tmp_path / "seen"))
    assert updater._measure(again)["kl"] == pytest.approx(0.0, abs=1e-5), "the pass that answered, run again"
    before = [p.detach().clone() for p in updater.parameters.values()]
    updater.apply(again)
    assert any(bool((p != b).any()) for p, b in zip(updater.parameters.values(), before, strict=True))

    for file in (tmp_path / "seen").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    kept = [p.detach().clone() for p in updater.parameters.values()]
    with pytest.raises(TaskError, match="is not among the run's images"):
        PolicyUpdater(net, config, images=ImageFolder(tmp_path / "seen")).apply(again)
    with pytest.raises(TaskError, match="this learner stores none"):
        PolicyUpdater(net, config).apply(again)
    assert all(torch.equal(p, k) for p, k in zip(updater.parameters.values(), kept, strict=True))
    elsewhere = (("../x", "../y"),) * len(again.experience.images)
    outside = replace(again, experience=replace(again.experience, images=elsewhere))
    with pytest.raises(TaskError, match="names no image"):
        PolicyUpdater(net, config, images=images).apply(outside)


def _rewards() -> Any:
    from grpo_tui.configs.sections import RewardsConfig

    return RewardsConfig(w_curiosity=0.0, w_coherence=0.0)
