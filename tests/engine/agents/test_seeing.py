"""Policies that see: what a session with images wrote down equals a fresh pass of transformers over the whole of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from peft import get_peft_model

from grpo_tui.configs.sections.model import LoraSection, ModelConfig
from grpo_tui.engine.agents.session import TransformersSession
from grpo_tui.engine.agents.transformers_agent import TransformersAgent
from grpo_tui.engine.agents.vision_check import check_vision
from grpo_tui.engine.policy.models import lora_config
from grpo_tui.engine.policy.precision import set_arithmetic
from grpo_tui.engine.policy.prepared import PreparedModel
from grpo_tui.engine.policy.versions import OLD_CHECKPOINTING
from grpo_tui.engine.policy.vision.inputs import VisionModel
from grpo_tui.engine.policy.vision.processor import VisionError, stack_inputs
from grpo_tui.envs.agent import Message
from grpo_tui.envs.content import ImageBlock, Picture, TextBlock

from .seeing_models import ARCHITECTURES, agent, model, picture

pytestmark = pytest.mark.skipif(OLD_CHECKPOINTING, reason="vision policies need transformers 5.23")
SIZES = ((24, 24), (40, 16), (16, 56), (33, 47))


def asked(text: str, *pictures: Picture) -> list[Message]:
    shown = [ImageBlock(type="image", image=p) for p in pictures]
    return [Message(role="user", content=[*shown, TextBlock(type="text", text=text)])]


PROMPTS = [
    asked("What colour?", picture(24, 24)),
    asked("no picture here"),
    asked("Which of the two is bigger? " * 2, picture(40, 16), picture(16, 56)),
]


def play(acting: TransformersAgent, seed: int = 0, later: int = 0, ends: tuple[int, ...] = (3, 1, 2, 3, 2, 3)):
    """Two rollouts of three prompts; tools answer with none, one or two pictures, by row and turn."""
    session = acting.start(PROMPTS, 2, seed=seed)
    assert isinstance(session, TransformersSession)
    rows = list(range(6))
    turns: dict[int, list[Any]] = {row: [] for row in rows}
    for turn in range(3):
        for row, said in zip(rows, session.act(rows), strict=True):
            turns[row].append(said)
        rows = [row for row in rows if turn + 1 < ends[row]]
        if not rows:
            break
        shown = [[picture(*SIZES[(row + n) % 4], 7 + later) for n in range((row + turn) % 3)] for row in rows]
        session.observe_seen(rows, [f"box {row}" * (row % 3) for row in rows], shown)
    return session, turns


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_before_training_acting_is_compared_with_the_models_own_pass(architecture, monkeypatch):
    net = model(architecture, end_bias=0.0)
    acting = agent(architecture, net)
    check_vision(acting)
    seeing = VisionModel.of(net)
    assert seeing is not None
    if seeing.has_own_positions:  # as if it had none
        monkeypatch.setattr(VisionModel, "has_own_positions", False)
    elif seeing.two_way:
        seeing.two_way = False
    else:
        return
    with pytest.raises(VisionError, match=r"gives different log-probs when it acts on a cache .* nats apart"):
        check_vision(acting)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_images_are_encoded_in_half_precision(architecture):
    formats: dict[str, Any] = dict.fromkeys(("weights", "compute", "sampling"), "bfloat16")
    net = model(architecture, end_bias=0.0).bfloat16()
    set_arithmetic(net, ModelConfig(**formats))
    check_vision(agent(architecture, net))


def fresh(net: Any, architecture: str, session: TransformersSession, row: int) -> np.ndarray:
    """Log-probs of all tokens after the first: the model's own forward with ids, pixels and token types."""
    tokens = torch.as_tensor(session.tokens(row).token_ids.astype(np.int64))[None]
    base = getattr(net, "get_base_model", lambda: net)()
    kinds = (tokens == base.config.image_token_id).long()
    given: dict[str, Any] = {}
    images = [shown.image for shown in session.shown(row)]
    if images:
        if architecture in ("idefics3", "smolvlm"):  # pads images of one row to one size: here each goes with its own
            given["mm_encoder_outputs"] = {"image": _one_by_one(base, images)}
        else:
            given |= stack_inputs(images)
    name = "token_type_ids" if architecture == "gemma3" else "mm_token_type_ids"
    if images and (architecture == "gemma3" or architecture.startswith("qwen")):
        given[name] = kinds
    if architecture.startswith("qwen"):
        base.model.rope_deltas = None
    with torch.no_grad():
        logits = net(input_ids=tokens, attention_mask=torch.ones_like(tokens), **given).logits[0, :-1].double()
    return logits.log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0].numpy()


def _one_by_one(base: Any, images: Any) -> Any:
    made = [base.model.get_image_features(**image.inputs, return_dict=True) for image in images]
    made[0].pooler_output = [part for one in made for part in one.pooler_output]
    return made[0]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_log_probs_of_sessions_with_images_equal_a_fresh_forward_pass(architecture):
    net = model(architecture)
    session, turns = play(agent(architecture, net))
    count = 0
    for row in range(6):
        arrays = session.tokens(row)
        mask = arrays.agent_mask[1:]
        expected = fresh(net, architecture, session, row)
        np.testing.assert_allclose(arrays.logprobs[1:][mask], expected[mask], atol=1e-4)
        assert not np.isin(arrays.token_ids[arrays.agent_mask], net.config.image_token_id).any()
        count += int(mask.sum())
    assert count > 40
    assert len({end - start for row in turns.values() for start, end in (t.token_span for t in row)}) > 2
    assert any(len(session.shown(row)) > 2 for row in range(6))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_next_turn_depends_on_the_pixels_of_a_tools_image(architecture):
    net = model(architecture)
    session, _ = play(agent(architecture, net, max_turn_tokens=3), ends=(1, 1, 2, 1, 2, 1))
    row = 4  # its tool showed two pictures
    arrays, images = session.tokens(row), session.shown(row)
    assert [shown.turn for shown in images] == [-1, -1, 0]
    last = np.flatnonzero(arrays.turn == 1)[0]
    before = fresh(net, architecture, session, row)
    changed = agent(architecture, net, max_turn_tokens=3)
    again = changed.start([PROMPTS[2]], 1, seed=0)
    assert isinstance(again, TransformersSession)
    other, _ = play(changed, later=1, ends=(1, 1, 2, 1, 2, 1))
    assert other.tokens(row).token_ids[:last].tolist() == arrays.token_ids[:last].tolist()
    assert abs(fresh(net, architecture, other, row)[last - 1] - before[last - 1]) > 1e-4


def scored(net: Any, session: TransformersSession, *, packed: bool = True) -> tuple[PreparedModel, Any]:
    prepared = PreparedModel(net, packed=packed)
    arrays = [session.tokens(row) for row in range(6)]
    images = [[shown.image for shown in session.shown(row)] for row in range(6)]
    masks, turns = [a.agent_mask for a in arrays], [a.turn for a in arrays]
    return prepared, prepared.score([a.token_ids for a in arrays], masks, turns, images)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_passes_of_a_training_step_see_what_the_policy_saw_and_share_its_encoding(architecture):
    net = model(architecture).requires_grad_(False)
    session, _ = play(agent(architecture, net))
    seeing = VisionModel.of(net)
    assert seeing is not None
    different = {shown.image.key for row in range(6) for shown in session.shown(row)}
    shown = sum(len(session.shown(row)) for row in range(6))
    assert seeing.tower.encoded == len(different) < shown, "each image once, not once for every rollout"
    results = []
    for packed in (True, False):
        prepared, scores = scored(net, session, packed=packed)
        unpacked = ("gemma3", "qwen3_5")  # attention both ways over an image, recurrent layers
        assert prepared.packed == (packed and architecture not in unpacked)
        prepared.restore()
        for row in range(6):
            arrays = session.tokens(row)
            mask = arrays.agent_mask
            np.testing.assert_allclose(scores.logprobs[row][mask], arrays.logprobs[mask], atol=1e-4)
        results.append(scores)
    for one, other in zip(*(r.embeddings for r in results), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    assert seeing.tower.encoded == len(different), "the passes over them encode none again"


@pytest.mark.parametrize("architecture", ["qwen3_vl", "gemma3"])
@pytest.mark.parametrize("vision", [False, True])
def test_log_probs_are_exact_with_adapters_and_features_follow_those_on_the_tower(architecture, vision):
    base = model(architecture)
    net: Any = get_peft_model(base, lora_config(LoraSection(r=4, vision=vision), base))
    adapted = [name for name, _ in net.named_parameters() if "lora_B" in name]
    assert any("vis" in name for name in adapted) == vision
    for name, parameter in net.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    session, _ = play(agent(architecture, net))
    for row in range(6):
        arrays, expected = session.tokens(row), fresh(net, architecture, session, row)
        mask = arrays.agent_mask[1:]
        np.testing.assert_allclose(arrays.logprobs[1:][mask], expected[mask], atol=1e-4)
    seeing = VisionModel.of(base)
    assert seeing is not None
    images = [shown.image for shown in session.shown(0)][:1]
    with net.disable_adapter():
        plain: Any = seeing.tower.features(images)["image"].pooler_output
    adapted_now: Any = seeing.tower.features(images)["image"].pooler_output
    assert bool((plain[0] != adapted_now[0]).any()) == vision
    assert adapted_now[0].requires_grad == vision


def test_an_image_token_is_never_written():
    net = model("qwen3_vl", end_bias=0.0)
    head: Any = net.get_output_embeddings()
    head.bias = torch.nn.Parameter(torch.zeros(head.out_features))
    head.bias.data[net.config.image_token_id] = 50.0
    for temperature in (0.0, 1.0):
        session = agent("qwen3_vl", net, temperature=temperature).start([PROMPTS[0]], 1, seed=0)
        session.act([0])
        arrays = session.tokens(0)
        assert arrays.agent_mask.sum() == 8
        assert not (arrays.token_ids[arrays.agent_mask] == net.config.image_token_id).any()


def test_a_row_that_skips_turns_is_encoded_again_with_its_images():
    net = model("qwen2_5_vl")
    session = agent("qwen2_5_vl", net, max_turn_tokens=4).start(PROMPTS, 2, seed=3)
    assert isinstance(session, TransformersSession)
    everybody = list(range(6))
    session.act(everybody)
    session.observe_seen(everybody, ["red"] * 6, [[picture(24, 40, row)] for row in everybody])
    for turn in range(2):  # row 0 alone: the others lose their places
        session.act([0])
        session.observe_seen([0], ["mask 12"], [[picture(40, 24, turn)]])
    session.act(everybody[::-1])
    for row in everybody:
        arrays, expected = session.tokens(row), fresh(net, "qwen2_5_vl", session, row)
        mask = arrays.agent_mask[1:]
        np.testing.assert_allclose(arrays.logprobs[1:][mask], expected[mask], atol=1e-4)


def test_tools_answer_as_users_where_the_template_drops_a_tools_images():
    chat = agent("qwen3_vl").chat
    assert chat.vision is not None
    assert chat.answering_tools().observation_role == "tool"
    shows = str(chat.vision.processor.chat_template)
    dropping = shows.replace("b['type'] == 'image'", "b['type'] == 'image' and m['role'] != 'tool'")
    dropping = dropping.replace("{{ b['text'] }}", "{{ b['text'] if b['type'] == 'text' else '' }}")
    chat.vision.processor.chat_template = dropping
    try:
        assert chat.answering_tools().observation_role == "user"
    finally:
        chat.vision.processor.chat_template = shows
