"""Write a record: the queue and its thread, the SQL of each table, and failures of the disk."""
