"""The first policy: `builtin:tiny` with a chat template that renders tools, taught the habits of the demonstration."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from benchmarks.policies.curriculum import habit_route
from benchmarks.policies.lessons import teach
from grpo_tui.engine.demonstration import policies
from grpo_tui.engine.demonstration.visual.env import TOOLS, VisualEnv
from grpo_tui.engine.training.demonstrations import play_demonstrations

BASE = Path(policies.__file__).parent / "base"
SCHEMAS = [tool.schema for tool in TOOLS]
TEMPLATE = (
    "{%- if tools -%}<|system|>"
    "{%- for tool in tools -%}{{ tool['function']['name'] + ' ' }}{%- endfor -%}<|end|>{%- endif -%}"
    "{%- for message in messages -%}"
    "{{ '<|' + ('user' if message['role'] == 'tool' else message['role']) + '|>' + message['content'] }}"
    "{%- for call in message['tool_calls'] or [] -%}"
    "{{ {'name': call['function']['name'], 'arguments': call['function']['arguments']} | tojson }}"
    "{%- endfor -%}{{ '<|end|>' }}"
    "{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)


def save_policy(folder: Path, lessons: int = 1024, steps: int = 300) -> None:
    """Train and save the policy."""
    torch.manual_seed(0)
    words = AutoTokenizer.from_pretrained(BASE)
    words.chat_template = TEMPLATE
    env = VisualEnv(prompt_style="terse")
    tasks = env.make_tasks("train", lessons, 1_000)
    shown = play_demonstrations(env, tasks, words, choose=habit_route, seed=1, template_kwargs={"tools": SCHEMAS})
    model = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    teach(model, [lesson.tokens for lesson in shown], steps=steps, learning_rate=1e-3)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id
    )
    model.save_pretrained(folder)
    words.save_pretrained(folder)
