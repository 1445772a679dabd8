"""What the supervisor says: into the story, on the time line of a trace, and on stderr where the user must know now."""

from __future__ import annotations

import os
import time

from antifreeze import spans
from antifreeze.events import Happening, Story
from antifreeze.saying import say


class Voice:
    def __init__(self, story: Story) -> None:
        self.story = story
        if story.began_s is None:
            story.began_s = time.monotonic()
        self._began_s = story.began_s

    def tell(self, what: Happening, text: str) -> None:
        if spans.active is not None:
            spans.active.add(os.getpid(), spans.THE_LOOP, f"antifreeze: {what.value}", time.perf_counter_ns(), None, text=text)
        self.story.tell(time.monotonic() - self._began_s, what, text)

    def say(self, what: Happening, text: str) -> None:
        """Also on stderr."""
        self.tell(what, text)
        say(text)
