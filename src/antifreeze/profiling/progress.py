"""One line that changes on a terminal; elsewhere a line for each thing that was measured."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TextIO

EVERY_S = 0.1


class Progress:
    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._live = self._out.isatty()
        self._shown_at = 0.0
        self._text = ""

    def tell(self, text: str) -> None:
        subject = text.partition(":")[0]
        if not self._live and self._text and subject != self._text.partition(":")[0]:
            print(f"  {self._text}", file=self._out, flush=True)
        self._text = text
        now = time.monotonic()
        if self._live and now - self._shown_at > EVERY_S:
            self._shown_at = now
            print(f"\r\x1b[2K  measuring {text}", end="", file=self._out, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            print("\r\x1b[2K", end="", file=self._out, flush=True)
        elif self._text:
            print(f"  {self._text}", file=self._out, flush=True)
