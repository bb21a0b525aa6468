"""Trajectories, tools, environments and the contract of the agent that acts in them."""
