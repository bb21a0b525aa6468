"""The record of a run on disk. Never imports torch.

`types.py`, `learning.py` and `columns.py` hold the vocabulary, `schema.py` the tables, `codec.py` the bytes. `write`
stores the reports of a run, `read` and `search` give viewers the visible rows, `control` finds processes and passes
requests to them, `health` repairs records and condenses them. One SQLite file holds a record. Plain files for people
are in the same folder (`paths.py`).
"""
