"""Samples of different lengths: batches of those that are about as long, padded or joined. No process, no clock."""
