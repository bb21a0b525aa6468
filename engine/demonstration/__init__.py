"""The demonstration: an environment of drawn pictures, two small policies for it, and the code that makes them.

Nothing else in the product depends on it, except the default configuration and `builtin:` names.
"""
