"""The typed errors of ``sql_resident``; every one derives from ``sql_compact.CompactError``."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sql_compact import CompactError


class SessionError(CompactError):
    """A training session was asked for something it cannot do."""


class NonFiniteState(SessionError):
    """A step produced a loss, gradient or state that is not finite; the old state is kept."""


class OutOfMemory(SessionError):
    """The device has too little memory for a step; the message has the estimated need."""


class CheckpointError(SessionError):
    """A file of state could not be written, read, or matched with what was expected.

    Attributes:
        path: the file concerned, when the failure has one.
        member: the part of the file that is damaged or unsuitable, when one is known.
        mismatches: every difference between the file and the expected state, one line each.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | os.PathLike[str] | None = None,
        member: str | None = None,
        mismatches: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.path = path
        self.member = member
        self.mismatches = tuple(mismatches)
