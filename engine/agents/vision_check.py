"""Checks, before training a vision-language policy, that acting gives the log-probs of its own forward pass.

Positions, masks over images and states in the module depend on the model's code, and most errors there are silent. So
compare a short session with two pictures to one plain pass over it.
"""

from __future__ import annotations

import inspect

import numpy as np
import torch

from ...envs.agent import Message
from ...envs.content import ImageBlock, Picture, TextBlock
from ..policy.precision import computed_in
from ..policy.prepared import inference
from ..policy.vision.processor import ModelImage, VisionError, stack_inputs
from .session import TransformersSession
from .transformers_agent import TransformersAgent

SIDE = 64
"""Side length of the pictures in pixels."""
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
COARSE = 0.3
"""Tolerance in nats, in half precision."""


def check_vision(agent: TransformersAgent) -> None:
    """Raise VisionError if acting on a cache gives other log-probs than the model's own forward pass."""
    vision_model = agent.decoder.seeing
    if agent.chat.vision is None or vision_model is None:
        return
    with agent.settings(max_turn_tokens=3, max_trajectory_tokens=1 << 16, temperature=1.0):
        session = agent.start([_question(_noise(0))], 1, seed=0)
        assert isinstance(session, TransformersSession)
        first = session.act([0])[0]
        if first.stop_reason == "refused":
            raise VisionError(first.problem)
        session.observe_seen([0], ["now this"], [[_noise(1)]])
        last = session.act([0])[0]
        if last.stop_reason == "refused":
            raise VisionError(last.problem)
    arrays = session.tokens(0)
    expected = plain_logprobs(agent, arrays.token_ids, [shown.image for shown in session.shown(0)])
    session.close()
    mask = arrays.agent_mask[1:]
    off = float(np.abs(arrays.logprobs[1:] - expected)[mask].max(initial=0.0))
    allowed = TOLERANCE.get(computed_in(vision_model.model), COARSE)
    if not off <= allowed:
        raise VisionError(
            f"{type(vision_model.model).__name__} gives different log-probs when it acts on a cache than in one pass "
            f"over the same conversation with its images ({off:.2g} nats apart, {allowed:g} allowed): it cannot be "
            "trained"
        )


def plain_logprobs(agent: TransformersAgent, token_ids: np.ndarray, images: list[ModelImage]) -> np.ndarray:
    """Return the log-probs of every token after the first, float64 [T - 1], by the model's own forward pass on ids,
    pixels and token types."""
    vision_model = agent.decoder.seeing
    assert vision_model is not None
    model, device = vision_model.model, agent.decoder.device
    ids = torch.as_tensor(token_ids.astype(np.int64), device=device)[None]
    known = inspect.signature(model.forward).parameters
    kinds = {
        name: (ids == vision_model.image_id).long() for name in ("token_type_ids", "mm_token_type_ids") if name in known
    }
    pixels = {name: values.to(device) for name, values in stack_inputs(images).items()}
    if hasattr(vision_model.tower.body, "rope_deltas"):  # some models keep the offset of the last conversation
        vision_model.tower.body.rope_deltas = None
    with inference(model):
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **kinds, **pixels).logits
    logprobs = logits[0, :-1].cpu().double().log_softmax(-1).gather(-1, ids[0, 1:, None].cpu())[:, 0]
    return logprobs.numpy()


def _noise(seed: int) -> Picture:
    pixels = np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    return Picture(f"noise-{seed}.png", lambda: pixels)


def _question(picture: Picture) -> list[Message]:
    question = TextBlock(type="text", text="What is it?")
    return [Message(role="user", content=[ImageBlock(type="image", image=picture), question])]
