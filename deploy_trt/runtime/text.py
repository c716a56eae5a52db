"""The task sentence as the numbers that the prefix graph reads."""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from deploy_trt.runtime.manifest import FileInfo, TextInfo, read_verified
from deploy_trt.runtime.weights import Array
from vla_rl.core.errors import CheckpointError, UserError, one_line
from vla_rl.core.flow_sampling import PADDING, hash_words


def make_tokenizer(info: TextInfo, folder: Path) -> Callable[[str], dict[str, Array]]:
    """Return a function: sentence -> inputs of the prefix graph by name, ``text`` int64 [1, L] and, of a tokenizer,
    ``text_mask`` bool [1, L]. A sentence is read once and remembered.

    Raises:
        UserError: if the tokenizers package is missing, or the tokenizer's file is missing or damaged.
    """
    if info.kind == "tokenizer":
        return functools.cache(_tokenizer(info, folder))
    if info.kind == "hashed_words":
        return functools.cache(lambda sentence: {"text": hash_words([sentence], info.length, info.vocabulary)})
    return lambda _: {}


def _tokenizer(info: TextInfo, folder: Path) -> Callable[[str], dict[str, Array]]:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UserError("this policy reads its task with a tokenizer; install the package 'tokenizers'") from error
    content = read_verified(folder, FileInfo(info.file, info.sha256))
    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises a bare Exception
        raise CheckpointError(f"{folder / info.file} is no tokenizer: {one_line(error)}") from error
    tokenizer.enable_truncation(info.length)

    def read(sentence: str) -> dict[str, Array]:
        ids = tokenizer.encode(sentence + info.suffix).ids
        text, mask = np.full((1, info.length), PADDING, np.int64), np.zeros((1, info.length), np.bool_)
        text[0, : len(ids)], mask[0, : len(ids)] = np.array(ids) + info.first, True
        return {"text": text, "text_mask": mask}

    return read
