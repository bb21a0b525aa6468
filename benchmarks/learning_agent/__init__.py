"""An agent that learns from its users: `python -m benchmarks.learning_agent [--seeds 0 1 2] [--conversations 1000]`.

The loop of the OpenAI SDK (`agent.py`) solves tasks of the visual demonstration through `tools` of `grpo-tui online`. A
conversation ends with feedback: right or wrong. The policy has the architecture of `builtin:tiny`, reads the names of
the tools in its prompt, and was taught the habits of the demonstration, most of them wrong (`policy.py`). It answers
with samples at temperature 1.

A row has the success on the same held-out tasks under the first and the last version, and in each quarter of the
conversations. Rows that `--results` holds are not measured again. The summary has means and 95 % intervals over the
seeds (Student's t).
"""
