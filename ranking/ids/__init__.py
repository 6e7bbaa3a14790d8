"""Index from ids to row numbers, made of arrays that processes share."""
