"""Reward components, penalties as data, running normalisation, and the orchestrator that adds them up.

`breakdown`, `penalties`, `metrics`, `advantages` and `diagnosis` are plain data and plain Python, for viewers too. The
orchestrator and its components need torch.
"""
