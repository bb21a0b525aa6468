"""Train the tiny policy from scratch: `python -m benchmarks.policies.build` (or `make policy`).

The visual environment's demonstrations (see `curriculum`) and a seed determine tokenizer, base and adapters. They are
written to `engine/demonstration/policies` as safetensors. It takes a few minutes on two cores.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, set_seed

from grpo_tui.engine.agents.transformers_agent import TransformersAgent
from grpo_tui.engine.demonstration import policies
from grpo_tui.engine.demonstration.visual import VisualEnv
from grpo_tui.engine.training.demonstrations import play_demonstrations
from grpo_tui.envs.trajectory import TokenArrays

from .common import LARGEST, Clock, adapters_of, main, save_adapters, success_by_question, write_quality
from .curriculum import COMPARISONS, PRACTICE, habit_route, spelling
from .lessons import teach
from .tokenizer import train_tokenizer

HOME = Path(policies.__file__).parent

WORD_IN_PICTURE = re.compile(r'(?<=text )[A-Z]+|(?<="text": ")[A-Z]+')


def tiny_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    """Return the architecture: Qwen3 with about half a million parameters."""
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.encode("<|end|>")[0],
        pad_token_id=tokenizer.encode("<|pad|>")[0],
        known_environments=["visual"],  # type: ignore[call-arg] - others are explained to it in the prompt
    )


def build(
    output: Path,
    *,
    seed: int = 0,
    lessons: int = 3072,
    base_steps: int = 2400,
    comparison_steps: int = 600,
    habit_steps: int = 200,
    held_out: int = 240,
) -> dict[str, dict[str, float]]:
    """Make everything into `output` (`base/` and `sft/`) and return success by question for both policies.

    Raises RuntimeError when the files would be larger than `LARGEST`.
    """
    set_seed(seed)
    clock = Clock()
    env = VisualEnv()
    tasks = VisualEnv(questions=PRACTICE).make_tasks("train", lessons, seed)
    # Collecting observations requires a tokenizer, so start with a byte tokenizer and then train the real one. Leave
    # out the words in pictures, so that none becomes a single token: the policy has to spell them.
    plain = train_tokenizer([])
    played = play_demonstrations(env, tasks[:512], plain, choose=habit_route, seed=seed)
    texts = (str(plain.decode(d.tokens.token_ids)) for d in played)
    tokenizer = train_tokenizer(WORD_IN_PICTURE.sub("", text) for text in texts)
    clock("tokenizer", f"{len(tokenizer)} tokens")

    base_lessons = [d.tokens for d in play_demonstrations(env, tasks, tokenizer)]
    base_lessons += spelling(env, lessons, seed, tokenizer)
    comparisons = _comparison_lessons(env, lessons, seed + 2, tokenizer)
    habit_tasks = env.make_tasks("train", lessons // 3, seed + 1)
    habits = play_demonstrations(env, habit_tasks, tokenizer, choose=habit_route, seed=seed + 1)
    habit_lessons = [d.tokens for d in habits]
    clock("demonstrations", f"{len(base_lessons) + len(comparisons)}, {len(habit_lessons)} for the adapters")

    model = Qwen3ForCausalLM(tiny_config(tokenizer))
    teach(model, base_lessons, steps=base_steps, muon_learning_rate=0.02, seed=seed, on_step=clock.on_step)
    loss = teach(
        model, comparisons, steps=comparison_steps, muon_learning_rate=0.02, seed=seed + 2, on_step=clock.on_step
    )
    clock("base", f"{sum(p.numel() for p in model.parameters()):,} parameters, loss {loss:.3f}")
    shutil.rmtree(output / "base", ignore_errors=True)
    model.save_pretrained(output / "base")
    tokenizer.save_pretrained(output / "base")
    report = {f"base {k}": v for k, v in evaluate(model, tokenizer, env, seed, held_out).items()}

    adapted = adapters_of(model, seed)
    teach(adapted, habit_lessons, steps=habit_steps, learning_rate=2e-3, seed=seed, on_step=clock.on_step)
    clock("adapters", f"{sum(p.numel() for p in adapted.parameters() if p.requires_grad):,} parameters")
    save_adapters(output / "sft", adapted)
    report |= {f"sft {k}": v for k, v in evaluate(adapted, tokenizer, env, seed, held_out).items()}
    clock("evaluation", "")

    write_quality(output, seed, report, LARGEST)
    return report


def _comparison_lessons(
    env: VisualEnv, lessons: int, seed: int, tokenizer: PreTrainedTokenizerFast
) -> list[TokenArrays]:
    """Return the second part of the base's lessons: comparisons, and enough of the rest to not forget it."""
    comparing = VisualEnv(questions=COMPARISONS).make_tasks("train", lessons // 2, seed)
    others = env.make_tasks("train", lessons // 4, seed)
    found = [d.tokens for tasks in (comparing, others) for d in play_demonstrations(env, tasks, tokenizer)]
    return found + spelling(env, lessons // 4, seed, tokenizer)


def evaluate(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast, env: VisualEnv, seed: int, n: int
) -> dict[str, dict[str, float]]:
    """Measure success on `n` held-out tasks by question and overall, greedy and at temperature 1."""
    tasks = env.make_tasks("eval", n, seed)
    agent = TransformersAgent(model, tokenizer, max_turn_tokens=64, max_trajectory_tokens=512)
    found: dict[str, dict[str, float]] = {}
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        with agent.settings(temperature=temperature):
            trajectories = env.run_trial(tasks, agent, 1, seed=seed)["trajectories"]
        found[name] = success_by_question(tasks, trajectories)
    return found


if __name__ == "__main__":
    main(build, HOME)
