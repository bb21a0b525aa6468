"""Updating the policy while it serves: the worker, the update, validation."""
