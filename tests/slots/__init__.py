"""Shared memory: layouts, parcels, the arena and the ring."""
