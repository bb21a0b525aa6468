"""A queue on a Redis server for engines and workers on several machines: `pip install 'grpo-tui[redis]'`."""
