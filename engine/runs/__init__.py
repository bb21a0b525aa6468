"""The record of a run on disk. Never imports torch.

`types.py`, `learning.py` and `columns.py` define the data, `schema.py` the tables, and `codec.py` the bytes. `write`
stores the reports of a run, `read` and `search` give viewers the visible rows, `control` finds processes and passes
requests to them, and `health` repairs and summarises records. A record is one SQLite file. Plain files for people are
in the same folder (`paths.py`).
"""
