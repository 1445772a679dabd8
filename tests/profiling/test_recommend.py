"""One setting from the measurements: tables, nothing measured."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest

from antifreeze.profiling.compare import Change, changes, left_out
from antifreeze.profiling.gil import believed, gil_text, two_threads
from antifreeze.profiling.measure import confirm_depth, worth_again
from antifreeze.profiling.model import Kind, Place, Profile, Samples, Trial
from antifreeze.profiling.recommend import all_depths, all_sizes, limit_of, needed_workers, next_count, next_with_step, recommend
from antifreeze.profiling.text import bins, text_lines
from antifreeze.profiling.trials import own_memory, rate_of, rows_of

GB = 2**30


def trial(workers: int, rate: float, **more: Any) -> Trial:
    kind = Kind.PROCESS if workers else Kind.INLINE
    return Trial(**{"kind": kind, "workers": workers, "batch_size": 32, "prefetch": None, "rate": rate, "spread": 0.01, "batches": 50,
                    "seconds": 1.0, "first_batch_s": 0.1, **more})  # fmt: skip


def samples(**more: Any) -> Samples:
    return Samples(**{"times": (0.01,) * 100, "slowest": (("7", 0.01),), "first_s": 0.02, "cpu_share": 1.0, "two_threads": 1.2,
                      "sample_bytes": 1000, "collate_s": 0.0001, "pickle_s": 0.001, "slot_s": 0.0001, "path": "rows", **more})  # fmt: skip


def profile(rates: dict[int, float], **more: Any) -> Profile:
    place = Place(8, 8, 100 * GB, "3.11", "2.13", "0.1", "now")
    trials = tuple(trial(workers, rate, worker_pss=100_000_000 if workers else None) for workers, rate in rates.items())
    return Profile(**{"target": "m:d", "dataset": "D", "length": 1000, "batch_size": 32, "arguments": (("shuffle", "True"),),
                      "present_workers": 0, "place": place, "samples": samples(), "trials": trials,
                      "present": trial(0, 50, kind=Kind.TORCH), **more})  # fmt: skip


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ({0: 100, 1: 100, 2: 200, 4: 400}, [4]),
        ({0: 100, 1: 100, 2: 200, 4: 380, 8: 400}, [8, 4]),  # the best first
        ({0: 10, 1: 100, 2: 200, 4: 400}, [4, 0]),  # ten times as slow as one sample after the other
        ({0: 100, 1: 100, 2: 50, 4: 400}, [4, 2]),  # slower than with fewer and with more
        ({0: 100, 1: 20, 2: 20, 4: 20}, [0, 1]),  # workers only cost: one of them is asked again
    ],
)
def test_what_is_worth_a_second_try(rates: dict[int, float], expected: list[int]) -> None:
    assert [each.workers for each in worth_again(profile(rates).trials, 0.01)] == expected


# --- which workers ---


@pytest.mark.parametrize(
    ("rates", "step_s", "expected"),
    [
        ({0: 100, 1: 100, 2: 200, 4: 400}, None, 4),
        ({0: 100, 1: 100, 2: 200, 4: 205}, None, 2),  # 2 are within 5 %
        ({0: 100, 1: 60, 2: 80}, None, 0),  # workers only cost
        ({0: 100, 1: 100, 2: 200, 4: 400}, 0.2, 2),  # 32 / 0.2 s = 160 samples/s, with 10 % to spare
        ({0: 100, 1: 100, 2: 200, 4: 400}, 1.0, 1),  # 32 samples/s: one is enough, none would load between steps
        ({0: 10_000, 1: 9_000}, 1.0, 0),  # loading is a fiftieth of the step
        ({0: 100, 1: 100, 2: 200, 4: 400}, 0.01, 4),  # never enough: the fastest
    ],
)
def test_the_fewest_workers_that_do(rates: dict[int, float], step_s: float | None, expected: int) -> None:
    advice = recommend(profile(rates, step_s=step_s))
    assert advice.chosen.workers == expected
    assert f"num_workers={expected}" in advice.line
    assert ("persistent_workers=True" in advice.line) == (expected > 0)


def test_samples_that_wait_may_be_kept_nearer() -> None:
    rates = {0: 100, 2: 200}
    waits = samples(cpu_share=0.1)
    assert recommend(profile(rates, samples=waits)).hints == (
        "samples wait 9.0 ms each: antifreeze.cached keeps those of slow storage in local files",
    )
    assert not recommend(profile(rates)).hints
    assert not recommend(profile(rates, samples=waits, step_s=1.0)).hints  # the model is slower
    assert not recommend(profile(rates, samples=samples(cpu_share=0.1, times=(0.0005,) * 100, collate_s=0.0))).hints


def test_workers_that_do_not_fit_into_memory_are_not_recommended() -> None:
    found = profile({0: 100, 2: 200, 4: 400})
    small = Place(8, 8, 300_000_000, "3.11", "2.13", "0.1", "now")
    assert recommend(Profile(**{**found.__dict__, "place": small})).chosen.workers == 2


def test_the_line_keeps_the_arguments_and_the_gain_is_against_what_is_used_now() -> None:
    advice = recommend(profile({0: 50, 2: 100}, arguments=(("shuffle", "True"), ("collate_fn", "pad"))))
    assert advice.line.startswith("loader = antifreeze.DataLoader(dataset, batch_size=32, shuffle=True, collate_fn=pad, num_workers=2")
    assert advice.gain == 2.0
    assert recommend(profile({0: 50}, present=None)).gain is None


def test_where_the_present_loader_is_the_fastest_it_stays() -> None:
    advice = recommend(profile({0: 50, 2: 100}, present=trial(0, 150, kind=Kind.TORCH)))
    assert advice.line == "loader = torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True, num_workers=0)"
    assert advice.gain == 1.0 and "leave it as it is" in advice.why
    assert recommend(profile({0: 50, 2: 148}, present=trial(0, 150, kind=Kind.TORCH))).chosen.kind is Kind.PROCESS


def test_depth_leaves_its_default_only_for_a_clear_difference() -> None:
    for rate, spread, expected in ((110, 0.01, False), (130, 0.01, True), (130, 0.5, False)):
        deep = trial(2, rate, prefetch=8, spread=spread)
        assert ("prefetch_factor=8" in recommend(profile({0: 50, 2: 100}, depths=(deep,))).line) == expected


def test_a_larger_batch_is_compared_with_what_is_recommended() -> None:
    deep, large = trial(2, 200, prefetch=1), trial(2, 150, batch_size=128)
    assert "batch_size=128 would load 1.5 × as fast" in recommend(profile({0: 50, 2: 100}, sizes=(large,))).hints[0]
    with_depth = recommend(profile({0: 50, 2: 100}, sizes=(large,), depths=(deep,)))
    assert with_depth.rate == 200 and not with_depth.hints  # 150 would be slower than the line to paste


def test_a_depth_tried_with_other_workers_tells_nothing() -> None:
    assert "prefetch_factor" not in recommend(profile({0: 50, 2: 100, 4: 200}, depths=(trial(2, 300, prefetch=8),))).line


def test_a_depth_that_seems_better_is_confirmed_beside_the_default() -> None:
    """The default was measured while something else ran: once more, it is as fast."""
    found = profile({0: 50, 2: 100}, depths=(trial(2, 200, prefetch=1),))
    asked: list[int] = []

    def run(kind: Kind, workers: int) -> Trial:
        asked.append(workers)
        return trial(workers, 198, kind=kind)

    confirmed = confirm_depth(found, found.trials[1], run)
    assert asked == [2] and "prefetch_factor" not in recommend(confirmed).line and recommend(confirmed).rate == 198
    sure = profile({0: 50, 2: 100}, depths=(trial(2, 101, prefetch=1),))
    assert confirm_depth(sure, sure.trials[1], run) is sure and asked == [2]


def test_the_model_waits_or_not() -> None:
    slow = recommend(profile({0: 100, 1: 100, 2: 200}, step_s=0.016))  # 2000 samples/s
    assert slow.step.startswith("the model will wait 90% of the time")
    assert "about 22 workers, and there are 8 cores" in slow.step
    assert needed_workers(profile({0: 100, 1: 100}, step_s=0.016)) == 22
    assert recommend(profile({0: 100, 1: 100, 2: 200}, step_s=0.64)).step.startswith("the model will not wait")
    assert recommend(profile({0: 100})).step == ""


def test_what_the_loop_showed_with_the_step_counts_more_than_rates() -> None:
    rates = {0: 100, 1: 100, 2: 200, 4: 400}
    waits, less, fed = (trial(workers, 90, waited_share=share) for workers, share in ((1, 0.4), (2, 0.2), (4, 0.02)))
    found = profile(rates, step_s=0.64, with_steps=(waits,))
    following = next_with_step(found)
    assert following is not None and following.workers == 2
    assert recommend(found).step.startswith("the model will wait 40% of the time")
    assert next_with_step(profile(rates, step_s=0.64, with_steps=(fed,))) is None
    assert next_with_step(profile(rates, step_s=0.64, with_steps=(waits, less, waits))) is None
    advice = recommend(profile(rates, step_s=0.64, with_steps=(waits, less, fed)))
    assert advice.chosen.workers == 4 and advice.step.startswith("the model will not wait")
    assert recommend(profile(rates, step_s=0.64, with_steps=(waits, less))).chosen.workers == 2


# --- threads ---


def threads(rates: dict[int, float], **more: Any) -> tuple[Trial, ...]:
    return tuple(trial(workers, rate, kind=Kind.THREAD, **more) for workers, rate in rates.items())


@pytest.mark.parametrize(
    ("rates", "of_threads", "spread", "step_s", "expected"),
    [
        ({0: 100, 4: 400}, {4: 400, 16: 410}, 0.01, None, (Kind.PROCESS, 4)),  # as fast is not enough
        ({0: 100, 4: 400}, {4: 400, 16: 455}, 0.01, None, (Kind.PROCESS, 4)),
        ({0: 100, 4: 400}, {4: 400, 16: 500, 32: 505}, 0.01, None, (Kind.THREAD, 16)),  # by a margin; the fewest of them
        ({0: 100, 4: 400}, {4: 400, 16: 500}, 0.5, None, (Kind.PROCESS, 4)),  # unsure
        ({0: 100, 4: 400}, {4: 400, 16: 700}, 0.5, None, (Kind.THREAD, 16)),  # unsure, but much
        ({0: 100, 4: 400}, {16: 2000}, 0.01, 0.1, (Kind.PROCESS, 4)),  # 320 samples/s: processes are enough
        ({0: 100, 4: 400}, {8: 800, 16: 2000}, 0.01, 0.05, (Kind.THREAD, 8)),  # 640 samples/s: they are not
        ({0: 100, 1: 60}, {1: 90, 2: 80}, 0.01, None, (Kind.INLINE, 0)),
    ],
)
def test_threads_only_where_they_win_by_a_margin(
    rates: dict[int, float], of_threads: dict[int, float], spread: float, step_s: float | None, expected: tuple[Kind, int]
) -> None:
    found = profile(rates, step_s=step_s)
    advice = recommend(replace(found, trials=(*found.trials, *threads(of_threads, spread=spread))))
    assert (advice.chosen.kind, advice.chosen.workers) == expected
    assert ('workers="thread"' in advice.line) == (expected[0] is Kind.THREAD)
    told = [hint for hint in advice.hints if "thread-safe" in hint and "ends the process" in hint]
    assert bool(told) == (expected[0] is Kind.THREAD)


def test_the_line_for_threads_has_nothing_that_they_refuse() -> None:
    found = profile({0: 100, 2: 200}, arguments=(("shuffle", "True"), ("multiprocessing_context", "'spawn'")))
    line = recommend(replace(found, trials=(*found.trials, *threads({8: 900})))).line
    assert line == 'loader = antifreeze.DataLoader(dataset, batch_size=32, shuffle=True, num_workers=8, workers="thread")'


@pytest.mark.parametrize(
    ("done", "cpu_share", "most", "expected"),
    [
        ({}, 0.1, None, 1),
        ({1: 10, 2: 20, 4: 40, 8: 80}, 0.1, None, 16),
        ({1: 10, 2: 20, 4: 40, 8: 41, 16: 40}, 0.1, None, None),  # flat twice in a row
        ({32: 320}, 0.1, None, 64),  # waiting: 64 on any machine
        ({32: 320, 64: 640}, 0.1, None, None),
        ({1: 10, 2: 20, 4: 40}, 1.0, None, None),  # computing on 2 cores
        ({1: 10}, 0.1, 1, None),
        ({1: 10, 2: 20}, 0.1, 3, 3),
    ],
)
def test_the_next_count_of_threads(done: dict[int, float], cpu_share: float, most: int | None, expected: int | None) -> None:
    assert next_count(threads(done), 2, cpu_share, most, 100 * GB, Kind.THREAD) == expected


def test_threads_whose_batches_would_not_fit_are_not_tried() -> None:
    assert next_count(threads({1: 10}, in_flight=GB), 8, 0.1, None, 4 * GB, Kind.THREAD) == 2
    assert next_count(threads({1: 10}, in_flight=GB), 8, 0.1, None, 2 * GB, Kind.THREAD) is None


def test_threads_with_the_step_are_not_taken_for_processes() -> None:
    found = profile({0: 100, 2: 200, 4: 400}, step_s=0.05)
    found = replace(found, trials=(*found.trials, *threads({2: 900, 4: 1800})))
    found = replace(found, with_steps=threads({2: 500}, waited_share=0.3))
    following = next_with_step(found)
    assert following is not None and (following.kind, following.workers) == (Kind.THREAD, 4)
    assert recommend(found).step.startswith("the model will wait 30% of the time") and "2 threads give 900" in recommend(found).step


def test_depths_and_sizes_show_what_is_used_now_among_them() -> None:
    found = profile({0: 50, 2: 100}, depths=(trial(2, 90, prefetch=1), trial(2, 110, prefetch=4)), sizes=(trial(2, 120, batch_size=64),))
    found = replace(found, trials=(*threads({2: 7}), *found.trials))  # as many threads are another thing
    assert [(each.prefetch, each.rate) for each in all_depths(found)] == [(1, 90), (2, 100), (4, 110)]
    assert [(each.batch_size, each.rate) for each in all_sizes(found)] == [(32, 100), (64, 120)]
    text = "\n".join(line for _, line in text_lines(found, recommend(found)))
    assert "2 ahead (default)" in text and "throughput over threads" in text and "2 threads" in text
    assert all_depths(profile({0: 50, 2: 100})) == []


# --- the bottleneck ---


@pytest.mark.parametrize(
    ("seen", "costs", "step_s", "expected"),
    [
        ({"cpu_share": 0.1}, {"fetch_s": 0.01, "collate_s": 0.001, "transport_s": 0.0}, None, "wait"),
        ({"cpu_share": 0.9}, {"fetch_s": 0.01, "collate_s": 0.001, "transport_s": 0.0}, None, "compute"),
        ({}, {"fetch_s": 0.001, "collate_s": 0.01, "transport_s": 0.0}, None, "collate"),
        ({}, {"fetch_s": 0.001, "collate_s": 0.0, "transport_s": 0.01}, None, "transport"),
        ({}, {"fetch_s": 0.01, "collate_s": 0.001, "transport_s": 0.0}, 10.0, "model"),
        ({}, {"fetch_s": 0.01, "collate_s": 0.001, "transport_s": 0.0}, 0.001, "compute"),
    ],
)
def test_exactly_one_stage_is_the_bottleneck(seen: dict[str, Any], costs: dict[str, float], step_s: float | None, expected: str) -> None:
    advice = recommend(profile({}, trials=(trial(2, 200, **costs),), samples=samples(**seen), step_s=step_s))
    assert [stage.name for stage in advice.stages if stage.is_bottleneck] == [expected]
    fetched = sum(stage.seconds for stage in advice.stages if stage.name in ("wait", "compute"))
    assert fetched == pytest.approx(costs["fetch_s"])


# --- which count next, and when to stop ---


@pytest.mark.parametrize(
    ("done", "cores", "cpu_share", "most", "expected"),
    [
        ({}, 8, 1.0, None, 0),
        ({0: 10}, 8, 1.0, None, 1),
        ({0: 10, 1: 10}, 8, 1.0, None, 2),
        ({0: 10, 1: 10, 2: 20, 3: 30, 4: 40}, 8, 1.0, None, 6),
        ({0: 10, 1: 10, 2: 20, 3: 20, 4: 20}, 8, 1.0, None, None),  # flat twice in a row
        ({0: 10, 1: 10, 2: 20, 3: 20, 4: 40}, 8, 1.0, None, 6),  # once is chance
        ({0: 10, 1: 10, 2: 20, 3: 30, 4: 40}, 2, 1.0, None, None),  # computing: twice the cores
        ({0: 10, 1: 10, 2: 20, 3: 30, 4: 40}, 2, 0.1, None, 6),  # waiting needs no core
        ({0: 10, 1: 10}, 8, 1.0, 1, None),
        ({0: 10, 1: 10, 2: 20, 3: 30, 4: 40}, 8, 1.0, 5, 5),
        ({0: 10, 1: 10, 2: 20, 3: 30, 4: 40, 5: 50}, 8, 1.0, 5, None),
    ],
)
def test_the_next_count(done: dict[int, float], cores: int, cpu_share: float, most: int | None, expected: int | None) -> None:
    assert next_count([trial(workers, rate) for workers, rate in done.items()], cores, cpu_share, most, 100 * GB) == expected


def test_counts_that_would_not_fit_are_not_tried() -> None:
    done = [trial(0, 10), trial(1, 10, worker_pss=GB)]
    assert next_count(done, 8, 1.0, None, 4 * GB) == 2
    assert next_count(done, 8, 1.0, None, 2 * GB) is None


def test_limits() -> None:
    assert limit_of(4, 1.0) == 8
    assert limit_of(1, 0.1) == 8
    assert limit_of(64, 0.1) == 32


# --- small pure things ---


def test_rates_come_with_their_uncertainty() -> None:
    even = [(0.1 * number, 10 * number) for number in range(41)]
    rate, spread = rate_of(even)
    assert rate == pytest.approx(100) and spread < 0.01
    jumpy = [(0.1 * number, 10 * number + (60 if number > 20 else 0)) for number in range(41)]
    assert rate_of(jumpy)[1] > 0.05
    assert rate_of(even[:3])[1] == float("inf")
    assert rate_of(even[:1]) == (0.0, float("inf"))


def test_the_gil_is_told_only_where_the_machine_can_show_it() -> None:
    assert believed(1.9, None) == 1.9
    assert believed(1.0, 1.9) == 1.0
    assert believed(27.4, None) is None  # one thread was held up by something else
    assert believed(1.0, 1.1) is None  # no second core for anybody just now
    assert (
        "is released" in gil_text(1.9) and "is held (" in gil_text(1.0) and "for a part" in gil_text(1.5) and "could not" in gil_text(None)
    )


def test_two_threads_that_sleep_are_told_from_two_that_compute() -> None:
    sleeping = two_threads(lambda: lambda: time.sleep(0.005), 0.4)
    computing = two_threads(lambda: lambda: list(map(str, range(1000))), 0.4)
    assert sleeping is None or sleeping > 1.3
    assert sleeping is None or computing is None or computing < sleeping


def test_what_two_threads_may_not_do_raises() -> None:
    def make() -> Any:
        owner = []

        def load() -> None:
            owner.append(threading.get_ident())
            if len(set(owner)) > 1 or threading.active_count() > 2:
                raise RuntimeError("created in another thread")

        return load

    with pytest.raises(RuntimeError, match="another thread"):
        two_threads(make, 0.4)


def test_memory_of_a_worker_is_without_the_batches() -> None:
    rollup = "55-77 ---p 0 00:00 0 [rollup]\nRss: 900 kB\nPss: 700 kB\nPss_Anon: 300 kB\nPss_File: 100 kB\nPss_Shmem: 300 kB\n"
    assert own_memory(rollup) == 400 * 1024
    assert own_memory("head\nPss: 700 kB\n") == 700 * 1024  # older kernels
    assert own_memory(None) is None


def test_rows_of_a_short_batch_are_counted() -> None:
    import torch

    assert rows_of([torch.zeros(5, 3), torch.zeros(5)], 8) == 5
    assert rows_of({"text": ["a", "b"]}, 2) == 2
    assert rows_of(torch.zeros(100, 3), 8) == 8  # packed: not rows


@pytest.mark.parametrize("times", [(0.01,), (0.01,) * 50, tuple(0.001 * (1 + n % 7) for n in range(100)), (0.001, 10.0), (0.0, 0.1)])
def test_every_sample_is_in_one_bin(times: tuple[float, ...]) -> None:
    found = bins(times)
    assert sum(many for _, _, many in found) == len(times)
    assert found[0][0] == min(times) and found[-1][1] == pytest.approx(max(times))


def test_changes_and_what_they_mean() -> None:
    assert Change("a", "ms", 10, 5, less_is_better=True).word == "better"
    assert Change("a", "samples/s", 10, 5, less_is_better=False).word == "worse"
    assert Change("a", "ms", 10, 10.2, less_is_better=True).word == "same"
    assert Change("a", "ms", 0, 5, less_is_better=True).word == "same"
    old, new = profile({0: 100, 1: 50}).as_dict(), profile({0: 100, 2: 300}).as_dict()
    words = {change.name: change.word for change in changes(old, new)}
    assert words["no workers"] == "same" and words["the best"] == "same"  # the 300 are of a count that the other did not try
    assert "1 worker" not in words and "2 workers" not in words  # only what both have
    assert left_out(old, new) == "not compared, since both must have it: only in the earlier one: 1 worker; only in this one: 2 workers"
    assert left_out(old, old) == ""
