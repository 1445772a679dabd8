"""Since when a worker is at its sample, and whether that is too long: by a table, on a journal without a worker."""

from __future__ import annotations

import pytest

from antifreeze.supervisor.watch import Watch
from antifreeze.worker.journal import Journal, Stage

BEGAN_S = 100.0


@pytest.mark.parametrize(
    ("looks_s", "overdue"),
    [
        ([0.0, 1.0, 2.0, 3.0, 4.0], False),
        ([0.0, 1.0, 2.0, 3.0, 4.1], True),
        ([0.0, 1.0, 600.0], False),  # the job was suspended, or the loop computed: half of it counts
        ([0.0, 1.0, 600.0, 600.9], False),
        ([0.0, 1.0, 600.0, 601.1], True),
        ([0.0, 600.0, 1200.0, 1201.9], False),  # and again
        ([0.0, 600.0, 1200.0, 1201.9, 1202.1], True),
        ([600.0], False),  # nobody looked since it began
        ([600.0, 601.9], False),
        ([600.0, 601.9, 602.1], True),
    ],
)
def test_a_deadline_counts_the_time_in_which_somebody_looked(looks_s: list[float], overdue: bool) -> None:
    journal = Journal.create(1)
    try:
        row, watch = journal.row(0), Watch(journal, 1)
        row.begin(1, 1, int((BEGAN_S - 1) * 1e9))
        watch.look(0, BEGAN_S - 1)  # another task
        row.begin(2, 2, int(BEGAN_S * 1e9))
        row.stage(Stage.FETCH)
        look = [watch.look(0, BEGAN_S + at_s) for at_s in looks_s][-1]
        assert watch.overdue(look, 4.0, 1, True) is overdue
    finally:
        row.words.release()
        journal.close()
