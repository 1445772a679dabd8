"""What a worker writes about itself, and what others read."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import pytest

from antifreeze.supervisor.work import Tally
from antifreeze.worker.effort import Usage
from antifreeze.worker.journal import ROW_WORDS, Journal, Stage, Used, Word


@pytest.fixture
def journal() -> Iterator[Journal]:
    made = Journal.create(3)
    yield made
    made.close()


def listed(*indices: int) -> bytes:
    return array("q", indices).tobytes()


def test_a_sample_is_known_by_its_row_alone(journal: Journal) -> None:
    row = journal.row(1)
    row.begin(7, 3, 99, 128, listed(50, 60, 70))
    assert row.lists
    assert (row.read().row, row.read().index) == (128, 50)
    row.words[Word.ROW] = 130
    entry = journal.row(1).read()
    assert (entry.task, entry.batch, entry.row, entry.index, entry.since_ns) == (7, 3, 130, 70, 99)


def test_without_a_list_the_index_is_noted_by_itself(journal: Journal) -> None:
    row = journal.row(0)
    row.begin(7, 3, 99, 10, listed(*range(ROW_WORDS)))
    assert not row.lists
    row.words[Word.ROW], row.words[Word.INDEX] = 11, 5
    assert row.read().index == 5
    row.begin(8, 4, 100)
    assert not row.lists


def test_a_key_that_is_no_number_is_text(journal: Journal) -> None:
    row = journal.row(0)
    row.begin(7, 3, 99, 0, listed(1))
    row.at_key(0, "a" * 500)
    assert row.read().index == repr("a" * 500)[:128]
    row.words[Word.INDEX_IS_TEXT] = 0
    assert row.read().index == 1


def test_a_row_that_is_cleared_says_nothing_of_the_worker_before(journal: Journal) -> None:
    row = journal.row(2)
    row.begin(7, 3, 99, 5, listed(1, 2))
    row.stage(Stage.FETCH)
    journal.clear(2)
    entry = journal.row(2).read()
    assert (entry.stage, entry.task, entry.row, entry.index) == (Stage.STARTING, 0, 0, 0)


def test_rows_do_not_touch_each_other(journal: Journal) -> None:
    for number in range(3):
        journal.row(number).begin(number, 0, 0, 0, listed(*[number] * 5000))
    assert [journal.row(number).read().index for number in range(3)] == [0, 1, 2]


def test_a_row_that_somebody_still_holds_does_not_keep_a_journal_from_closing() -> None:
    """As the traceback of an interrupt does, that came while a row was being read."""
    journal = Journal.create(2)
    row = journal.row(1)
    journal.close()
    assert journal.descriptor == -1
    assert row.read().samples == 0
    journal.close()


def works(journal: Journal, number: int, samples: int, faults: int, switches: int) -> None:
    row = journal.row(number)
    row.words[Word.SAMPLES] = samples
    row.note(Usage(5000, faults, switches))


def test_what_a_worker_used_is_counted_once_while_it_lives_and_after_it_was_replaced(journal: Journal) -> None:
    journal.clear(0)
    works(journal, 0, 10, 300, 7)
    assert journal.used() == Used(10, 300, 7)
    works(journal, 0, 20, 500, 9)
    assert journal.used() == Used(20, 500, 9)
    journal.clear(0)
    assert journal.used() == Used(20, 500, 9)
    journal.clear(2)
    works(journal, 0, 1, 1, 1)
    works(journal, 2, 2, 2, 2)
    assert journal.used() == Used(23, 503, 12)
    assert journal.row(2).read().peak_bytes == 5000 * 1024


def test_what_was_used_is_known_after_the_journal_was_closed() -> None:
    tally = Tally()
    for _ in range(3):
        journal = Journal.create(2)
        tally.follow(journal)
        journal.clear(1)
        works(journal, 1, 4, 50, 6)
        journal.close()
        assert journal.used() == Used(4, 50, 6)
    assert tally.used() == Used(12, 150, 18)
    assert len(tally._journals) == 1, "those that are closed are summed up"


def test_a_journal_that_another_thread_closes_meanwhile_is_no_error(journal: Journal) -> None:
    journal.clear(1)
    works(journal, 1, 4, 50, 6)
    row, rows = journal.row, []

    def closes_first(number: int) -> object:
        if not rows:
            rows.append(number)
            journal.close()
        return row(number)

    journal.row = closes_first  # type: ignore[method-assign, assignment]
    assert journal.used() == Used(4, 50, 6)
