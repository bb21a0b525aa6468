"""R_curiosity as a component: the dynamics model is made once the width of the embeddings is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ...configs import metric_names as metric
from ...configs.sections.rewards import RewardsConfig
from ..curiosity import CuriosityDrivenRewardModule
from ..errors import RewardError
from .base import RewardComponent, RewardInputs, Values


class CuriosityReward(RewardComponent):
    """The prediction error of each transition; see `CuriosityDrivenRewardModule`."""

    def __init__(self, config: RewardsConfig, seed: int) -> None:
        self.config = config.curiosity
        self.counts = config.w_curiosity > 0
        self.seed = seed
        self.module: CuriosityDrivenRewardModule | None = None

    def make(self, embedding_dim: int) -> CuriosityDrivenRewardModule:
        """The module for embeddings of this width. Raises RewardError when it knows another."""
        if self.module is None:
            self.module = CuriosityDrivenRewardModule(embedding_dim, self.config, seed=self.seed)
        known = self.module.model.embedding_dim
        if known != embedding_dim:
            raise RewardError(f"the dynamics model knows embeddings of width {known}, these have {embedding_dim}")
        return self.module

    def compute(self, batch: RewardInputs) -> Values | None:
        """Undefined at the last step of a trajectory, which has no next state."""
        if batch.states is None or not self.counts:
            return None
        keys = [key for row in batch.keys for key in row]
        has_next = ~batch.last
        return self.make(batch.states.shape[-1]).compute(batch.states, batch.steps, keys, has_next), has_next

    def update(self) -> None:
        """Train the dynamics model on the batch's transitions."""
        if self.module is not None:
            self.module.update()

    def metrics(self) -> Mapping[str, float]:
        """Of the dynamics model and its cache."""
        module = self.module
        if module is None:
            return {}
        loss = {} if module.loss is None else {metric.CURIOSITY_DYNAMICS_LOSS: module.loss}
        return {
            metric.CURIOSITY_REPEAT_RATE: module.repeat_rate,
            metric.CURIOSITY_CACHE_HIT_RATE: module.hit_rate,
            metric.CURIOSITY_VERSION: float(module.model.version),
            **loss,
        }

    def state_facts(self) -> dict[str, Any] | None:
        """None before the first batch."""
        return None if self.module is None else self.module.state_facts()

    def state_tensors(self) -> dict[str, Tensor]:
        """Weights, optimiser and random state of the dynamics model."""
        return {} if self.module is None else self.module.state_tensors()

    def load_state(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Raises RewardError when the dynamics model was another one."""
        if not self.counts:
            return
        try:
            self.make(int(facts["embedding_dim"])).load_state(tensors, facts)
        except (RuntimeError, KeyError) as error:
            raise RewardError(
                "the saved dynamics model does not fit rewards.curiosity: keep hidden as it was, or "
                f"start a new run ({str(error).splitlines()[0]})"
            ) from error
