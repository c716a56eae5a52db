"""The sentences behind tokens, for a policy that hands them on: to its base policy, or to a tokenizer of its own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from torch import Tensor

from vla_rl.core.errors import UserError


class Sentences:
    """Which sentence each row of tokens stands for.

    Tokens of our own are hashed words: case, punctuation and the words behind the last one are not in them. So two
    sentences may have the same tokens, and the second one is refused.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, str] = {}

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
            if known != sentence and not alike(known, sentence):
                raise UserError(
                    f"{known!r} and {sentence!r} cannot be distinguished: their first {len(row)} words have the same "
                    f"numbers, without case and punctuation; {remedy}"
                )

    def of(self, tokens: Tensor) -> list[str]:
        """Return the sentences of tokens, int64 [B, L]."""
        return [self._known[row.tobytes()] for row in tokens.cpu().numpy()]
