"""The effect of pictures on success: `python -m benchmarks.seeing [--adapters FOLDER]`.

Prints the success of `builtin:tiny-vl` on held-out questions, with the picture and with a grey one in its place. With
`--adapters`, the folder of a training of `tiny_vl`, the table also has a row for that training.
"""

from __future__ import annotations

import argparse

from benchmarks.policies.common import table
from benchmarks.policies.seeing import evaluate
from grpo_tui.configs.loading import load_config
from grpo_tui.engine.agents.transformers_agent import TransformersAgent
from grpo_tui.engine.policy.models import load_policy, load_vision


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=200, help="held-out questions")
    parser.add_argument("--adapters", help="the training.output_dir of `grpo-tui train tiny_vl`")
    given = parser.parse_args()
    config = load_config("tiny_vl").model
    folders = {"base": None, "start": config.sft_adapters}
    if given.adapters is not None:
        folders["trained"] = given.adapters
    found = {}
    for name, folder in folders.items():
        net, words = load_policy(config, adapters=folder, trainable=False)
        agent = TransformersAgent(
            net, words, vision=load_vision(config, net, words), max_turn_tokens=8, max_trajectory_tokens=64
        )
        found |= {f"{name} {how}": values for how, values in evaluate(agent, 1, given.tasks).items()}
    print(table(found))


if __name__ == "__main__":
    main()
