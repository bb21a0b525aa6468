"""Read a record, even during writing or after a crash, at a cost that depends only on the rows on screen."""
