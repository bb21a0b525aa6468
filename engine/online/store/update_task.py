"""Update tasks: the data of one policy update, and its serialisation.

The bytes are one safetensors file: tensors and a JSON header. Reading them executes no code.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from ....configs.errors import GrpoTuiError
from ....envs.trajectory import TokenArrays
from ...policy.kl import KLDirections, TopKDistribution, kl_directions, top_k_directions, top_k_distribution
from ..voting import LearningRateKind

ROW_FIELDS = ("token_ids", "agent_mask", "logprobs", "turn")
_FULL, _TOP = ("logits",), ("top_indices", "top_logprobs", "tail")
"""The names of the parts of `OriginalLogits`."""


class TaskError(GrpoTuiError, ValueError):
    """A task that must not be applied. The message names the problem."""


@dataclass(frozen=True)
class OriginalLogits:
    """The answering policy's distributions at the A agent tokens of an experience.

    parts: either logits float32 [A, V]. Or, for large vocabularies, the fields of `TopKDistribution`: the k likeliest
    tokens and one bucket for the rest. The KL to these is a lower bound of the exact KL.
    """

    parts: tuple[Tensor, ...]

    @classmethod
    def of(cls, logits: Tensor, top_k: int | None) -> OriginalLogits:
        """Keep logits [A, V]: all of them, or the `top_k` and one bucket for the rest."""
        if top_k is None or top_k >= logits.shape[-1]:
            return cls((logits.detach().float().cpu(),))
        top = top_k_distribution(logits.detach(), top_k)
        return cls((top.indices.int().cpu(), top.logprobs.cpu(), top.tail.cpu()))

    @classmethod
    def joined(cls, logits: Sequence[OriginalLogits]) -> OriginalLogits:
        return cls(tuple(map(torch.cat, zip(*(one.parts for one in logits), strict=True))))

    def at(self, tokens: slice) -> OriginalLogits:
        return OriginalLogits(tuple(part[tokens] for part in self.parts))

    @property
    def kind(self) -> str:
        """`full`, or `top-<k>+tail`."""
        return "full" if len(self.parts) == 1 else f"top-{self.parts[0].shape[-1]}+tail"

    def __len__(self) -> int:
        return len(self.parts[0])

    def kl(self, policy_logits: Tensor) -> KLDirections:
        """Return the reverse and forward KL per token [A] between a policy's logits [A, V] and these distributions."""
        parts = [part.to(policy_logits.device) for part in self.parts]
        if len(parts) == 1:
            return kl_directions(policy_logits, parts[0])
        return top_k_directions(policy_logits, TopKDistribution(*parts))

    def finite(self) -> bool:
        """Return whether no value is NaN or +∞. −∞ (an impossible token) is allowed."""
        return not any(bool(part.isnan().any() | part.isposinf().any()) for part in self.parts)


@dataclass(frozen=True)
class Experience:
    """The B candidates of one request that are used for learning, ragged.

    A is the total number of agent tokens, the first axis of `UpdateTask.original_logits`, row by row. images[i]: the
    names of the images shown in row i (`images.ImageFolder`), in the order of their tokens; empty without images.
    """

    id: str
    rows: tuple[TokenArrays[np.ndarray], ...]
    trajectories: tuple[str, ...] = ()
    answers: tuple[str | None, ...] = ()
    pseudo_labels: tuple[str | None, ...] = ()
    images: tuple[tuple[str, ...], ...] = ()

    @property
    def counts(self) -> list[int]:
        """The number of agent tokens of each row."""
        return [int(row.agent_mask.sum()) for row in self.rows]

    def at_agent_tokens(self, name: str) -> Tensor:
        """Return the values [A] of a row field at the agent tokens."""
        return torch.from_numpy(np.concatenate([getattr(row, name)[row.agent_mask] for row in self.rows]))


@dataclass(frozen=True)
class UpdateTask:
    """One update of the policy.

    reward_tensor: float32 [B, S, C], the weighted contribution of each component at each step of each candidate, 0
    after its last step. components: the names of the C components. policy_version: the snapshot that answered request
    number `request` of `engine` (empty unless engines share the queue).
    """

    experience: Experience
    reward_tensor: Tensor
    components: tuple[str, ...]
    learning_rate: float
    learning_rate_kind: LearningRateKind
    original_logits: OriginalLogits
    policy_version: int
    request: int = 0
    engine: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The experience's id. The queue accepts each id once."""
        return self.experience.id

    def check(self, *, max_learning_rate: float, vocabulary: int | None = None) -> None:
        """Raise TaskError for a harmful task: NaN, wrong shapes, or a learning rate out of bounds."""
        e, rewards = self.experience, self.reward_tensor
        rows = len(e.rows)
        for row in e.rows:
            for name in ROW_FIELDS[1:]:
                if len(getattr(row, name)) != len(row):
                    raise TaskError(f"{name} has length {len(getattr(row, name))}, token_ids has {len(row)}")
        if e.images and len(e.images) != rows:
            raise TaskError(f"it names images for {len(e.images)} rows, but has {rows}")
        if rewards.ndim != 3 or rewards.shape[0] != rows:
            raise TaskError(f"the reward tensor has shape {tuple(rewards.shape)}, not [{rows}, S, C]")
        if rewards.shape[2] != len(self.components):
            raise TaskError(f"the reward tensor has {rewards.shape[2]} components, not {self.components}")
        if not bool(torch.isfinite(rewards).all()):
            raise TaskError("the reward tensor contains NaN or infinity")
        if not 0 < self.learning_rate <= max_learning_rate:  # also false for NaN
            raise TaskError(f"the learning rate {self.learning_rate} is not in (0, {max_learning_rate}]")
        tokens = sum(e.counts)
        if tokens == 0:
            raise TaskError("it has no token that the agent wrote")
        if any(row.agent_mask[:1].any() for row in e.rows):
            raise TaskError("the agent mask covers a first token, which has no log-prob")
        turns = e.at_agent_tokens("turn")
        if int(turns.min()) < 0 or max(int(row.turn.max(initial=-1)) for row in e.rows) >= rewards.shape[1]:
            raise TaskError(f"its turns do not fit the {rewards.shape[1]} steps of the reward tensor")
        if len(self.original_logits) != tokens:
            raise TaskError(f"it has {tokens} agent tokens but original logits for {len(self.original_logits)}")
        if not self.original_logits.finite():
            raise TaskError("the original logits contain NaN or infinity")
        if not bool(torch.isfinite(e.at_agent_tokens("logprobs")).all()):
            raise TaskError("the behaviour log-probs contain NaN or infinity")
        ids = np.concatenate([row.token_ids for row in e.rows])
        if int(ids.min()) < 0 or (vocabulary is not None and int(ids.max()) >= vocabulary):
            raise TaskError(f"a token id is outside the vocabulary of {vocabulary}")
        kept = self.original_logits.parts[0].shape[-1]
        if vocabulary is not None and self.original_logits.kind == "full" and kept != vocabulary:
            raise TaskError(f"the original logits are over {kept} tokens, the vocabulary has {vocabulary}")

    def to_bytes(self) -> bytes:
        """Serialise to one safetensors file. The rows' arrays are concatenated, with `lengths` to split them."""
        e, logits = self.experience, self.original_logits
        joined = {name: np.concatenate([getattr(row, name) for row in e.rows]) for name in ROW_FIELDS}
        tensors = {name: torch.from_numpy(array) for name, array in joined.items()}
        tensors |= {"lengths": torch.tensor([len(row) for row in e.rows]), "reward_tensor": self.reward_tensor.float()}
        tensors |= zip(_FULL if logits.kind == "full" else _TOP, logits.parts, strict=True)
        header = {name: getattr(e, name) for name in _OF_EXPERIENCE} | {name: getattr(self, name) for name in _OF_TASK}
        return safetensors.torch.save(
            {k: v.cpu().contiguous() for k, v in tensors.items()}, {"task": json.dumps(header)}
        )

    @staticmethod
    def origin(data: bytes) -> dict[str, Any]:
        """Read `request`, `trajectories` (ids) and a nonempty `engine` from the header of a task's bytes.

        Returns an empty dict if there is no valid header. Safe for bytes that must not be loaded.
        """
        try:
            header = _header(data)
            origin = {"request": int(header["request"]), "trajectories": [str(t) for t in header["trajectories"]]}
            return origin | ({"engine": str(header["engine"])} if header["engine"] else {})
        except (KeyError, ValueError, TypeError):
            return {}

    @staticmethod
    def images(data: bytes) -> set[str]:
        """Read the names of a task's images from its header."""
        try:
            return {str(name) for row in _header(data)["images"] for name in row}
        except (KeyError, ValueError, TypeError):
            return set()

    @classmethod
    def from_bytes(cls, data: bytes) -> UpdateTask:
        """Parse the bytes of `to_bytes`. Raises TaskError if they are not a task."""
        try:
            tensors = safetensors.torch.load(data)
            header = _header(data)
            names = _FULL if _FULL[0] in tensors else _TOP
            lengths = tensors["lengths"].tolist()
            arrays = [[part.numpy() for part in tensors[name].split(lengths)] for name in ROW_FIELDS]
            return cls(
                Experience(
                    rows=tuple(TokenArrays(*row) for row in zip(*arrays, strict=True)),
                    **{name: _as_tuples(header[name]) for name in _OF_EXPERIENCE},
                ),
                tensors["reward_tensor"],
                original_logits=OriginalLogits(tuple(tensors[name] for name in names)),
                **{name: _as_tuples(header[name]) for name in _OF_TASK},
            )
        except (KeyError, ValueError, TypeError, RuntimeError, safetensors.SafetensorError) as error:
            raise TaskError(f"its bytes are not an update task ({error})") from error


_OF_EXPERIENCE = tuple(f.name for f in fields(Experience) if f.name != "rows")
_OF_TASK = tuple(f.name for f in fields(UpdateTask) if f.name not in ("experience", "reward_tensor", "original_logits"))
"""The fields stored in the header. The others are tensors."""


def _as_tuples(value: object) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _header(data: bytes) -> dict[str, Any]:
    """Read the JSON header of a task's bytes. Raises ValueError, KeyError or TypeError if there is none."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["task"])
