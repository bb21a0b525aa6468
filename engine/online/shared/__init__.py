"""A queue on a Redis server for engines and workers of several machines: `pip install 'grpo-tui[redis]'`."""
