"""The byte-pair tokenizer against Hugging Face's tokenizers, and against the definition of its training."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from learners.scratch.tokenizer import BytePairTokenizer

TEXT = (
    "the lower the newer, the newest and the lowest: wider widest; she sells sea shells by the sea shore "
    "— Grüße aus Köln, 東京の東, naïve café 🦉🦉\n\n\tif x  == 10:\n    return lower(newest)\n"
) * 3
OTHERS = [
    "",
    " ",
    "lowest of the low",
    "unseen: Ωmega\r\n  two  spaces ",
    "aaaaa aaaa",
    "🦉é東\x00",
]


@pytest.fixture(scope="module")
def trained() -> BytePairTokenizer:
    return BytePairTokenizer.train(TEXT, 340)


def theirs(ours: BytePairTokenizer) -> Tokenizer:
    """The same merges in the library, which writes bytes as characters."""
    letters = {}
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [value for value in range(256) if value not in printable]
    for value in printable:
        letters[value] = chr(value)
    for number, value in enumerate(others):
        letters[value] = chr(256 + number)
    names = ["".join(letters[value] for value in piece) for piece in ours.pieces]
    merges = [(names[a], names[b]) for a, b in ours.merges]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, merges))
    words = Regex(r" ?\w+| ?[^\w\s]+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.mark.parametrize("text", [TEXT, *OTHERS])
def test_tokens_are_those_of_the_library_and_give_the_text_back(trained, text):
    tokens = trained.encode(text)
    assert tokens == theirs(trained).encode(text).ids
    assert trained.decode(tokens) == text


def test_each_merge_is_the_most_frequent_pair_at_its_time(trained):
    words = re.findall(r" ?\w+| ?[^\w\s]+|\s+(?!\S)|\s+", TEXT)
    merges = list(trained.merges)
    for number in (0, 1, 5, 20, len(merges) - 1):
        so_far = BytePairTokenizer(merges[:number])
        counts = Counter(
            pair for word in words for ids in [so_far.encode(word)] for pair in pairwise(ids)
        )
        assert counts[merges[number]] == max(counts.values()) >= 2
    assert b"the" in trained.pieces
    assert len(trained.encode(TEXT)) < 0.6 * len(TEXT.encode())


def test_it_stops_when_no_pair_occurs_twice():
    tokenizer = BytePairTokenizer.train("ab ab", 1000)
    assert tokenizer.pieces[256:] == [b"ab"]
    assert BytePairTokenizer.train("", 300).encode("hi") == [104, 105]


def test_bytes_that_are_no_text_are_shown_as_such():
    assert BytePairTokenizer().decode([0x61, 0xFF, 0x62]) == "a\ufffdb"
