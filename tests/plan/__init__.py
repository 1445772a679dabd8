"""What to load, in which order, and where we are: against torch itself."""
