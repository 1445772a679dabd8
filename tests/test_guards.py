"""The guards of conftest.py can fail: each is shown a test that does what it forbids, in a pytest of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
INI = """
[pytest]
markers =
    leaves: may leave something
    limit: seconds
"""


@pytest.fixture
def inner(pytester: pytest.Pytester) -> pytest.Pytester:
    shorter = "import leak_guard, time_limit\nleak_guard.PATIENCE_S = 0.3\ntime_limit.LIMIT_S = 60.0\ntime_limit.AGAIN_S = 0.5\n"
    path = f"import sys\nsys.path.insert(0, {str(TESTS)!r})\n"
    pytester.makeconftest(path + shorter + (TESTS / "conftest.py").read_text().replace('pytest_plugins = ["pytester"]', ""))
    pytester.makeini(INI)
    return pytester


def run(inner: pytest.Pytester, source: str, **outcomes: int) -> pytest.RunResult:
    inner.makepyfile(source)
    result = inner.runpytest_subprocess("-p", "no:cacheprovider", timeout=150)
    result.assert_outcomes(**outcomes)
    return result


def test_a_leak_fails_the_test_that_left_it_and_only_that(inner: pytest.Pytester) -> None:
    source = """
        import mmap, os, subprocess, threading
        KEPT = []
        def test_process():
            KEPT.append(subprocess.Popen(["sleep", "1000"]))
        def test_next():
            assert KEPT[0].wait(timeout=50) == -9
        def test_zombie():
            os.fork() or os._exit(0)
        def test_thread():
            threading.Thread(target=threading.Event().wait, name="stay", daemon=True).start()
        def test_descriptor():
            os.pipe()
        def test_mapping():
            fd = os.memfd_create("antifreeze-slot")
            os.ftruncate(fd, 4096)
            KEPT.append(mmap.mmap(fd, 4096))
            os.close(fd)
        def test_nothing():
            pass
        """
    expected = {
        "process": "*process: * sleep 1000*",
        "zombie": "*process: *zombie*",
        "thread": "*thread: <Thread(stay*",
        "descriptor": "*descriptor: * -> pipe:*",
        "mapping": "*mapping: /memfd:antifreeze-slot at *",
    }
    lines = [line for kind, text in expected.items() for line in (f"*ERROR at teardown of test_{kind}*", text)]
    run(inner, source, passed=7, errors=5).stdout.fnmatch_lines(lines)


def test_a_test_that_cleans_up_passes(inner: pytest.Pytester) -> None:
    run(
        inner,
        """
        import gc, leak_guard, multiprocessing, os, threading
        leak_guard.PATIENCE_S = 50.0

        def test_all_kinds():
            process = multiprocessing.get_context("fork").Process(target=int)
            process.start()
            thread = threading.Thread(target=int)
            thread.start()
            cycle = [open(os.devnull)]
            cycle.append(cycle)
            process.join()
            cycle[0].close()

        def test_the_standing_helpers_of_multiprocessing_are_no_leak():
            for method in ("spawn", "forkserver"):
                process = multiprocessing.get_context(method).Process(target=int)
                process.start()
                process.join()
                process.close()
        """,
        passed=2,
    )


def test_a_child_that_ends_by_itself_soon_is_no_leak_but_must_be_reaped(inner: pytest.Pytester) -> None:
    source = """
        import leak_guard, subprocess, threading
        leak_guard.PATIENCE_S = 50.0
        def test_soon():
            child = subprocess.Popen(["sleep", "0.1"])
            threading.Thread(target=child.wait).start()
        """
    run(inner, source, passed=1)


def test_the_marker_allows_one_kind_and_demands_a_reason(inner: pytest.Pytester) -> None:
    source = """
        import os, pytest
        @pytest.mark.leaves("descriptor", why="shown here")
        def test_allowed():
            os.pipe()
        @pytest.mark.leaves("thread", why="another kind")
        def test_other_kind():
            os.pipe()
        @pytest.mark.leaves("descriptor")
        def test_no_reason():
            pass
        @pytest.mark.leaves("everything", why="no such kind")
        def test_no_such_kind():
            pass
        """
    result = run(inner, source, passed=2, errors=3)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_other_kind*", '*name what it may leave, of*say why="*'])


def test_a_test_that_failed_anyway_is_not_asked_but_its_children_end(inner: pytest.Pytester) -> None:
    source = """
        import subprocess
        CHILDREN = []
        def test_fails():
            CHILDREN.append(subprocess.Popen(["sleep", "1000"]))
            assert 1 == 2
        def test_next():
            assert CHILDREN[0].wait(timeout=50) == -9
        """
    run(inner, source, passed=1, failed=1)


def test_a_test_past_its_limit_fails_with_all_stacks(inner: pytest.Pytester) -> None:
    source = """
        import os, pytest, threading, time
        soon = pytest.mark.limit(1)
        READ_END, WRITE_END = os.pipe()
        @soon
        def test_lock():
            threading.Event().wait()
        @soon
        def test_sleep():
            time.sleep(1000)
        @soon
        def test_read():
            os.read(READ_END, 1)
        @soon
        def test_loop():
            while True:
                pass
        def test_next():
            pass
        """
    result = run(inner, source, failed=4, passed=1)
    names = ("test_lock", "test_sleep", "test_read", "test_loop")
    result.stdout.fnmatch_lines([line for name in names for line in ("*the test ran past its limit of 1 s*", f"*in {name}*")])


@pytest.mark.slow
def test_the_limit_holds_without_a_marker_in_fixtures_and_when_it_is_swallowed(inner: pytest.Pytester) -> None:
    source = """
        import pytest, time, time_limit
        time_limit.LIMIT_S = 1.0
        @pytest.fixture
        def slow_to_come():
            time.sleep(1000)
        @pytest.fixture
        def slow_to_go():
            yield
            time.sleep(1000)
        def test_setup(slow_to_come):
            pass
        def test_teardown(slow_to_go):
            pass
        def test_swallows_once():
            try:
                time.sleep(1000)
            except BaseException:
                time.sleep(1000)
        """
    result = run(inner, source, passed=1, failed=1, errors=2)
    result.stdout.fnmatch_lines(["*the setup ran past its limit of 1 s*", "*the teardown ran past its limit of 1 s*"])


def test_a_c_call_that_never_returns_ends_pytest_with_all_stacks(inner: pytest.Pytester) -> None:
    inner.makepyfile(
        """
        import ctypes, pytest, time_limit
        time_limit.GRACE_S = 0.5
        @pytest.mark.limit(1)
        def test_deaf():
            lock = ctypes.PyDLL(None).pthread_mutex_lock  # PyDLL keeps the GIL, so no handler of Python's can run
            mutex = ctypes.create_string_buffer(64)
            lock(mutex)
            lock(mutex)
        """
    )
    result = inner.runpytest_subprocess("-p", "no:cacheprovider", timeout=150)
    assert result.ret == 1
    result.stderr.fnmatch_lines(["*Timeout*", "*in test_deaf"])


def test_a_hypothesis_test_may_use_both_guards(inner: pytest.Pytester) -> None:
    source = """
        from hypothesis import given, settings, strategies
        @settings(max_examples=5, database=None)
        @given(strategies.integers())
        def test_numbers(number):
            assert number == number
        """
    run(inner, source, passed=1)
