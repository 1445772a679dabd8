"""Bytes within a state, as letters: JSON knows no bytes, nor does torch.load(weights_only=True) before torch 2.5."""

from __future__ import annotations

from base64 import b64decode, b64encode


def in_letters(words: bytes) -> str:
    return b64encode(words).decode("ascii")


def from_letters(told: str | bytes) -> bytes:
    """(Bytes: as they are, from a state of an earlier antifreeze.)"""
    return b64decode(told) if isinstance(told, str) else told
