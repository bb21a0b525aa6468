"""Importers: rollouts of other frameworks as a record that the whole app can read. Never imports torch.

A *dump* is a file or folder of a writer. A *container* (`containers/`) is a way in which a file holds documents: lines
of JSON, parquet rows, members of a zip. A *format* (`formats/`) makes rollouts of the documents of one writer. The
container is recognised by the first bytes of a file, and the format by the keys of a document. `index.py` writes the
rows of a dump into a record in the user's cache. Bodies stay in the files of the writer, and are read from there when
they are opened (`bodies.py`).
"""
