"""Rules over source text: nothing of it is imported or executed."""
