"""Import rollouts of other frameworks as a record that the whole app can read. Never imports torch.

A *dump* is a file or folder that another framework wrote (the *writer*). A *container* (`containers/`) splits a file
into documents: lines of JSON, parquet rows, members of a zip. A *format* (`formats/`) converts the documents of one
writer into rollouts. The first bytes of a file identify the container, and the keys of a document identify the format.
`index.py` writes the rows of a dump into a record in the user's cache. Bodies stay in the writer's files, and
`bodies.py` reads them when they are opened.
"""
