"""One thread at a time, for objects whose methods must not run beside each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from .errors import SessionError


class Turn:
    """Held by the thread that is inside an object's methods.

    A thread may take it again: what it calls on the way may use the object, and an interrupt
    in the moment before it is given back does not lock its own thread out.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def take(self) -> None:
        """Take the turn, without waiting.

        Raises:
            SessionError: another thread has it.
        """
        if not self._lock.acquire(blocking=False):
            raise SessionError(
                "another thread is using the session; use a session from one thread at a time"
            )

    def give_back(self) -> None:
        """End what :meth:`take` began."""
        self._lock.release()


class _TakesTurns(Protocol):
    _turn: Turn


_Self = TypeVar("_Self", bound=_TakesTurns)
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def alone(
    method: Callable[Concatenate[_Self, _Arguments], _Result],
) -> Callable[Concatenate[_Self, _Arguments], _Result]:
    """The method, refused while another thread is in one of the same object."""

    @wraps(method)
    def taking_turns(
        self: _Self, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        self._turn.take()
        try:
            return method(self, *args, **kwargs)
        finally:
            self._turn.give_back()

    return taking_turns
