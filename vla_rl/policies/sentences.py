"""The sentences behind tokens, for a policy that hands them on: to its base policy, or to a tokenizer of its own."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from torch import Tensor

from vla_rl.core.errors import UserError
from vla_rl.core.flow_sampling import words_of

logger = logging.getLogger(__name__)


class Sentences:
    """Which sentence each row of tokens stands for.

    Tokens of our own are hashed words: case, punctuation and the words behind the last one are not in them. So two
    sentences may have the same tokens. Of two with the same words, the first one counts for both, which is logged.
    Other words are refused.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, str] = {}
        self._respelled: set[str] = set()

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Self:
        """Copies of a policy share the sentences: tokens of one are given to another."""
        return self

    def keep(self, tokens: Tensor, sentences: Sequence[str], alike: Callable[[str, str], bool], remedy: str) -> None:
        """Remember the sentences of tokens, int64 [B, L].

        Args:
            tokens: Of the sentences, one row for each.
            sentences: As the caller wrote them.
            alike: Whether two sentences mean the same to the base policy or tokenizer.
            remedy: What to do about two sentences that do not.

        Raises:
            UserError: If another sentence, with another meaning, has the same tokens.
        """
        for row, sentence in zip(tokens.cpu().numpy(), sentences, strict=True):
            known = self._known.setdefault(row.tobytes(), sentence)
            if known == sentence or alike(known, sentence):
                continue
            if words_of(known) != words_of(sentence):
                raise UserError(
                    f"{known!r} and {sentence!r} cannot be distinguished: their first {len(row)} words have the same "
                    f"numbers; {remedy}"
                )
            if sentence not in self._respelled:
                self._respelled.add(sentence)
                logger.warning("%r is read as %r: the words are the same", sentence, known)

    def of(self, tokens: Tensor) -> list[str]:
        """Return the sentences of tokens, int64 [B, L]."""
        return [self._known[row.tobytes()] for row in tokens.cpu().numpy()]
