"""Policies that act in an environment: a transformers model with a KV cache, and a scripted agent."""
