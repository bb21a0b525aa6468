"""How the built-in tiny policy is made: `make policy`."""
