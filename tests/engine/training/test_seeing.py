"""Learning from images: loss and gradients are TRL's own, and a step encodes each picture once."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import get_peft_model
from torch.nn.functional import pad
from trl.trainer.grpo_trainer import GRPOTrainer

from grpo_tui.configs.loading import load_config
from grpo_tui.configs.schema import RunConfig
from grpo_tui.configs.sections.model import LoraSection, ModelConfig
from grpo_tui.engine.agents.transformers_agent import TransformersAgent
from grpo_tui.engine.demonstration.visual.glance import GlanceEnv
from grpo_tui.engine.policy.models import load_policy, load_vision, lora_config
from grpo_tui.engine.policy.versions import OLD_CHECKPOINTING
from grpo_tui.engine.policy.vision.inputs import VisionModel
from grpo_tui.engine.policy.vision.processor import stack_inputs
from grpo_tui.engine.rollouts.prompts import check_tasks
from grpo_tui.engine.rollouts.replay import ReplayBuffer
from grpo_tui.engine.rollouts.runner import DataError, Row
from grpo_tui.engine.rollouts.trial import rollouts_from_trial
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.engine.training.env_trainer import GRPOEnvTrainer
from grpo_tui.engine.training.rft import run_rft
from grpo_tui.envs.agent import Message
from grpo_tui.envs.base import StepResult
from grpo_tui.envs.calculator import CalculatorEnv
from grpo_tui.envs.content import ImageBlock, Picture, TextBlock
from grpo_tui.envs.multi_turn import MultiTurnEnv
from tests.engine.agents.seeing_models import agent, model, picture, processor, tokenizer

from .parts import arguments
from .parts import policy as words
from .parts import tokenizer as text_tokenizer
from .pictures import make_pictures

pytestmark = pytest.mark.skipif(OLD_CHECKPOINTING, reason="vision policies need transformers 5.23")


class LookEnv(MultiTurnEnv):
    """Shows a picture of the task's own size, and another one after each turn; `turns` ends it."""

    broken: ClassVar[set[int]] = set()

    def __init__(self, tokenizer: Any = None, *, turns: int = 1) -> None:
        super().__init__(tokenizer, max_turns=turns, prompt_style="terse")
        self.turns = turns

    def reset(self, task: Any) -> Any:
        n = int(task["index"])
        shown = ImageBlock(type="image", image=picture(24 + 8 * (n % 3), 32, n))
        return [n, 0], [
            Message(role="user", content=[shown, TextBlock(type="text", text="What colour? " * (1 + n % 2))])
        ]

    def step(self, state: Any, call: Any) -> StepResult:
        state[1] += 1
        length = len(str(call.arguments["text"]))
        images: tuple[Picture, ...] = (picture(32, 24 + 8 * (length % 2), state[0]),)
        return StepResult("box", float(length % 3), done=state[1] >= self.turns, images=images)


def rows(n: int, turns: int = 1) -> list[dict[str, Any]]:
    config = json.dumps({"turns": turns})
    path = f"{__name__}.LookEnv"
    return [{"env_class_path": path, "env_config": config, "task_data": json.dumps({"index": i})} for i in range(n)]


def policy(architecture: str, lora: bool, vision: bool = False) -> Any:
    net: Any = model(architecture, end_bias=2.0)
    if lora:
        torch.manual_seed(0)
        net = get_peft_model(net, lora_config(LoraSection(r=4, vision=vision), net))
        for name, parameter in net.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1)
    return net


def trainer_of(folder: Any, architecture: str, net: Any, turns: int = 1, packed: bool = True, **changes: Any) -> Any:
    return GRPOEnvTrainer(
        agent(architecture, net, max_turn_tokens=6),
        tokenizer(architecture),
        args=arguments(folder, **changes),
        train_dataset=Dataset.from_list(rows(4, turns)),
        model=net,
        packed=packed,
    )


def as_trl(batch: Any, rollouts: Any, architecture: str, pad_id: Any, image_id: int) -> dict[str, Any]:
    """The same batch as TRL lays it out: prompts padded on the left, completions on the right, pixels beside them."""
    ids, attention, agent_mask = (batch[k] for k in ("prompt_completion_ids", "attention_mask", "agent_token_mask"))
    cuts = [r.prompt_length for r in rollouts]
    ends = [len(r) for r in rollouts]
    left, right = max(cuts), max(e - c for e, c in zip(ends, cuts, strict=True))

    def lay(values: torch.Tensor, fill: float) -> tuple[torch.Tensor, torch.Tensor]:
        before = [pad(v[:c], (left - c, 0), value=fill) for v, c in zip(values, cuts, strict=True)]
        after = [pad(v[c:e], (0, right - e + c), value=fill) for v, c, e in zip(values, cuts, ends, strict=True)]
        return torch.stack(before), torch.stack(after)

    prompt_ids, completion_ids = lay(ids, pad_id)
    prompt_mask, completion_mask = lay(attention, 0)
    kinds = (torch.cat([prompt_ids, completion_ids], 1) == image_id).long()
    name = {"gemma3": "token_type_ids", "llava": ""}.get(architecture, "mm_token_type_ids")
    return {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "tool_mask": lay(agent_mask, 0)[1],
        "advantages": torch.tensor([r.advantage for r in rollouts]),
        "num_items_in_batch": agent_mask.sum(),
        "num_images": [len(r.images) for r in rollouts],
        **stack_inputs([image for r in rollouts for image in r.images]),
        **({name: kinds} if name else {}),
    }


EACH = {
    *(("qwen3_vl", True, True), ("qwen3_vl", False, True), ("qwen3_vl", True, False)),
    *(("gemma3", True, False), ("llava", True, True), ("llava", False, False)),
}
"""Each architecture, and both values of `lora` and `packed`; gemma3 is never packed."""


@pytest.mark.parametrize(
    ("architecture", "lora", "packed"),
    [
        pytest.param(*case, marks=[pytest.mark.stress] * (case not in EACH))
        for case in itertools.product(("qwen3_vl", "gemma3", "llava"), (True, False), (True, False))
    ],
)
def test_loss_and_gradients_of_a_single_turn_with_images_equal_those_of_trl(tmp_path, architecture, lora, packed):
    net = policy(architecture, lora)
    ours = trainer_of(tmp_path, architecture, net, packed=packed, per_device_train_batch_size=8)
    assert ours.packed == (packed and architecture != "gemma3")
    inputs = [row for row in rows(2) for _ in range(4)]
    net.train()
    batch = ours._generate_and_score_completions(inputs)
    batch["rollouts"] = ours.rollouts.batch
    stock = GRPOTrainer(
        model=net,
        reward_funcs=lambda **_: [0.0],
        args=arguments(tmp_path / "stock", per_device_train_batch_size=8),
        train_dataset=Dataset.from_list([{"prompt": "x"}]),
        processing_class=processor(architecture),
    )
    stock.current_gradient_accumulation_steps = 1
    image_id = ours.policy.base.config.image_token_id
    theirs = as_trl(batch, ours.rollouts.batch, architecture, tokenizer(architecture).pad_token_id, image_id)
    gradients, losses = [], []
    for compute in (lambda: ours.compute_loss(net, batch), lambda: stock._compute_loss(net, theirs)):
        net.zero_grad()
        inner = getattr(net, "get_base_model", lambda: net)()
        inner.model.rope_deltas = None  # what an earlier pass left there
        loss = compute()
        loss.backward()
        losses.append(float(loss.detach()))
        gradients.append({n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None})
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    mine, expected = gradients
    assert mine.keys() == expected.keys()
    for name in mine:
        scale = max(1.0, expected[name].abs().max().item())
        assert (mine[name] - expected[name]).abs().max().item() <= 1e-5 * scale, name
    assert max(g.abs().max() for g in expected.values()) > 1e-4


@pytest.mark.parametrize("vision", [False, True])
def test_training_over_several_turns_learns_and_encodes_each_picture_once(tmp_path, vision):
    net = policy("qwen3_vl", lora=True, vision=vision)
    trainer = trainer_of(tmp_path, "qwen3_vl", net, turns=3, beta=0.1, max_steps=2)
    base = net.get_base_model()
    seeing = VisionModel.of(base)
    assert seeing is not None
    before = {n: p.detach().clone() for n, p in net.named_parameters() if p.requires_grad}
    trainer.train()
    rollouts = trainer.rollouts.generated
    assert {len(r.images) for r in rollouts} == {3}
    assert not any((r.token_ids[r.agent_mask] == base.config.image_token_id).any() for r in rollouts)
    if not vision:
        different = 4 * 3  # of a task: its own, and one of two that its tool shows
        assert seeing.tower.encoded <= different, "by acting, the reference and the loss of both steps together"
    changed = [n for n, p in net.named_parameters() if n in before and bool((p != before[n]).any())]
    assert any("visual" in n for n in changed) == vision
    assert any("language_model" in n for n in changed)


def test_experts_of_a_model_that_sees_are_balanced(tmp_path):
    trainer = trainer_of(tmp_path, "qwen3_vl_moe", policy("qwen3_vl_moe", lora=True), max_steps=1)
    trainer.train()
    assert any(r.images for r in trainer.rollouts.batch)
    assert trainer.state.log_history[0]["aux_loss"] > 0


OWN_WORDS = "a message contains the model's image token"


def test_a_picture_that_cannot_be_shown_fails_its_own_rollouts(tmp_path):
    env = LookEnv(tokenizer("qwen3_vl"))
    acting = agent("qwen3_vl", max_turn_tokens=4)

    def broken() -> Any:
        raise ValueError("the file is cut off")

    ordinary = env.reset

    def reset(task: Any) -> Any:
        state, messages = ordinary(task)
        if task["index"] == 1:
            messages[0]["content"][0] = ImageBlock(type="image", image=Picture("x.png", broken))
        if task["index"] == 2:
            messages[0]["content"][1] = TextBlock(type="text", text="what is <|image_pad|>?")
        return state, messages

    env.reset = reset
    env.turns = env.max_turns = 2
    answer = env.step

    def step(state: Any, call: Any) -> StepResult:
        result = answer(state, call)
        return StepResult("it says <|image_pad|>") if state[0] == 3 else result

    env.step = step
    result = env.run_trial([{"index": i} for i in range(4)], acting, 2, seed=0)
    told = [t.error for t in result["trajectories"]]
    assert told[0] is None and told[1] is None
    assert told[2] == told[3] == "prompt: the image x.png cannot be loaded: the file is cut off"
    assert "image tokens (" in str(told[4])
    assert told[6] == "step 1: the text has 1 image tokens, but its 0 images need 0: " + OWN_WORDS
    seen = result["trajectories"][0].seen
    assert [(s.width, s.height, s.tokens) for s in seen] == [(24, 32, 12)]


def test_files_of_every_kind_are_trained_on_or_fail_alone(tmp_path):
    """Through the whole training: what can be shown has a reward, what cannot says why, and the step is taken."""
    files = make_pictures(tmp_path)
    missing = files.pop("missing")

    def config(files: dict[str, str]) -> RunConfig:
        path, lines = tmp_path / "rows.jsonl", []
        for kind, file in files.items():
            asked = [{"type": "image", "image": file}, {"type": "text", "text": "what colour?"}]
            task = {"messages": [{"role": "user", "content": asked}], "answer": "red", "kind": kind}
            lines.append({"env_class_path": "grpo_tui.envs.chat.ChatEnv", "env_config": {}, "task_data": task})
        path.write_text("".join(json.dumps(row) + "\n" for row in lines))
        short = {"max_steps": 1, "prompts_per_step": len(files), "num_generations": 4, "eval_every": 0, "save_every": 0}
        short["max_trajectory_tokens"] = 256
        words = [f"training.{key}={value}" for key, value in short.items()]
        words += [
            f"data.source={path}",
            "environment.eval_tasks=0",
            f"training.output_dir={tmp_path / 'out'}",
        ]
        return load_config("tiny_vl", words)

    run = tmp_path / "run"
    writer = RunWriter(run)
    try:
        with pytest.raises(DataError, match=r"row 2: .*there is no image .*missing"):
            run_rft(config({"red": files["red"], "missing": missing}), run, writer)
        assert run_rft(config(files), run, writer)
    finally:
        writer.close()
    with RunReader(run) as reader:
        assert reader.metrics.last_step() == 1
        found = [reader.bodies.trajectory(row.n).trajectory for row in reader.rollouts.page(limit=100)]
    told: dict[str, set[str | None]] = {}
    for one in found:
        told.setdefault(str(one.task["kind"]), set()).add(one.error)
    assert len(found) == 4 * len(files) and told.keys() == files.keys()
    for kind in ("red", "blue", "cmyk", "animated"):
        assert told[kind] == {None}
    for kind, why in {"broken": "cannot be read as an image", "huge": "7,000 x 7,000 pixels"}.items():
        (said,) = told[kind]
        assert said is not None and why in said, kind


def test_a_task_that_cannot_fit_or_be_seen_is_said_before_training():
    path, config = "grpo_tui.engine.demonstration.visual.glance.GlanceEnv", json.dumps({})
    env = GlanceEnv()
    tasks = [Row(path, json.loads(config), task) for task in env.make_tasks("train", 2, 0)]
    acting = agent("qwen3_vl")
    check_tasks(tasks, lambda row: env, acting, 512)
    with pytest.raises(DataError, match=r"36 of them for 1 images; with its answer it may have at most 40"):
        check_tasks(tasks, lambda row: env, acting, 40)
    assert acting.chat.vision is not None
    acting.chat.vision.max_images = 0
    with pytest.raises(DataError, match=r"shows 1 images, but model.max_images is 0"):
        check_tasks(tasks, lambda row: env, acting, 512)
    blind = TransformersAgent(words(), text_tokenizer())
    with pytest.raises(DataError, match=r"model\.base does not support images"):
        check_tasks(tasks, lambda row: env, blind, 512)
    sums: Any = CalculatorEnv()
    tasks = [Row("calculator", {}, task) for task in sums.make_tasks("train", 2, 0)]
    check_tasks(tasks, lambda row: sums, blind, 1024)
    with pytest.raises(DataError, match=r"task 0: its prompt has \d+ tokens; with its answer it may have at most 40"):
        check_tasks(tasks, lambda row: sums, blind, 40)


def test_the_built_in_policy_that_sees_answers_from_the_picture_and_has_a_habit_to_lose():
    tasks = GlanceEnv().make_tasks("eval", 48, 5)

    def success(adapters: str | None, blank: bool = False, temperature: float = 0.0) -> float:
        config = ModelConfig(base="builtin:tiny-vl", sft_adapters=adapters)
        net, words_of = load_policy(config, adapters=adapters, trainable=False)
        acting = TransformersAgent(
            net, words_of, vision=load_vision(config, net, words_of), temperature=temperature, max_turn_tokens=8
        )
        trajectories = GlanceEnv(blank=blank).run_trial(tasks, acting, 1, seed=0)["trajectories"]
        assert [(s.width, s.height, s.tokens) for s in trajectories[0].seen] == [(48, 48, 9)]
        return sum(bool(t.correct) for t in trajectories) / len(tasks)

    assert success(None) > 0.9
    assert success(None, blank=True) < 0.6
    assert 0.05 < success("builtin:tiny-vl-sft", temperature=1.0) < 0.6


def test_replayed_rollouts_keep_their_images_over_a_checkpoint(tmp_path):
    acting = agent("qwen3_vl", max_turn_tokens=4)
    result = LookEnv(turns=2).run_trial([{"index": 0}, {"index": 1}], acting, 2, seed=0)
    rollouts = [
        replace(r, advantages=np.where(r.agent_mask, 1.0, 0.0).astype(np.float32))
        for r in rollouts_from_trial(result, [0, 1], 2)
    ]
    buffer = ReplayBuffer(capacity=8, seed=0)
    buffer.add(rollouts)
    buffer.save(tmp_path)
    again = ReplayBuffer(capacity=8, seed=0)
    again.load(tmp_path)
    before, after = buffer.entries, again.entries
    assert [[i.key for i in r.images] for r in after] == [[i.key for i in r.images] for r in before]
    assert {len(r.images) for r in after} == {2}
    first, kept = before[0].images[0], after[0].images[0]
    assert (kept.text, kept.tokens, kept.size, kept.original) == (first.text, first.tokens, first.size, first.original)
    assert all(torch.equal(kept.inputs[name], first.inputs[name]) for name in first.inputs)
    assert sum(len(r.images) for r in after) > len({id(i) for r in after for i in r.images}), "each different one once"
