"""A tiny policy that calls tools in Qwen's syntax: trained on the spot to know a handful of questions by heart."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any, cast

import torch
import trl
from transformers import AddedToken, Qwen3Config, Qwen3ForCausalLM

from benchmarks.policies.tokenizer import train_tokenizer
from grpo_tui.configs.schema import RunConfig

from .tiny import run_config

TEMPLATE = (Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja").read_text()
MARKS = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


def call(name: str, **arguments: Any) -> str:
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


KNOWN = {
    "Add 2 and 3.": call("add", a=2, b=3),
    "Add 2 and 3, slowly.": "Let me see.\n" + call("add", a=2, b=3),
    "Add twice.": call("add", a=2, b=3) + "\n" + call("add", a=4, b=5),
    "Hello.": "Hi.",
    "Object.": '{"colour": "red"}',
    "List.": "[1, 2]",
}
"""Answers to questions. After the result of a tool, the policy writes `DONE`; after `AGAIN`, `SURE`."""
DONE, AGAIN, SURE = "It is 5.", "Are you sure?", "Yes, 5."


def add_tool(name: str = "add") -> dict[str, Any]:
    number = {"type": "integer"}
    parameters = {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]}
    return {"type": "function", "function": {"name": name, "description": "Adds.", "parameters": parameters}}


def _exchanges() -> list[tuple[str, str]]:
    """Pairs of the end of a prompt and the turn after it."""

    def asked(role: str, text: str) -> str:
        return f"<|im_start|>{role}\n{text}<|im_end|>\n<|im_start|>assistant\n"

    pairs = [(asked("user", question), answer) for question, answer in KNOWN.items()]
    for result in ("5", "9", "2 + 3 = 5", "\n5\n", "an error"):
        pairs.append((asked("user", f"<tool_response>\n{result}\n</tool_response>"), DONE))
    return [*pairs, (asked("user", AGAIN), SURE)]


def _shown(words: Any, name: str, description: str) -> str:
    """The head of a prompt that shows a tool."""
    tool = add_tool(name)
    tool["function"]["description"] = description
    if not description:
        del tool["function"]["description"]
    system = {"role": "system", "content": "You are an assistant that calculates. Use your tools."}
    return str(words.apply_chat_template([system], tools=[tool], tokenize=False))


def train_policy(folder: Path) -> None:
    """Train and save model and tokenizer. Random texts and positions before an exchange make it all that counts."""
    words = train_tokenizer([*(a + b for a, b in _exchanges()), TEMPLATE], vocab_size=1000, numbers=10)
    for mark in MARKS:
        words.add_tokens(AddedToken(mark, special=mark.startswith("<|"), normalized=False))
    words.eos_token, words.chat_template = "<|im_end|>", TEMPLATE
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(words), hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=4096, tie_word_embeddings=True,
        eos_token_id=cast(int, words.eos_token_id),
    )  # fmt: skip
    model, loss = Qwen3ForCausalLM(config), torch.tensor(torch.inf)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.2e-2)
    chance, pairs, steps = random.Random(0), _exchanges(), 140
    shown = [
        words.encode(_shown(words, name, description), add_special_tokens=False)
        for name in ("add", "look_up") for description in ("Adds.", "Add two integers and return their sum.", "")
    ]  # fmt: skip
    encoded = [[words.encode(part, add_special_tokens=False) for part in (a, b + "<|im_end|>")] for a, b in pairs]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.2e-2, total_steps=steps)
    for step in range(steps):
        rows, labels, places = [], [], []
        for prompt, answer in encoded:
            junk = [chance.randrange(len(words)) for _ in range(chance.choice((0, 3, 40)))]
            text = chance.choice(shown)
            start = chance.randrange(len(text))
            junk += text if step % 8 == 7 else text[start : start + 40]
            earlier = chance.choice(encoded)
            known = [*junk, *(earlier[0] + earlier[1] if chance.random() < 0.5 else []), *prompt]
            rows.append([*known, *answer])
            labels.append([-100] * len(known) + answer)
            places.append(chance.randrange(1500))
        width = max(map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        wanted = torch.tensor([row[1:] + [-100] * (width - len(row) + 1) for row in labels])
        positions = torch.arange(width) + torch.tensor(places)[:, None]
        hidden = model.model(input_ids=ids, position_ids=positions).last_hidden_state
        taught = wanted >= 0  # logits of the other positions would take half of the time
        loss = torch.nn.functional.cross_entropy(model.lm_head(hidden[taught]), wanted[taught])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    assert loss.item() < 0.02, f"the policy has not learnt its answers: {loss.item()}"
    model.generation_config.eos_token_id = config.eos_token_id
    model.save_pretrained(folder)
    words.save_pretrained(folder)


def trained_policy(cache: Any) -> Path:
    """The policy, trained once and kept in pytest's cache."""
    folder = cache.mkdir(f"caller-{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]}")
    if not (folder / "tokenizer.json").exists():
        train_policy(folder)
    return folder


def calling_config(caller: Path, folder: Path, **online: Any) -> RunConfig:
    options = {"serve": "127.0.0.1:0", "max_trajectory_tokens": 1536, "max_turn_tokens": 96, **online}
    config = run_config(folder / "policy", **options)
    config.model.base, config.model.sft_adapters = str(caller), None
    config.environment.class_path = "grpo_tui.envs.chat.ChatEnv"
    return config
