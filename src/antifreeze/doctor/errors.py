"""What the doctor cannot examine, each with its sentence.

AntifreezeError
└── PatientError               the process cannot be examined; the command exits with 2
    ├── NoSuchProcess
    ├── NotPython
    ├── NotAllowed
    └── PatientEnded           it ended while it was examined
"""

from __future__ import annotations

from antifreeze.errors import AntifreezeError


class PatientError(AntifreezeError):
    pass


class NoSuchProcess(PatientError):
    pass


class NotPython(PatientError):
    pass


class NotAllowed(PatientError):
    pass


class PatientEnded(PatientError):
    pass
