"""What a checkpoint keeps: after loading, everything goes on as if nothing had happened, also on several processes."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from grpo_tui.configs.sections.rewards import CuriosityConfig, RewardsConfig
from grpo_tui.engine.training.checkpoints import load_rewards, save_rewards
from grpo_tui.envs.trajectory import Trajectory
from grpo_tui.rewards import RewardError, RewardOrchestrator
from grpo_tui.rewards.moments import merge

from .episodes import good, step, trajectory


def config(**curiosity) -> RewardsConfig:
    return RewardsConfig(curiosity=CuriosityConfig(**{"hidden": 64, "train_batch_size": 6, **curiosity}))


def batch(seed: int, size: int = 4) -> tuple[list[Trajectory], list[bool], list[Tensor]]:
    random = torch.Generator().manual_seed(seed)
    right = torch.randint(0, 2, (size,), generator=random).bool().tolist()
    found = [
        good(f"{seed}-{i}") if ok else trajectory(step(0, "TRACK_OBJECT", {"mask": i}), step(1, None), id=f"{seed}-{i}")
        for i, ok in enumerate(right)
    ]
    return found, right, [torch.randn(len(t.steps), 8, generator=random) for t in found]


def run(orchestrator: RewardOrchestrator, seeds: range) -> list[Tensor]:
    totals = []
    for seed in seeds:
        found, right, embeddings = batch(seed)
        totals.append(orchestrator.calculate_total_reward(found, right, embeddings=embeddings).total)
    return totals


@pytest.mark.parametrize("mode", ["error", "progress"])
def test_a_resumed_run_goes_on_bit_for_bit(tmp_path: Path, mode: str):
    orchestrator = RewardOrchestrator.from_config(config(mode=mode))
    run(orchestrator, range(5))
    save_rewards(orchestrator, tmp_path)
    went_on = run(orchestrator, range(5, 10))

    resumed = RewardOrchestrator.from_config(config(mode=mode), seed=99)
    load_rewards(resumed, tmp_path)
    for expected, got in zip(went_on, run(resumed, range(5, 10)), strict=True):
        assert torch.equal(got, expected)
    assert resumed.state_facts() == orchestrator.state_facts()


def test_the_state_is_tensors_and_json_and_nothing_else():
    orchestrator = RewardOrchestrator.from_config(config())
    assert orchestrator.state_tensors()  # a file of tensors needs one
    run(orchestrator, range(2))
    tensors, facts = orchestrator.state_tensors(), orchestrator.state_facts()
    assert all(isinstance(t, Tensor) for t in tensors.values())
    again = RewardOrchestrator.from_config(config(), seed=5)
    again.load_state(tensors, json.loads(json.dumps(facts)))
    assert torch.equal(run(again, range(2, 3))[0], run(orchestrator, range(2, 3))[0])


def test_states_that_do_not_fit_are_refused_in_a_sentence():
    orchestrator = RewardOrchestrator.from_config(config())
    run(orchestrator, range(1))
    tensors, facts = orchestrator.state_tensors(), orchestrator.state_facts()
    with pytest.raises(RewardError, match="keep hidden and lora_rank as they were"):
        RewardOrchestrator.from_config(config(hidden=192)).load_state(tensors, facts)
    with pytest.raises(RewardError, match="format 2, this version reads 1"):
        RewardOrchestrator.from_config(config()).load_state(tensors, {**facts, "format": 2})


class Processes:
    """Two processes as two threads: `gather` waits for both and stacks what each brings."""

    def __init__(self, number: int) -> None:
        self.barrier = threading.Barrier(number, timeout=60)
        self.brought: list[Tensor | None] = [None] * number

    def gather(self, rank: int):
        def collect(tensor: Tensor) -> Tensor:
            self.brought[rank] = tensor.clone()
            self.barrier.wait()
            stacked = torch.stack([t for t in self.brought if t is not None])
            self.barrier.wait()
            return stacked

        return collect


def test_processes_share_one_set_of_statistics_and_one_dynamics_model():
    processes = Processes(2)
    everything = config(train_batch_size=100)
    members = [RewardOrchestrator.from_config(everything, 8, gather=processes.gather(rank)) for rank in range(2)]
    alone = RewardOrchestrator.from_config(everything, 8)
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            for seed in range(4):
                found, right, embeddings = batch(seed, size=7)
                mine = slice(0, 3) if rank == 0 else slice(3, 7)  # uneven shares
                if seed == 2:  # one process without a single trajectory
                    mine = slice(0, 7) if rank == 0 else slice(0, 0)
                members[rank].calculate_total_reward(found[mine], right[mine], embeddings=embeddings[mine])
        except BaseException as error:
            errors.append(error)
            processes.barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for seed in range(4):
        found, right, embeddings = batch(seed, size=7)
        alone.calculate_total_reward(found, right, embeddings=embeddings)

    assert members[0].state_facts() == members[1].state_facts()
    for name, moments in alone.normalizer.running.items():
        shared = members[0].normalizer.running[name]
        assert shared.count == moments.count
        assert shared.mean == pytest.approx(moments.mean, abs=1e-5)
        assert shared.std == pytest.approx(moments.std, abs=1e-5)
    one, other, whole = (o.state_tensors() for o in (*members, alone))
    for name in one:
        assert torch.equal(one[name], other[name]), name
        if name.startswith("model."):
            torch.testing.assert_close(one[name], whole[name], atol=1e-4, rtol=1e-4)


def test_statistics_of_two_runs_can_be_merged():
    one, two = (RewardOrchestrator(0, 0, 1) for _ in range(2))
    both = RewardOrchestrator(0, 0, 1)
    for seed in range(4):
        found, right, _ = batch(seed)
        for orchestrator in (one if seed < 2 else two, both):
            orchestrator.calculate_total_reward(found, right)
    merged = merge(one.normalizer.running["penalty"], two.normalizer.running["penalty"])
    expected = both.normalizer.running["penalty"]
    assert (merged.count, merged.mean, merged.std) == pytest.approx((expected.count, expected.mean, expected.std))
