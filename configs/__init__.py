"""The configuration of a run: schema, loading, overrides and the presets in YAML. Knows no other room."""
