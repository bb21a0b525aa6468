"""`python -m grpo_tui.tui.cli`: the same as the console script."""

from ..entry import main

main()
