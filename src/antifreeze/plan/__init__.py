"""WHAT to load: which samples make which batch, in which order, and where we are. No process, no clock."""
