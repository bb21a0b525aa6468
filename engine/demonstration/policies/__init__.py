"""The weights of the built-in tiny policies. `benchmarks.policies` makes them."""
