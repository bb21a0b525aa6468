"""How a model runs: loading, forward passes, packing, adapters, checkpointing, KL."""
