"""The weights of the built-in tiny policies, from `benchmarks.policies`."""
