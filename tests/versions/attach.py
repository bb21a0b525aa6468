"""Train a small model for two steps with the TRL of this environment, and compare the record with TRL's own numbers.

python -m tests.versions.attach     prints one line; exit code 1 where they differ
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, set_seed
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

import grpo_tui.trl
from grpo_tui.engine.runs.read.reader import RunReader

BASE = Path(__file__).parents[2] / "engine" / "demonstration" / "policies" / "base"


def letters(completions: list[Any], **columns: Any) -> list[float]:
    return [sum(t.isalpha() for t in text) / max(1, len(text)) for text in completions]


def main() -> int:
    set_seed(3)
    special = json.loads((BASE / "tokenizer_config.json").read_text())
    names = {name: special[name] for name in ("pad_token", "eos_token") if special.get(name)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(BASE / "tokenizer.json"), model_input_names=["input_ids", "attention_mask"], **names
    )
    padding: Any = {"pad_token_id": tokenizer.pad_token_id}
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=16,
        num_attention_heads=2, num_key_value_heads=1, **padding,
    )  # fmt: skip
    made: Any = {"reward_funcs": [letters], "processing_class": tokenizer}
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=f"{folder}/out", max_steps=2, per_device_train_batch_size=8, num_generations=4, use_cpu=True,
            max_completion_length=8, bf16=False, report_to=[], logging_steps=1, save_strategy="no",
        )  # fmt: skip
        rows = [{"prompt": f"colour at {i} {i}?"} for i in range(8)]
        trainer = GRPOTrainer(
            model=Qwen3ForCausalLM(config), args=arguments, train_dataset=Dataset.from_list(rows), **made,
        )  # fmt: skip
        attached = grpo_tui.trl.attach(trainer, run="run", runs_dir=folder)
        kept: list[tuple[str, float, float, list[int]]] = []
        generate = trainer._generate_and_score_completions

        def keeping(inputs: Any) -> Any:
            batch = generate(inputs)
            ids = [
                row[mask.bool()].tolist()
                for row, mask in zip(batch["completion_ids"], batch["completion_mask"], strict=True)
            ]
            logs = trainer._logs
            columns = logs["completion"], logs["rewards"]["letters"], logs["advantages"]
            kept.extend(zip(*(list(column)[-8:] for column in columns), ids, strict=True))
            return batch

        trainer._generate_and_score_completions = keeping
        trainer.train()
        with RunReader(Path(folder, "run")) as reader:
            page = reader.rollouts.page(limit=100)
            equal = 0
            for row, (text, reward, advantage, ids) in zip(sorted(page, key=lambda r: r.n), kept, strict=True):
                record = reader.bodies.trajectory(row.n)
                tokens = reader.bodies.tokens(row.n)
                own = [] if tokens is None else list(tokens.token_ids)[-len(ids) :]
                near = abs((row.reward or 0) - reward) < 1e-6 and abs((row.advantage or 0) - advantage) < 1e-6
                equal += near and record.trajectory.steps[0].text == text and own == ids
    versions = f"TRL {metadata.version('trl')}, transformers {metadata.version('transformers')}"
    print(f"{versions}: {attached.source}, {len(page)} rollouts, {equal} of {len(kept)} equal")
    return int(equal != len(kept) or not kept)


if __name__ == "__main__":
    sys.exit(main())
