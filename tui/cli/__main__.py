"""`python -m grpo_tui.tui.cli`: the command line."""

from .main import main

main()
