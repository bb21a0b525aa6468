"""What `grpo_tui.trl.attach` costs the training's own thread: a small GRPO training of stock TRL on a CPU, recorded.

    python -m benchmarks.attach --steps 20

A tiny policy makes short steps, so this is the dearest case; to reach: 1 % of the step.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from pathlib import Path

from datasets import Dataset
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

import grpo_tui.trl as hook
from grpo_tui.engine.demonstration import policies


def letters(completions: list[str], **columns: object) -> list[float | None]:
    return [sum(t.isalpha() for t in text) / max(1, len(text)) for text in completions]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=64, help="of a completion, at most")
    given = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(Path(policies.__file__).parent / "base")
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=256, num_hidden_layers=4, head_dim=32,
        num_attention_heads=4, num_key_value_heads=2, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        args = GRPOConfig(
            output_dir=f"{folder}/out", max_steps=given.steps, per_device_train_batch_size=16, num_generations=4,
            max_completion_length=given.tokens, use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        )  # fmt: skip
        rows = Dataset.from_list([{"prompt": f"colour at {i} {i}?"} for i in range(64)])
        trainer = GRPOTrainer(
            model=Qwen3ForCausalLM(config), reward_funcs=letters, args=args, train_dataset=rows,
            processing_class=tokenizer,
        )  # fmt: skip
        attached = hook.attach(trainer, run="benchmark", runs_dir=folder)  # type: ignore[arg-type]
        began = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            trainer.train()
        took = time.perf_counter() - began
    share = attached.seconds / took
    print(f"{given.steps} steps of 16 rollouts: {took / given.steps:.2f} s a step, of which recording {share:.2%}")


if __name__ == "__main__":
    main()
