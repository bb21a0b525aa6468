"""An agent without a language model that finds the cause of broken trainings through `grpo-tui mcp` alone.

    python -m benchmarks.mcp_agent              # ten faults of the corpus of `benchmarks.diagnosis`, drawn by a seed
    python -m benchmarks.mcp_agent --runs 0     # all of them

`agent.py` follows the order of work of the skill file: runs, findings, evidence, conclusion. `evidence.py` holds the
arithmetic that supports or rejects a finding.
"""
