"""Train the tiny vision policy from scratch: `python -m benchmarks.policies.seeing` (or `make policy`).

It is a Qwen3-VL of 1.3 million parameters. Its base learns to describe small drawn scenes and to answer questions about
them. With questions alone, it would learn to look far more slowly. The adapters then learn bad habits, such as to
answer about a different shape. The right answer still occurs at temperature 1, and reinforcement fine-tuning has to
find it.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLForConditionalGeneration, set_seed
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

from grpo_tui.engine.agents.transformers_agent import TransformersAgent
from grpo_tui.engine.demonstration import policies
from grpo_tui.engine.demonstration.visual.glance import ASKED, COLOURS, PLACES, QUESTIONS, GlanceEnv, make_task
from grpo_tui.engine.policy.vision.inputs import Images
from grpo_tui.engine.policy.vision.processor import VisionProcessor, without_video
from grpo_tui.envs.trajectory import TokenArrays

from .common import LARGEST, Clock, adapters_of, main, save_adapters, success_by_question, write_quality
from .lessons import teach
from .tokenizer import train_tokenizer

HOME = Path(policies.__file__).parent / "seeing"
IMAGE, VIDEO, BEGIN, END = "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"
CHAT_TEMPLATE = (
    "{%- for message in messages -%}{{ '<|' + message['role'] + '|>' }}"
    "{%- if message['content'] is string -%}{{ message['content'] }}{%- else -%}"
    "{%- for block in message['content'] -%}"
    "{%- if block['type'] == 'image' -%}{{ '" + BEGIN + IMAGE + END + "' }}{%- else -%}{{ block['text'] }}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}{{ '<|end|>' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)
HABITS: Mapping[str, tuple[float, float]] = {"colour": (0.5, 0.3), "count": (0.6, 0.3)}
"""By question: the shares of answers about another shape and of right answers. The rest are guesses."""
LARGEST_SIDE = 128
"""Maximum side in pixels. Larger pictures are scaled down."""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer with the words of questions and answers, bytes for all others, and the image tokens."""
    places = sorted({place for known in PLACES.values() for place in known})
    texts = [*COLOURS, *map(str, range(10)), *(asked.format(of=place) for asked in ASKED.values() for place in places)]
    texts += [", ".join((first, second, third)) for first in COLOURS for second in COLOURS for third in COLOURS]
    tokenizer = train_tokenizer(texts, vocab_size=420, numbers=20)
    tokenizer.add_tokens([IMAGE, VIDEO, BEGIN, END], special_tokens=True)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3VLConfig:
    """Return the architecture: a three-layer language model on a three-layer vision tower, with patches of 8 pixels."""
    signs = (IMAGE, VIDEO, BEGIN, END)
    ids: dict[str, Any] = {sign: tokenizer.convert_tokens_to_ids(sign) for sign in signs}
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5], "mrope_interleaved": True}
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 2048,
        "rope_parameters": rope,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {
        "depth": 3,
        "hidden_size": 96,
        "intermediate_size": 192,
        "num_heads": 4,
        "patch_size": 8,
        "spatial_merge_size": 2,
        "out_hidden_size": 128,
        "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1],
    }
    return Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids[IMAGE],
        video_token_id=ids[VIDEO],
        vision_start_token_id=ids[BEGIN],
        vision_end_token_id=ids[END],
        tie_word_embeddings=True,
        known_environments=["glance"],  # type: ignore[call-arg]
    )


def make_processor(tokenizer: PreTrainedTokenizerFast) -> Any:
    """Return the architecture's own processor, for patches of 8 pixels."""
    sizes = {"shortest_edge": 32 * 32, "longest_edge": LARGEST_SIDE * LARGEST_SIDE}
    images = Qwen2VLImageProcessorPil(patch_size=8, merge_size=2, temporal_patch_size=2, size=sizes)
    return without_video(Qwen3VLProcessor)(images, tokenizer, chat_template=CHAT_TEMPLATE)


def build(
    output: Path,
    *,
    seed: int = 0,
    scenes: int = 3000,
    base_steps: int = 700,
    habit_steps: int = 150,
    held_out: int = 200,
) -> dict[str, dict[str, float]]:
    """Make everything into `output` (`base/` and `sft/`) and return success by question for both policies.

    Raises RuntimeError when the files would be larger than `LARGEST`.
    """
    set_seed(seed)
    clock = Clock()
    tokenizer = make_tokenizer()
    config, processor = make_config(tokenizer), make_processor(tokenizer)
    model = Qwen3VLForConditionalGeneration(config)
    agent = make_agent(model, processor, tokenizer)
    tasks = [make_task("train", seed, i, kind) for i in range(scenes) for kind in ("caption", *QUESTIONS)]
    lessons, images = lessons_of(agent, tasks, ["right"] * len(tasks))
    clock("demonstrations", f"{len(lessons)}, {len(tokenizer)} tokens")
    loss = teach(
        model,
        lessons,
        steps=base_steps,
        batch_size=32,
        learning_rate=1e-3,
        muon_learning_rate=0.02,
        seed=seed,
        images=images,
        on_step=clock.on_step,
    )
    clock("base", f"{sum(p.numel() for p in model.parameters()):,} parameters, loss {loss:.3f}")
    shutil.rmtree(output / "base", ignore_errors=True)
    model.save_pretrained(output / "base")
    processor.save_pretrained(output / "base")
    report = _named("base", evaluate(agent, seed, held_out))

    rng = random.Random(seed)
    tasks = GlanceEnv().make_tasks("train", scenes // 2, seed + 1)
    lessons, images = lessons_of(agent, tasks, [_habit(rng, task["question"]) for task in tasks])
    adapted = adapters_of(model, seed)
    teach(
        adapted,
        lessons,
        steps=habit_steps,
        batch_size=32,
        learning_rate=2e-3,
        seed=seed,
        images=images,
        on_step=clock.on_step,
    )
    clock("adapters", f"{sum(p.numel() for p in adapted.parameters() if p.requires_grad):,} parameters")
    save_adapters(output / "sft", adapted, "builtin:tiny-vl")
    report |= _named("sft", evaluate(make_agent(adapted, processor, tokenizer), seed, held_out))
    clock("evaluation", "")

    write_quality(output, seed, report, 2 * LARGEST)
    return report


def make_agent(model: torch.nn.Module, processor: Any, tokenizer: PreTrainedTokenizerFast) -> TransformersAgent:
    """Return the policy as an agent."""
    base: Any = getattr(model, "get_base_model", lambda: model)()
    vision = VisionProcessor(processor, tokenizer, base.config)
    return TransformersAgent(model, tokenizer, vision=vision, max_turn_tokens=8, max_trajectory_tokens=64)


def lessons_of(
    agent: TransformersAgent, tasks: Sequence[Mapping[str, Any]], routes: Sequence[str]
) -> tuple[list[TokenArrays], list[Images]]:
    """Return a conversation for each task: the question as the policy reads it, and the route's answer."""
    env, chat = GlanceEnv(), agent.chat
    lessons: list[TokenArrays] = []
    shown: list[Images] = []
    for number, (task, route) in enumerate(zip(tasks, routes, strict=True)):
        prompt, images = chat.seen(env.reset(task)[1])
        said = [*chat.encode(env.demonstrate(task, route, number).next(None)), chat.stop_ids[0]]
        ids = np.array([*prompt, *said], np.int32)
        mask = np.arange(len(ids)) >= len(prompt)
        lessons.append(TokenArrays(ids, mask, np.zeros(len(ids), np.float32), np.where(mask, 0, -1).astype(np.int16)))
        shown.append(images)
    return lessons, shown


def evaluate(agent: TransformersAgent, seed: int, n: int) -> dict[str, dict[str, float]]:
    """Measure success on `n` held-out tasks by question and overall: greedy, at temperature 1, and greedy with each
    picture replaced by a grey one."""
    found: dict[str, dict[str, float]] = {}
    for name, temperature, blank in (("greedy", 0.0, False), ("sampled", 1.0, False), ("blank", 0.0, True)):
        env = GlanceEnv(blank=blank)
        tasks = env.make_tasks("eval", n, seed)
        with agent.settings(temperature=temperature):
            trajectories = env.run_trial(tasks, agent, 1, seed=seed)["trajectories"]
        found[name] = success_by_question(tasks, trajectories)
    return found


def _named(policy: str, found: Mapping[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    return {f"{policy} {name}": values for name, values in found.items()}


def _habit(rng: random.Random, question: str) -> str:
    habit, right = HABITS[question]
    draw = rng.random()
    return "neighbour" if draw < habit else "right" if draw < habit + right else "guess"


if __name__ == "__main__":
    main(build, HOME)
