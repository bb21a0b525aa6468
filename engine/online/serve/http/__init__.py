"""The engine's HTTP API, compatible with OpenAI's."""
