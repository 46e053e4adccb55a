"""A byte-pair tokenizer (arXiv:1508.07909, algorithm 1; on bytes, as GPT-2): text to tokens and back."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise

#: A word with the space before it, other signs alike, or white space: pairs are not merged across these.
_WORDS = re.compile(r" ?\w+| ?[^\w\s]+|\s+(?!\S)|\s+")


class BytePairTokenizer:
    """Tokens are the 256 bytes and the merged pairs, so every text has tokens, and they give it back.

    Attributes
    ----------
    merges : for each pair of tokens that became one, in the order in which they were learnt, the new token.
    pieces : bytes of each token.
    """

    def __init__(self, merges: Iterable[tuple[int, int]] = ()) -> None:
        self.merges: dict[tuple[int, int], int] = {}
        self.pieces = [bytes([value]) for value in range(256)]
        for pair in merges:
            self._add(pair)

    @classmethod
    def train(cls, text: str, vocabulary: int) -> BytePairTokenizer:
        """Merge the most frequent pair of neighbours again and again, until there are ``vocabulary`` tokens, or no pair
        occurs twice; of equally frequent pairs the one with the lower tokens."""
        tokenizer = cls()
        words = Counter(tuple(word.encode()) for word in _WORDS.findall(text))
        while len(tokenizer.pieces) < vocabulary:
            pairs = Counter[tuple[int, int]]()
            for word, count in words.items():
                for pair in pairwise(word):
                    pairs[pair] += count
            best = min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)
            if best is None or pairs[best] < 2:
                break
            new = tokenizer._add(best)
            words = Counter({_merged(word, best, new): count for word, count in words.items()})
        return tokenizer

    def encode(self, text: str) -> list[int]:
        """Tokens of a text: in each word the pairs are merged in the order in which they were learnt."""
        tokens: list[int] = []
        for word in map(str.encode, _WORDS.findall(text)):
            ids: Sequence[int] = tuple(word)
            while known := self.merges.keys() & pairwise(ids):
                first = min(known, key=self.merges.__getitem__)
                ids = _merged(ids, first, self.merges[first])
            tokens += ids
        return tokens

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of tokens; bytes that are no UTF-8 become �."""
        return b"".join(self.pieces[token] for token in tokens).decode(errors="replace")

    def _add(self, pair: tuple[int, int]) -> int:
        self.merges[pair] = len(self.pieces)
        self.pieces.append(self.pieces[pair[0]] + self.pieces[pair[1]])
        return self.merges[pair]


def _merged(ids: Sequence[int], pair: tuple[int, int], new: int) -> tuple[int, ...]:
    """The tokens with each occurrence of a pair, from the left, replaced by a new token."""
    out: list[int] = []
    for token in ids:
        # The new token is in no pair yet, so of three equal tokens the first two become one.
        if out and (out[-1], token) == pair:
            out[-1] = new
        else:
            out.append(token)
    return tuple(out)
