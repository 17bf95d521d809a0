"""Provides sentences and their tokens: docstrings of Python's own library, and WordPiece as BERT's tokenizer.json has it."""

from __future__ import annotations

import ast
import sysconfig
import unicodedata
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LEAST_WORDS, _REST_WORDS = 5, 12


@cache
def list_documented() -> list[tuple[str, str]]:
    """Return (first sentence, the rest) of each docstring of the library's modules that has enough of both.

    They are in the order of a hash of the text, so that neighbours come from anywhere.
    """
    rest_by_first: dict[str, str] = {}
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_bytes())):
            text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef | ast.ClassDef) else None
            first, _, rest = (" ".join(text.split()) if text else "").partition(". ")
            if len(first.split()) >= _LEAST_WORDS and len(rest.split()) >= _REST_WORDS:
                rest_by_first.setdefault(first, rest)
    return sorted(rest_by_first.items(), key=lambda pair: _spread(pair[0]))


def _spread(text: str) -> int:
    value = 0
    for byte in text.encode():
        value = (value * 1099511628211 ^ byte) & (1 << 64) - 1
    return value


class Tokens:
    """A tokenizer: a text becomes int64[1, length] of ids, and int64[1, length] with ones where there is a token."""

    def __init__(self, tokenizer: Mapping[str, Any], length: int) -> None:
        self._ids, self._length = tokenizer["model"]["vocab"], length
        self._unknown = tokenizer["model"]["unk_token"]

    def __call__(self, text: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        pieces = [piece for word in _split(text) for piece in self._pieces(word)][: self._length - 2]
        ids, mask = np.zeros((1, self._length), np.int64), np.zeros((1, self._length), np.int64)
        token_ids = [self._ids[p] for p in ("[CLS]", *pieces, "[SEP]")]
        ids[0, : len(token_ids)], mask[0, : len(token_ids)] = token_ids, 1
        return ids, mask

    def _pieces(self, word: str) -> list[str]:
        """Return the pieces of a word, from the left the longest that the vocabulary has; the unknown token alone where none
        fits."""
        pieces, start = list[str](), 0
        while start < len(word):
            tried = ((("##" if start else "") + word[start:end], end) for end in range(len(word), start, -1))
            piece, start = next(((p, end) for p, end in tried if p in self._ids), ("", -1))
            if start < 0:
                return [self._unknown]
            pieces.append(piece)
        return pieces


def _split(text: str) -> list[str]:
    """Lower case without accents; punctuation stands alone."""
    plain = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
    marked = "".join(f" {c} " if not c.isalnum() and not c.isspace() and c.isprintable() else c for c in plain)
    return marked.split()
