"""Reward components, penalties as data, running normalisation, and the orchestrator that adds them up."""
