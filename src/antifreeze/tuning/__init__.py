"""The cores and the memory we really have."""
