"""Reward components, penalties as data, running normalisation, and the orchestrator that sums them.

`breakdown`, `penalties`, `metrics`, `advantages` and `diagnosis` are plain Python, so viewers can use them. The
orchestrator and its components need torch.
"""
