"""The verdict: a table of what was counted, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antifreeze.verdict import Cause, Counted, verdict, waited_for, waiting_now

FINE = Counted(
    waited_s=0.0,
    loop_s=10.0,
    startup_s=0.0,
    restarts_s=0.0,
    stalls_s=0.0,
    in_stages_s=0.0,
    fetch_s=0.0,
    collate_s=0.0,
    write_s=0.0,
    cpu_s=0.0,
    queued_s=0.0,
    batches=100,
    samples=1000,
    epochs=1,
    longest_wait_s=0.1,
    workers=2,
    cores=8,
    persistent=False,
)
WAITS = replace(FINE, waited_s=10.0, in_stages_s=10.0, fetch_s=36.0, cpu_s=36.0)
SMALL = replace(FINE, waited_s=0.5, loop_s=0.2, in_stages_s=0.4, fetch_s=0.1, collate_s=0.3, cpu_s=0.4, batches=20_000, samples=20_000)

CASES = {
    "nothing": (replace(FINE, loop_s=0.0), "nothing was loaded yet"),
    "fine": (replace(FINE, waited_s=0.2), "the data is not the bottleneck: the loop waited 2.0% of the time (0.20 s of 10.2 s)"),
    "computing": (
        WAITS,
        "the loop waited 50% of the time (10.0 s of 20.0 s), 100% of it for the data set's __getitem__, which computes; "
        "num_workers=4 instead of 2 would be about 2.0× as fast in all",
    ),
    "computing, no core left": (
        replace(WAITS, cores=3),
        "2 workers on 3 cores are all there can be, so a sample itself must become cheaper (36.0 ms now)",
    ),
    "computing, cores for some": (replace(WAITS, cores=4), "num_workers=3 instead of 2 would be about 1.7× as fast in all"),
    "waiting": (
        replace(WAITS, cpu_s=1.0, cores=1),
        "__getitem__, which itself waits (files, network, locks, sleep); num_workers=4 instead of 2 would be about 2.0× as fast",
    ),
    "waiting, with many": (
        replace(WAITS, cpu_s=1.0, workers=64, fetch_s=1000.0),
        "more workers are seldom worth it: read larger pieces at once, or from nearer (antifreeze.cached keeps samples in local files): "
        "1.0 s per sample now",
    ),
    "large copies, no core left": (
        replace(WAITS, fetch_s=1.0, write_s=35.0, cores=3, past_caches="A=B"),
        "2 workers on 3 cores are all there can be, so a sample itself must become cheaper (36.0 ms now): with A=B before `python`, copies "
        "go past the processor's caches: 1.1× to 1.5× as fast to a GPU where that was measured",
    ),
    "large copies, no core left, and nothing known to make them quicker": (
        replace(WAITS, fetch_s=1.0, write_s=35.0, cores=3),
        "97% of it for copying batches into shared memory; 2 workers on 3 cores are all there can be, so a sample itself must become "
        "cheaper (36.0 ms now)",
    ),
    "large copies without workers": (
        replace(WAITS, workers=0, fetch_s=0.1, write_s=9.9, cpu_s=10.0, loop_s=0.01, cores=1, past_caches="A=B"),
        "of it for copying batches into shared memory; workers would hardly change that on 1 core, so a sample itself must become cheaper "
        "(10.0 ms now)",
    ),
    "large samples that compute": (
        replace(WAITS, cores=3, past_caches="A=B"),
        "2 workers on 3 cores are all there can be, so a sample itself must become cheaper (36.0 ms now)",
    ),
    "batches of one sample, without workers": (
        replace(SMALL, workers=0, in_stages_s=0.4),
        "a batch of 1 sample takes 20 µs, and one by a worker costs 0.1 ms more: a larger batch_size shares among more samples what each",
    ),
    "batches of one sample, auto": (
        replace(SMALL, workers=0, in_stages_s=0.4, auto=True),
        'num_workers="auto" has chosen no workers on 8 cores; a batch of 1 sample takes 20 µs, and one by a worker',
    ),
    "batches of one sample, with workers": (
        replace(SMALL, waited_s=3.0, in_stages_s=1.0),
        "that is 0.1 ms for each of 20,000 batches: larger batches need fewer of them, and num_workers=0, which needs none, would be about "
        "5.3× as fast",
    ),
    "waiting, auto, which has not measured yet": (
        replace(WAITS, cpu_s=1.0, auto=True, undecided=True, workers=0),
        'num_workers="auto" has no workers so far on 8 cores, and has not measured enough yet to choose',
    ),
    "start-up, nearly all of it before the very first batch": (
        replace(WAITS, startup_s=9.0, epochs=3, first_batch_s=8.5, persistent=True),
        "90% of it for the beginnings and ends of epochs; 8.5 s of it until the very first batch: a longer run pays that once",
    ),
    "waiting, auto": (
        replace(WAITS, cpu_s=1.0, auto=True),
        'num_workers="auto" has chosen 2 workers on 8 cores, so a sample itself must become cheaper (36.0 ms now): antifreeze.cached keeps '
        "samples in local files",
    ),
    "waiting, and computing a little": (
        replace(WAITS, cpu_s=12.0, cores=1, fetch_s=36.0),
        "num_workers=3 instead of 2 would be about 1.7× as fast in all",
    ),
    "no core": (
        replace(WAITS, fetch_s=300.0, cpu_s=120.0, queued_s=170.0, workers=16),
        "workers that had no core to run on; 16 workers share 8 cores: num_workers=7 would not fight over them",
    ),
    "no core, and nobody of ours has it": (
        replace(WAITS, fetch_s=19.0, cpu_s=5.0, queued_s=14.0, cores=2),
        "take the cores (2 workers and the loop had 0.8 of 2 cores), and no setting of the loader brings more of them",
    ),
    "no core, as many workers as we chose, and nobody of ours has it": (
        replace(WAITS, fetch_s=19.0, cpu_s=5.0, queued_s=14.0, cores=2, auto=True),
        "take the cores (2 workers and the loop had 0.8 of 2 cores), and no setting of the loader brings more of them",
    ),
    "no core, though there is one for each": (
        replace(WAITS, cpu_s=10.0, queued_s=20.0, workers=1, cores=2),
        "workers that had no core to run on; other programs, or other threads of this one, take the cores (1 worker and the loop need 2 "
        "of 2 cores), and no setting of the loader brings more of them",
    ),
    "no core, chosen by us": (
        replace(WAITS, cpu_s=10.0, queued_s=20.0, workers=3, cores=8, auto=True),
        "take the cores (3 workers and the loop need 4 of 8 cores)",
    ),
    "no core, no workers": (
        replace(WAITS, cpu_s=2.0, queued_s=7.0, fetch_s=10.0, workers=0),
        "for a core to load on; other programs, or other threads of this one, take the cores (the loop needs 1 of 8 cores)",
    ),
    "threads that fight": (
        replace(WAITS, cpu_s=8.0, fetch_s=10.0, workers=0, fight=True),
        "which computes; threads of this process fight over the cores (see threads): torch.set_num_threads(1) or OMP_NUM_THREADS=1",
    ),
    "threads that fight, though it waits for something else": (
        replace(WAITS, cpu_s=1.0, fetch_s=10.0, workers=0, fight=True),
        "which itself waits (files, network, locks, sleep); num_workers=1 would do that beside the loop",
    ),
    "collate": (replace(WAITS, fetch_s=6.0, collate_s=30.0), "for the collate function; num_workers=4 instead of 2"),
    "transport": (replace(WAITS, fetch_s=6.0, write_s=30.0), "for copying batches into shared memory; num_workers=4"),
    "uneven": (
        replace(WAITS, fetch_s=20.0, cpu_s=1.0, longest_wait_s=3.0),
        "yet the workers were only 50% busy: batches come unevenly, the longest wait was 3.0 s; hedge=True, in_order=False or",
    ),
    "hand-over": (
        replace(WAITS, in_stages_s=1.0),
        "90% of it for handing batches over; that is 90.0 ms for each of 100 batches: larger batches need fewer of them",
    ),
    "start-up of many epochs": (
        replace(WAITS, startup_s=9.0, epochs=3),
        "90% of it for the beginnings and ends of epochs; 3.0 s for each of 3 epochs: persistent_workers=True keeps the workers",
    ),
    "start-up though persistent": (replace(WAITS, startup_s=9.0, epochs=3, persistent=True), "has nothing loaded ahead of it"),
    "start-up though loaded ahead": (
        replace(WAITS, startup_s=9.0, epochs=3, persistent=True, loaded_ahead=8),
        "though the first batches of most were loaded ahead of them",
    ),
    "start-up of one epoch": (replace(WAITS, startup_s=9.0), "9.0 s until the first batch and after the last: a longer run pays that once"),
    "more workers that are begun": (
        replace(WAITS, startup_s=9.0, growth_s=6.0, epochs=2, persistent=True, loaded_ahead=8, auto=True),
        '90% of it for starting workers; 6.0 s of that while num_workers="auto" began more of them: a longer run pays that once',
    ),
    "restarts": (replace(WAITS, restarts_s=9.0), "90% of it for workers that were replaced; report().story says why they ended"),
    "a stall that lasts": (
        waiting_now(replace(FINE, waited_s=0.5), 20.0),
        "the loop is waiting now, for 20.0 s; in all it waited 67% of the time (20.5 s of 30.5 s), 98% of it for samples that did not",
    ),
    "stalls": (
        replace(WAITS, stalls_s=9.0),
        "90% of it for samples that did not come; sample_timeout_s with on_bad_sample ends such waits",
    ),
    "auto, most of it before there were workers": (
        replace(WAITS, fetch_s=36.0, cpu_s=1.0, in_stages_s=9.5, cores=2, auto=True),
        "92% of it for the data set's __getitem__, which itself waits",
    ),
    "no workers": (
        replace(WAITS, workers=0, fetch_s=10.0),
        "__getitem__, which computes; num_workers=1 would do that beside the loop, about 2.0× as fast in all",
    ),
    "no workers, no cores": (
        replace(WAITS, workers=0, fetch_s=10.0, loop_s=0.01, cores=1),
        "workers would hardly change that on 1 core, so a sample itself must become cheaper (10.0 ms now)",
    ),
}


@pytest.mark.parametrize("name", ["large copies without workers", "large samples that compute"])
def test_copies_past_the_caches_are_offered_to_workers_that_copy_alone(name: str) -> None:
    assert "A=B" not in verdict(CASES[name][0])


@pytest.mark.parametrize("name", CASES)
def test_the_sentence(name: str) -> None:
    counted, says = CASES[name]
    assert says in verdict(counted)
    assert "\n" not in verdict(counted)


def test_what_computes_is_not_offered_a_cache() -> None:
    assert verdict(replace(WAITS, auto=True)).endswith("so a sample itself must become cheaper (36.0 ms now)")


def test_the_largest_cause_comes_first_and_fetch_is_parted_by_cpu_time() -> None:
    causes = waited_for(replace(WAITS, fetch_s=30.0, collate_s=6.0, cpu_s=14.0, queued_s=7.0, waited_s=36.0, in_stages_s=36.0))
    assert causes[Cause.WAITING] == pytest.approx(15.0)
    assert causes[Cause.COMPUTING] == pytest.approx(10.0)
    assert causes[Cause.COLLATE] == pytest.approx(6.0)
    assert causes[Cause.NO_CORE] == pytest.approx(5.0), "of the seven, two in collate"
    assert next(iter(causes)) is Cause.WAITING


def test_a_data_set_that_computes_beside_a_long_queue_is_not_said_to_wait() -> None:
    """Collating stands in the queue as well: what it took was once taken off the CPU time alone."""
    causes = waited_for(replace(WAITS, fetch_s=10.0, collate_s=10.0, cpu_s=10.0, queued_s=10.0, waited_s=20.0, in_stages_s=20.0))
    assert (causes[Cause.COMPUTING], causes[Cause.NO_CORE], causes[Cause.WAITING]) == pytest.approx((5.0, 5.0, 0.0))


def test_a_wait_that_goes_on_is_a_stall_only_where_it_is_far_longer_than_others() -> None:
    assert waiting_now(WAITS, 0.9).in_stages_s == WAITS.in_stages_s + 0.9
    assert waiting_now(replace(WAITS, batches=1), 50.0).in_stages_s == WAITS.in_stages_s + 50.0, "batches take as long as that"
    assert waiting_now(WAITS, 50.0).stalls_s == 50.0
    assert waiting_now(replace(FINE, batches=0), 50.0).startup_s == 50.0
    assert waiting_now(WAITS, 50.0).longest_wait_s == 50.0


seconds = st.floats(0, 1e6)


@example(waited=1.0, loop=0.0, blocked=1.0, fetch=5e-324, collate=0.0, cpu=0.0, queued=0.0, workers=1, cores=1)
@given(seconds, seconds, seconds, seconds, seconds, seconds, seconds, st.integers(0, 64), st.integers(1, 64))
def test_whatever_was_counted_the_causes_add_up_and_there_is_a_sentence(
    waited: float, loop: float, blocked: float, fetch: float, collate: float, cpu: float, queued: float, workers: int, cores: int
) -> None:
    counted = replace(
        FINE, waited_s=waited, loop_s=loop, in_stages_s=blocked, fetch_s=fetch, collate_s=collate, cpu_s=cpu, queued_s=queued,
        startup_s=waited / 3, workers=workers, cores=cores,
    )  # fmt: skip
    causes = waited_for(counted)
    assert set(causes) == set(Cause)
    assert all(value >= 0 for value in causes.values())
    assert sum(causes.values()) == pytest.approx(waited, rel=1e-6, abs=1e-6)
    assert verdict(counted)
