"""Updates, validation and publication of the policy."""
