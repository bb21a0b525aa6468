"""The tools of `grpo-tui mcp`, through which coding agents read runs (Model Context Protocol).

`answers.py` bounds and types every answer, `workspace.py` opens runs and dumps that tools may read, `runs.py` and
`rollouts.py` hold the tools, and `server.py` serves them.
"""
