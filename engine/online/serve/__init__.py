"""Answering requests: the HTTP server, voting, the experience buffer."""
