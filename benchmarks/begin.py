"""`begin.py COMMAND...`: says that it has begun, then becomes COMMAND. For measurements that a wrapper holds back for a while.

Its first line is `begun PID`; from there on the measurement's own time counts, in a session without the wrapper.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    try:
        os.setsid()
    except PermissionError:  # it leads a session already
        pass
    print(f"begun {os.getpid()}", flush=True)
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
