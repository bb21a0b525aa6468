# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false
"""A game of several turns, with a stop condition and a reply of its own."""

import re

import verifiers as vf
from datasets import Dataset


class Guess(vf.MultiTurnEnv):
    async def setup_state(self, state):
        state["guesses"] = []
        return await super().setup_state(state)

    @vf.stop
    async def found(self, state) -> bool:
        return bool(state["guesses"]) and state["guesses"][-1] == int(state["answer"])

    async def add_trajectory_step(self, state, trajectory_step):
        await super().add_trajectory_step(state, trajectory_step)
        numbers = re.findall(r"\d+", str(trajectory_step["completion"][-1]["content"]))
        state["guesses"].append(int(numbers[-1]) if numbers else -1)

    async def env_response(self, messages, state, **kwargs):
        last, wanted = state["guesses"][-1], int(state["answer"])
        if last > 100:
            state["final_env_response"] = [{"role": "user", "content": "out of range, the game ends"}]
            return state["final_env_response"]
        return [{"role": "user", "content": "higher" if last < wanted else "lower"}]


def load_environment(max_turns: int = 5) -> vf.Environment:
    data = [{"question": "Guess my number from 0 to 9.", "answer": str(i % 10)} for i in range(20)]

    def found(state) -> float:
        return float(state["guesses"][-1:] == [int(state["answer"])])

    def quick(state) -> float:
        return 1.0 / max(1, len(state["guesses"]))

    rubric = vf.Rubric(funcs=[found, quick], weights=[1.0, 0.5])
    return Guess(
        dataset=Dataset.from_list(data), eval_dataset=Dataset.from_list(data[:5]), rubric=rubric, max_turns=max_turns
    )
