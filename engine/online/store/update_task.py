"""What one update learns from: `UpdateTask`, and how it is put into bytes.

The bytes are one safetensors file, tensors plus one JSON header: nothing in it can run code when it is read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from ....configs.errors import GrpoTuiError
from ...policy.kl import KLDirections, TopKDistribution, kl_directions, top_k_directions, top_k_distribution

LearningRateKind = Literal["lr_correction", "lr_adaptive"]


class TaskError(GrpoTuiError, ValueError):
    """A task that must not be applied; the message says what is wrong with it."""


@dataclass(frozen=True)
class OriginalLogits:
    """What the answering policy thought at each of the A agent tokens of an experience.

    Either `full`: logits float32 [A, V]; or `top`: its k likeliest tokens and one tail bucket, for vocabularies of
    which a token's logits alone take hundreds of kilobytes. The KL to it is then a lower bound of the exact one.
    """

    full: Tensor | None = None
    top: TopKDistribution | None = None

    @classmethod
    def of(cls, logits: Tensor, top_k: int | None) -> OriginalLogits:
        """Keep [A, V] logits: all of them, or `top_k` and the tail."""
        if top_k is None or top_k >= logits.shape[-1]:
            return cls(full=logits.detach().float().cpu())
        top = top_k_distribution(logits.detach(), top_k)
        return cls(top=TopKDistribution(top.indices.int().cpu(), top.logprobs.cpu(), top.tail.cpu()))

    @property
    def kind(self) -> str:
        """`full`, or `top-<k>+tail`."""
        return "full" if self.top is None else f"top-{self.top.indices.shape[-1]}+tail"

    def __len__(self) -> int:
        kept = self.full if self.top is None else self.top.tail
        return 0 if kept is None else int(kept.shape[0])

    def kl(self, policy_logits: Tensor) -> KLDirections:
        """KL per token between a policy's logits [A, V] at the same tokens and these: reverse and forward, [A]."""
        if self.top is not None:
            top = self.top
            device = policy_logits.device
            return top_k_directions(
                policy_logits,
                TopKDistribution(top.indices.to(device), top.logprobs.to(device), top.tail.to(device)),
            )
        assert self.full is not None
        return kl_directions(policy_logits, self.full.to(policy_logits.device))

    def finite(self) -> bool:
        """No NaN anywhere; −∞ (an impossible token) is allowed."""
        kept = (self.full,) if self.top is None else (self.top.logprobs, self.top.tail)
        return not any(bool(t.isnan().any() | t.isposinf().any()) for t in kept if t is not None)


@dataclass(frozen=True)
class Experience:
    """What happened: the candidates' tokens, right-padded to T. B = 1 when only the initial trajectory is learnt from.

    token_ids int64 [B, T]; attention_mask, agent_mask bool [B, T]; turns int16 [B, T] (−1 in prompt and padding);
    logprobs float32 [B, T], behaviour log-probs at agent tokens. Row 0 is the initial trajectory. A = agent tokens of
    all rows, in row-major order: the first axis of `UpdateTask.original_logits`. images[i]: names of the images that
    row i was shown, in the order of their tokens (`images.ImageFolder`); empty where there are none.
    """

    id: str
    token_ids: Tensor
    attention_mask: Tensor
    agent_mask: Tensor
    turns: Tensor
    logprobs: Tensor
    trajectories: tuple[str, ...] = ()
    answers: tuple[str | None, ...] = ()
    pseudo_labels: tuple[str | None, ...] = ()
    confidence: float = 0.0
    images: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class UpdateTask:
    """One update to make. `reward_tensor` float32 [B, S, C]: weighted contribution of each component at each step of
    each candidate, 0 after its last; `components` names the C. `policy_version` is the snapshot that answered, to
    request number `request` of `engine` (its name among those that share a queue, empty for one that has its own)."""

    experience: Experience
    reward_tensor: Tensor
    components: tuple[str, ...]
    learning_rate: float
    learning_rate_kind: LearningRateKind
    original_logits: OriginalLogits
    policy_version: int
    request: int = 0
    engine: str = ""
    created: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The experience's id: what makes at-least-once delivery exactly-once in effect."""
        return self.experience.id

    def check(self, *, max_learning_rate: float, vocabulary: int | None = None) -> None:
        """Raise TaskError for a task that would do harm: NaN, wrong shapes, a learning rate out of bounds."""
        e, rows = self.experience, self.experience.token_ids.shape
        for name in ("attention_mask", "agent_mask", "turns", "logprobs"):
            if getattr(e, name).shape != rows:
                raise TaskError(f"{name} has shape {tuple(getattr(e, name).shape)}, token_ids has {tuple(rows)}")
        if e.images and len(e.images) != rows[0]:
            raise TaskError(f"it names images of {len(e.images)} rows and has {rows[0]}")
        if self.reward_tensor.ndim != 3 or self.reward_tensor.shape[0] != rows[0]:
            raise TaskError(f"the reward tensor has shape {tuple(self.reward_tensor.shape)}, not [{rows[0]}, S, C]")
        if self.reward_tensor.shape[2] != len(self.components):
            raise TaskError(f"the reward tensor has {self.reward_tensor.shape[2]} components, not {self.components}")
        if not bool(torch.isfinite(self.reward_tensor).all()):
            raise TaskError("the reward tensor holds NaN or infinity")
        if not 0 < self.learning_rate <= max_learning_rate:  # also false for NaN
            raise TaskError(f"the learning rate {self.learning_rate} is not in (0, {max_learning_rate}]")
        tokens = int(e.agent_mask.sum())
        if tokens == 0:
            raise TaskError("no token of it was written by the agent")
        if bool(e.agent_mask[:, 0].any()) or bool((e.agent_mask & ~e.attention_mask).any()):
            raise TaskError("the agent mask covers a first token or padding, which nothing predicts")
        if int(e.turns[e.agent_mask].min()) < 0 or int(e.turns.max()) >= self.reward_tensor.shape[1]:
            raise TaskError(f"its turns do not fit the {self.reward_tensor.shape[1]} steps of the reward tensor")
        if len(self.original_logits) != tokens:
            raise TaskError(f"it has {tokens} agent tokens but original logits for {len(self.original_logits)}")
        if not self.original_logits.finite():
            raise TaskError("the original logits hold NaN or infinity")
        if not bool(torch.isfinite(e.logprobs[e.agent_mask]).all()):
            raise TaskError("the behaviour log-probs hold NaN or infinity")
        if int(e.token_ids.min()) < 0 or (vocabulary is not None and int(e.token_ids.max()) >= vocabulary):
            raise TaskError(f"a token id lies outside the vocabulary of {vocabulary}")
        full = self.original_logits.full
        if vocabulary is not None and full is not None and full.shape[-1] != vocabulary:
            raise TaskError(f"the original logits are over {full.shape[-1]} tokens, the vocabulary has {vocabulary}")

    def to_bytes(self) -> bytes:
        """One safetensors file with a JSON header."""
        e = self.experience
        tensors = {
            "token_ids": e.token_ids.to(torch.int32),
            "attention_mask": e.attention_mask.bool(),
            "agent_mask": e.agent_mask.bool(),
            "turns": e.turns.to(torch.int16),
            "logprobs": e.logprobs.float(),
            "reward_tensor": self.reward_tensor.float(),
        }
        if self.original_logits.top is not None:
            top = self.original_logits.top
            tensors |= {"top_indices": top.indices.int(), "top_logprobs": top.logprobs, "tail": top.tail}
        elif self.original_logits.full is not None:
            tensors["logits"] = self.original_logits.full
        header = {
            "id": e.id,
            "trajectories": e.trajectories,
            "answers": e.answers,
            "pseudo_labels": e.pseudo_labels,
            "confidence": e.confidence,
            "images": e.images,
            "components": self.components,
            "learning_rate": self.learning_rate,
            "learning_rate_kind": self.learning_rate_kind,
            "policy_version": self.policy_version,
            "request": self.request,
            "engine": self.engine,
            "created": self.created,
            "facts": self.facts,
        }
        return safetensors.torch.save(
            {k: v.cpu().contiguous() for k, v in tensors.items()}, {"task": json.dumps(header)}
        )

    @staticmethod
    def origin(data: bytes) -> dict[str, Any]:
        """Where a task came from: `request`, `trajectories` (ids), and `engine` if it has a name; without its tensors.

        Empty when it has no such header. Safe for bytes that must not be loaded.
        """
        try:
            header = _header(data)
            named = {"request": int(header["request"]), "trajectories": [str(t) for t in header["trajectories"]]}
            return named | ({"engine": str(header["engine"])} if header.get("engine") else {})
        except (KeyError, ValueError, TypeError):
            return {}

    @staticmethod
    def images(data: bytes) -> set[str]:
        """The names of the images in a task, as `origin` reads it."""
        try:
            return {str(name) for row in _header(data).get("images", ()) for name in row}
        except (KeyError, ValueError, TypeError):
            return set()

    @classmethod
    def from_bytes(cls, data: bytes) -> UpdateTask:
        """The inverse of `to_bytes`. Raises TaskError when the bytes are not a task."""
        try:
            tensors = safetensors.torch.load(data)
            header = _header(data)
            top = None
            if "top_indices" in tensors:
                top = TopKDistribution(tensors["top_indices"], tensors["top_logprobs"], tensors["tail"])
            return cls(
                experience=Experience(
                    id=header["id"],
                    token_ids=tensors["token_ids"].long(),
                    attention_mask=tensors["attention_mask"],
                    agent_mask=tensors["agent_mask"],
                    turns=tensors["turns"],
                    logprobs=tensors["logprobs"],
                    trajectories=tuple(header["trajectories"]),
                    answers=tuple(header["answers"]),
                    pseudo_labels=tuple(header["pseudo_labels"]),
                    confidence=header["confidence"],
                    images=tuple(tuple(map(str, row)) for row in header.get("images", ())),
                ),
                reward_tensor=tensors["reward_tensor"],
                components=tuple(header["components"]),
                learning_rate=header["learning_rate"],
                learning_rate_kind=header["learning_rate_kind"],
                original_logits=OriginalLogits(full=tensors.get("logits"), top=top),
                policy_version=header["policy_version"],
                request=header["request"],
                engine=str(header.get("engine", "")),
                created=header["created"],
                facts=header["facts"],
            )
        except (KeyError, ValueError, TypeError, safetensors.SafetensorError) as error:
            raise TaskError(f"its bytes are not an update task ({error})") from error


def _header(data: bytes) -> dict[str, Any]:
    """The JSON header of a task's bytes. Raises ValueError, KeyError or TypeError when there is none."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["task"])
