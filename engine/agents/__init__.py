"""Policies that act in an environment: a transformers model with a kept KV cache, and a scripted one."""
