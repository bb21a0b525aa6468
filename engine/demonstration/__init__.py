"""The demonstration: an environment of drawn pictures, and two tiny policies for it.

Only the default configuration and the `builtin:` names refer to it. `benchmarks/policies` trains the policies.
"""
