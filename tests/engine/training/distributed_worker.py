"""Started once a process by `accelerate launch`: trains on playback rows with both placements, prints the losses."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.engine.training.parts import make_trainer, playback_rows, policy


def trajectory(placement: str, world: int, rows_per_step: int = 16, **changes: Any) -> dict[str, Any]:
    """Losses and KLs of a short training on the same rollouts, however many processes share them."""
    from grpo_tui.engine.rollouts.difficulty import Difficulty
    from grpo_tui.engine.rollouts.replay import ReplayBuffer

    difficulty = changes.pop("difficulty", False)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(
            folder,
            playback_rows(16, turns=2),
            model=policy(lora=True),
            placement=placement,
            replay=ReplayBuffer(seed=3) if changes.pop("replay", False) else None,
            per_device_train_batch_size=rows_per_step // world // 2,
            gradient_accumulation_steps=2,
            max_steps=4,
            beta=0.2,
            **changes,
        )
        if difficulty:
            trainer.pipeline.difficulty = Difficulty([str(i) for i in range(16)], seed=2)
        trainer.train()
        logs = [entry for entry in trainer.state.log_history if "loss" in entry]
        shares = {k: v for k, v in trainer.rollouts.metrics.items() if k.startswith("grpo/")}
        return {
            "loss": [entry["loss"] for entry in logs],
            "kl": [entry["kl"] for entry in logs],
            "grad_norm": [entry["grad_norm"] for entry in logs],
            "reward": [entry.get("reward") for entry in logs],
            "shares": shares,
            "processes": trainer.accelerator.num_processes,
        }


CASES: dict[str, dict[str, Any]] = {
    "main": {"placement": "main"},
    "sharded": {"placement": "sharded"},
    "groups_across_processes": {"placement": "auto", "num_generations": 16},
    "replay": {"placement": "sharded", "replay": True, "min_group_std": 0.9},
    "difficulty": {"placement": "sharded", "difficulty": True},
    "dynamic": {"placement": "sharded", "dynamic_rounds": 2, "min_group_std": 0.9},
}


def sampled(placement: str, world: int) -> dict[str, Any]:
    """The tokens of every rollout of two steps of a policy that really samples, in the order of the batch."""
    from tests.engine.training.test_recording import acting_trainer

    with tempfile.TemporaryDirectory() as folder:
        trainer = acting_trainer(
            folder,
            placement=placement,
            max_steps=2,
            beta=0.1,
            dynamic_rounds=1,
            per_device_train_batch_size=16 // world,
            gradient_accumulation_steps=1,
        )
        seen: list[list[list[int]]] = []
        pipeline = trainer.pipeline.train

        def watched(request: Any) -> Any:
            made = pipeline(request)
            seen.append([r.token_ids.tolist() for r in made.generated])
            return made

        trainer.pipeline.train = watched  # type: ignore[method-assign]
        trainer.train()
        return {"tokens": seen, "find_unused": trainer.args.ddp_find_unused_parameters}


def other_folders(rank: int) -> list[str]:
    """What a process hears where all see one folder of the run, and where each has its own."""
    from accelerate import Accelerator

    from grpo_tui.engine.training import TrainingError
    from grpo_tui.engine.training.processes import Processes

    processes = Processes(Accelerator(cpu=True))
    home = processes.broadcast(tempfile.mkdtemp())
    own = Path(home) / str(rank)
    own.mkdir()
    heard = []
    for folder in (Path(home), own):
        try:
            processes.check_one_folder(folder)
            heard.append("")
        except TrainingError as problem:
            heard.append(str(problem))
    return [*heard, *sorted(path.name for path in Path(home).rglob(".seen*"))]


def main() -> None:
    import os

    world = int(os.environ.get("WORLD_SIZE", "1"))
    results: dict[str, Any] = {name: trajectory(world=world, **dict(case)) for name, case in CASES.items()}
    results |= {f"sampled {placement}": sampled(placement, world) for placement in ("main", "sharded")}
    rank = int(os.environ.get("RANK", "0"))
    results["other folders"] = other_folders(rank)
    if rank == 0:
        print("RESULT " + json.dumps(results), flush=True)


if __name__ == "__main__":
    main()
