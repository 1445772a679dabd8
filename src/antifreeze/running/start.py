"""Inside the process that runs the script, right after torch was imported: our DataLoader takes the place of torch's."""

from __future__ import annotations

import os
import sys

from antifreeze.errors import AntifreezeError


def start() -> None:
    """What goes wrong here is said, and the script goes on with torch's own loader."""
    from antifreeze import choices
    from antifreeze.running import reports
    from antifreeze.running.patch import replace_torch
    from antifreeze.running.settings import read_settings, trace_path
    from antifreeze.tracing import trace

    try:
        settings = read_settings({}, os.environ)
        replace_torch()
    except AntifreezeError as error:
        print(f"antifreeze: {error}; the script goes on with torch's own DataLoader", file=sys.stderr)
        return
    roll = reports.Roll(settings.report)
    roll.begin()
    choices.choose(settings.choices(roll.note))
    if settings.report_signal is not None:
        reports.report_on_signal(roll, settings.report_signal)
    if settings.trace is not None:
        trace(trace_path(settings.trace, os.environ, os.getpid())).start(make_file_now=False)
