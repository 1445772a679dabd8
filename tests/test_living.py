"""Who looks at those that live, while others are made."""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakSet

from antifreeze.living import living


class One:
    pass


class GrowsMeanwhile(WeakSet[One]):
    """Another thread adds one, the first time that somebody looks."""

    more: One | None = None

    def __iter__(self) -> Iterator[One]:
        for member in super().__iter__():
            if self.more is None:
                self.more = One()
                self.add(self.more)
            yield member


def test_those_who_come_meanwhile_do_no_harm() -> None:
    first = One()
    members = GrowsMeanwhile([first])
    assert set(living(members)) == {first, members.more}
