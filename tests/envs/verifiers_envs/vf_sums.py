# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
"""A package as people write them for verifiers: one turn, an XML parser, 4 reward functions, one of a whole group."""

import verifiers as vf
from datasets import Dataset


def load_environment(rows: int = 40, largest: int = 9) -> vf.Environment:
    data = [
        {"question": f"What is {i % largest} + {i % 7}?", "answer": str(i % largest + i % 7), "info": {"kind": "sum"}}
        for i in range(rows)
    ]
    parser = vf.XMLParser(["answer"], answer_field="answer")

    async def right(completion, answer) -> float:
        return float((parser.parse_answer(completion) or "") == answer)

    def mentions(completion, info, **kwargs) -> float:
        return float(info["kind"] in completion[-1]["content"])

    def shortest(completions) -> list[float]:
        lengths = [len(c[-1]["content"]) for c in completions]
        return [float(n == min(lengths)) for n in lengths]

    rubric = vf.Rubric(funcs=[right, mentions, shortest], weights=[1.0, 0.25, 0.5], parser=parser)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.1)
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(data), system_prompt="Add. <answer>…</answer>", parser=parser, rubric=rubric
    )
