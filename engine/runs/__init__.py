"""The record of a run on disk. Never imports torch.

`types.py`, `learning.py` and `columns.py` hold the vocabulary, `schema.py` the tables, `codec.py` the bytes. `write`
stores what a run reports, `read` and `search` give viewers what is on screen, `control` finds processes and passes
requests to them, `health` repairs records and condenses them. One SQLite file holds a record; plain files for people
are in the same folder (`paths.py`).
"""
