"""The demonstration: an environment of drawn pictures, and two small policies for it.

Only the default configuration and the `builtin:` names refer to it. `benchmarks/policies` makes the policies.
"""
