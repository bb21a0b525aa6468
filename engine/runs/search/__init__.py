"""Filters, full-text search and orders over the rollouts of a record."""
