"""For every test: nothing left behind (leak_guard.py), and an end in sight (time_limit.py). Of hypothesis the same examples in every run,
however slow the machine is. And Ctrl-C is heard, also where a shell has started the tests in the background, where it is ignored."""

import signal

from hypothesis import HealthCheck, settings

from leak_guard import leaves_nothing_behind, pytest_runtest_makereport
from time_limit import pytest_configure, pytest_runtest_call, pytest_runtest_setup, pytest_runtest_teardown, pytest_unconfigure

settings.register_profile("calm", deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
settings.load_profile("calm")
pytest_plugins = ["pytester"]
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

__all__ = [
    "leaves_nothing_behind",
    "pytest_configure",
    "pytest_runtest_call",
    "pytest_runtest_makereport",
    "pytest_runtest_setup",
    "pytest_runtest_teardown",
    "pytest_unconfigure",
]
