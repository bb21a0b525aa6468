"""Read a record, also while it is written or after a crash, at a cost that depends only on the rows on screen."""
