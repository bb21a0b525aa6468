"""The record of a run on disk: write it, read it, follow it. Never imports torch.

`writer.py` takes what happens and commits it in the background; `reader.py` gives a viewer what is on its screen;
`status.py` says by looking whether a run lives; `control.py` asks it to do something. One SQLite file holds it all
(`schema.py`), beside plain files for people: `config.yaml`, `run.json`, `logs/`, `images/`.
"""
