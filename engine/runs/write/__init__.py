"""Write a record: the queue and its thread, the SQL of each table, and the handling of disk failures."""
