"""Queries over more data than memory holds: read in parts, computed chunk by chunk."""
