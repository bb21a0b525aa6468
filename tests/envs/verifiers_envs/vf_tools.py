# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
"""Tools: plain functions, and (stateful) one that is given what the policy never sees."""

import verifiers as vf
from datasets import Dataset

DATA = [{"question": f"How many of fruit {i}?", "answer": str(i * 3)} for i in range(12)]


def lookup(fruit: int) -> str:
    """Look up how many there are.

    Args:
        fruit: Number of the fruit.
    """
    return str(fruit * 3)


async def told(completion, answer) -> float:
    return float(answer in str(completion[-1]["content"]))


def load_environment() -> vf.Environment:
    return vf.ToolEnv(dataset=Dataset.from_list(DATA), tools=[lookup], rubric=vf.Rubric([told]), max_turns=4)


class Basket(vf.StatefulToolEnv):
    async def setup_state(self, state):
        state["basket"] = []
        return await super().setup_state(state)

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "basket": state["basket"]}


async def put(fruit: int, basket: list) -> str:
    """Put a fruit into the basket.

    Args:
        fruit: Number of the fruit.
        basket: Where it goes.
    """
    basket.append(fruit)
    return f"{len(basket)} in the basket"


def filled(state) -> float:
    return float(len(state["basket"]))


def load_stateful() -> vf.Environment:
    env = Basket(dataset=Dataset.from_list(DATA), rubric=vf.Rubric([filled], [0.5]), max_turns=4)
    env.add_tool(put, args_to_skip=["basket"])
    return env
