"""A small engine that answers, and requests for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpo_tui.configs.sections.rewards import RewardsConfig
from grpo_tui.engine.agents.transformers_agent import TransformersAgent
from grpo_tui.engine.online.serve.inference_engine import InferenceEngine
from grpo_tui.engine.online.serve.requests import Request, Sampling
from grpo_tui.engine.rollouts.runner import RolloutRunner, Row
from grpo_tui.rewards.orchestrator import RewardOrchestrator

from .tiny import lora_model, online_config, tokenizer

WORDS = tokenizer()
ENV = f"{Path(__file__).with_name('tiny.py')}:ParityEnv"


def engine(**changes: Any) -> InferenceEngine:
    config = online_config(**{"samples": 5, "min_confidence": 0.3, **changes})
    model = lora_model(len(WORDS))
    agent = TransformersAgent(model, WORDS, max_turn_tokens=6, max_trajectory_tokens=64)
    runner = RolloutRunner(agent, WORDS, config.samples)
    return InferenceEngine(model, runner, RewardOrchestrator(config=RewardsConfig()), config)


def requests(count: int, start: int = 1) -> list[Request]:
    return [
        Request(Row(ENV, {}, {"question": f"what is it? {i}", "answer": str(i % 3)}), number=i)
        for i in range(start, start + count)
    ]


def conversation(text: str = "what is it?", number: int = 1, **sampling: Any) -> Request:
    row = Row("grpo_tui.envs.chat.ChatEnv", {}, {"messages": [{"role": "user", "content": text}]})
    return Request(row, number=number, sampling=Sampling(**sampling))
