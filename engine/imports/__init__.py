"""Open what other frameworks wrote: anyone's rollouts, as a record that the whole app can read. Never imports torch.

Words: a *dump* is a file or folder of a writer. A *container* (`containers/`) is how a file holds documents (lines of
JSON, parquet rows, zip members, …). A *format* (`formats/`) is what a writer means by a document: it makes rollouts
of it. Recognising goes by content: the container by its first bytes, the format by the keys of a document.
`index.py` writes the rows of a dump into a record in the user's cache; bodies stay where they are and are read again
when one is opened (`reader.py`).
"""
