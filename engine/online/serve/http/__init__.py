"""The engine over HTTP, in OpenAI's words: what a caller may send, how it becomes a task, how answers go back."""
