"""Advantages per token from rewards per turn: `reward`, `group` (GRPO) and `turn`.

With r[i, t] the reward of turn t of rollout i, G the rollouts of one prompt, R[i] = Σ_t r[i, t]:

- `reward`: A at the last token of turn t is r[i, t], at every other token 0 (`env_trainer.md`, R2).
- `group`: A at every agent token of rollout i is R[i] − mean_G R  (GRPO, arXiv 2402.03300).
- `turn`: A at every agent token of turn t is Q[i, t] − mean_G Q[·, t] with the return from that turn on,
  Q[i, t] = Σ_{k ≥ t} r[i, k]; the mean is over the rollouts that got as far as turn t, and a rollout that got there
  alone has nothing to be compared with: 0. (Turn-level credit as in MT-GRPO, arXiv 2505.11821, and GiGPO,
  arXiv 2505.10978, with the turn's index as the state.)

`scale` divides `group` and `turn` by (σ + 1e-4): σ of the same group (for `turn`: of the same group and turn), σ of
the whole batch, or nothing. σ has Bessel's correction, as in TRL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ...rewards.breakdown import AdvantageFormula, AdvantageTerm

EPSILON = 1e-4

ROUNDING = 1e-6
"""Centred returns below this are equal returns that were summed in another order."""

Method = Literal["reward", "group", "turn"]
Scale = Literal["group", "batch", "none"]


@dataclass(frozen=True)
class Comparison:
    """Returns beside what each was compared with. All tensors are [B, S], or [B, 1] where a rollout has one return.

    value: the returns. there: bool, True where one counts. mean, std: of the returns that it was compared with (std
    None: not divided). size: int, how many those are. turns: bool [B, S], True on turns that happened and count.
    """

    method: Method
    scale: Scale
    value: Tensor
    there: Tensor
    mean: Tensor
    std: Tensor | None
    size: Tensor
    turns: Tensor

    def advantages(self) -> Tensor:
        """Advantages per turn [B, S], 0 on turns that did not happen."""
        centred = self.value - self.mean
        if self.method == "turn":
            centred = centred * (self.size > 1)
        if self.std is not None:
            centred = centred / (self.std + EPSILON)
        return centred * self.turns

    def formula(self, row: int) -> AdvantageFormula | None:
        """How the advantages of one rollout came about; None for one that was not scored."""
        if not bool(self.there[row].any()):
            return None
        columns = [self.value, self.mean, self.size] + ([] if self.std is None else [self.std])
        steps = [
            (AdvantageTerm(value, mean, std[0] if std else None, int(size)),)
            for (value, mean, size, *std), there in zip(
                zip(*(c[row].tolist() for c in columns), strict=True), self.there[row].tolist(), strict=True
            )
            if there
        ]
        return AdvantageFormula(self.method, self.scale, EPSILON, tuple(steps))


def compare(
    step_rewards: Tensor,
    step_mask: Tensor,
    group_size: int,
    method: Method = "group",
    scale: Scale = "group",
    valid: Tensor | None = None,
) -> Comparison:
    """Compare the returns of a batch, whole groups as neighbours; arguments as of `turn_advantages`."""
    returns, there = _returns(step_rewards, step_mask, group_size, method, valid)
    turns = step_mask.bool() if valid is None else step_mask.bool() & valid.bool()[:, None]
    if method == "reward":
        alone = torch.ones_like(there, dtype=torch.long)
        return Comparison(method, "none", returns, there, torch.zeros_like(returns), None, alone, turns)
    grouped, present = returns.view(-1, group_size, returns.shape[1]), there.view(-1, group_size, there.shape[1])
    mean, std = _moments(grouped, present, dim=1)
    if scale == "batch":
        std = _moments(returns.flatten(), there.flatten(), dim=0)[1].expand_as(mean)
    elif scale not in ("group", "none"):
        raise ValueError(f'unknown scale "{scale}": group, batch or none')

    def rows(of_group: Tensor) -> Tensor:
        """[B / group_size, 1, S] as [B, S]."""
        return of_group.expand(grouped.shape).reshape(returns.shape)

    size = rows(present.sum(1, keepdim=True))
    return Comparison(method, scale, returns, there, rows(mean), None if scale == "none" else rows(std), size, turns)


def turn_advantages(
    step_rewards: Tensor,
    step_mask: Tensor,
    group_size: int,
    method: Method = "group",
    scale: Scale = "group",
    valid: Tensor | None = None,
) -> Tensor:
    """Advantages per turn.

    step_rewards: float [B, S]; step_mask: bool [B, S], True on turns that happened; rows of a group are neighbours
    and B is a multiple of `group_size`. valid: bool [B], False for rollouts that were not scored (their environment
    failed): they take no part in means and get 0. Returns [B, S], 0 where `step_mask` is False.
    """
    return compare(step_rewards, step_mask, group_size, method, scale, valid).advantages()


def has_signal(
    step_rewards: Tensor,
    step_mask: Tensor,
    group_size: int,
    method: Method = "group",
    min_std: float = 0.0,
    valid: Tensor | None = None,
) -> Tensor:
    """Which groups have something to learn from, bool [B / group_size].

    `group`: the returns differ, with a standard deviation of at least `min_std`; `turn`: so do the returns from some
    turn on; `reward`: some reward is not 0.
    """
    returns, there = _returns(step_rewards, step_mask, group_size, method, valid)
    grouped, present = returns.view(-1, group_size, returns.shape[1]), there.view(-1, group_size, there.shape[1])
    if method == "reward":
        return ((grouped != 0) & present).flatten(1).any(1)
    mean, std = _moments(grouped, present, dim=1)
    differ = ((grouped - mean).abs() > ROUNDING) & present
    return (std.flatten(1).amax(1) >= min_std) & differ.flatten(1).any(1)


def _returns(
    step_rewards: Tensor, step_mask: Tensor, group_size: int, method: Method, valid: Tensor | None
) -> tuple[Tensor, Tensor]:
    """What is compared within a group, [B, S] or [B, 1], and where it counts."""
    if step_rewards.shape != step_mask.shape or step_rewards.shape[0] % group_size:
        raise ValueError(
            f"step_rewards {list(step_rewards.shape)}, step_mask {list(step_mask.shape)}: both must be [B, S] with B a "
            f"multiple of the group size {group_size}"
        )
    mask = step_mask.bool()
    rewards = step_rewards.masked_fill(~mask, 0.0)
    if method == "reward":
        returns, there = rewards, mask
    elif method == "group":
        returns = rewards.sum(1, keepdim=True)
        there = torch.ones_like(returns, dtype=torch.bool)
    elif method == "turn":
        returns, there = rewards.flip(1).cumsum(1).flip(1), mask
    else:
        raise ValueError(f'unknown advantages "{method}": reward, group or turn')
    return returns, there if valid is None else there & valid.bool()[:, None]


def token_advantages(turns: Tensor, turn_ids: Tensor, agent_mask: Tensor, method: Method = "group") -> Tensor:
    """Advantages per token [B, T] from advantages per turn [B, S].

    turn_ids: int [B, T], -1 in the prompt and in padding; agent_mask: bool [B, T]. Tokens that the agent did not
    write get 0.
    """
    agent = agent_mask.bool() & (turn_ids >= 0)
    if turns.shape[1] == 0:
        return torch.zeros(turn_ids.shape, dtype=turns.dtype)
    index = turn_ids.clamp(min=0, max=turns.shape[1] - 1).long()
    values = turns.gather(1, index)
    if method == "reward":
        agent = agent & last_of_turn(turn_ids, agent_mask)
    return values * agent


def last_of_turn(turn_ids: Tensor, agent_mask: Tensor) -> Tensor:
    """True at the last agent token of each turn, bool [B, T]."""
    agent = agent_mask.bool() & (turn_ids >= 0)
    positions = torch.arange(turn_ids.shape[1]).expand_as(turn_ids)
    turns = int(turn_ids.max().item()) + 1 if turn_ids.numel() else 0
    if turns <= 0:
        return torch.zeros_like(agent)
    key = torch.where(agent, turn_ids.long(), torch.full_like(turn_ids.long(), turns))
    last = torch.full((turn_ids.shape[0], turns + 1), -1, dtype=torch.long)
    last = last.scatter_reduce(1, key, positions, reduce="amax")
    return agent & (last.gather(1, key) == positions)


def _moments(values: Tensor, present: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Mean and unbiased standard deviation over `dim` of the values that are present; std 0 for fewer than two."""
    count = present.sum(dim, keepdim=True)
    mean = (values * present).sum(dim, keepdim=True) / count.clamp(min=1)
    squares = (((values - mean) * present) ** 2).sum(dim, keepdim=True)
    return mean, (squares / (count - 1).clamp(min=1)).sqrt()
