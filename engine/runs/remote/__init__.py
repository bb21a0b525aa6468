"""Runs on other machines, read through fsspec."""
