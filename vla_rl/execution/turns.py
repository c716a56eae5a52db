"""Many attempts in one thread: each runs until it has something to ask, then all questions are answered at once.

An attempt is ordinary code (the loop, its executor, its supervisor) on a stack of its own. Asking suspends it there, so
nothing in it knows of the others, and what comes of it does not depend on them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from greenlet import greenlet

Answer = Callable[[Sequence[Any]], Sequence[Any]]


class Turns:
    """Runs attempts that ask. ``answer`` is given what several of them ask, and answers in the same order."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._hub: greenlet | None = None

    def ask(self, question: Any) -> Any:
        """Return the answer to a question, of which others may have a share. Called by an attempt."""
        if self._hub is None or self._hub is greenlet.getcurrent():
            raise RuntimeError("only an attempt that runs in turns may ask")
        return self._hub.switch(question)

    def run[Result](self, attempts: Iterable[Callable[[], Result]], at_once: int) -> Iterator[Result]:
        """Run the attempts, ``at_once`` of them at the same time, and yield what each returns as it ends.

        An attempt is taken from the iterable when there is room for it. What one raises ends the others where they are.
        """
        self._hub = greenlet.getcurrent()
        pending = iter(attempts)
        asking: list[tuple[greenlet, Any]] = []
        try:
            while True:
                while len(asking) < at_once and (attempt := next(pending, None)) is not None:
                    lane = greenlet(attempt)
                    said = lane.switch()
                    if lane.dead:
                        yield said
                    else:
                        asking.append((lane, said))
                if not asking:
                    return
                answers = self._answer([question for _, question in asking])
                for (lane, _), answer in zip(asking.copy(), answers, strict=True):
                    said = lane.switch(answer)
                    asking.pop(0)
                    if lane.dead:
                        yield said
                    else:
                        asking.append((lane, said))
        finally:
            for lane, _ in asking:
                lane.throw()
