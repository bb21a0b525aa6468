"""The processes of a run: their status, requests to them, live texts, locks and alerts."""
