"""What cannot be checked, each with its sentence; the command exits with 2."""

from __future__ import annotations

from antifreeze.errors import AntifreezeError


class NotCheckable(AntifreezeError):
    """The file cannot be read as Python, or the object is no data set."""
