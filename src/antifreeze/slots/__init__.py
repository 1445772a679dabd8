"""Shared memory: one anonymous file of many slots, each holding one batch and used again and again."""
