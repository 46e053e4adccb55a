"""Nearest rows of an embedding against scikit-learn's neighbours."""

from __future__ import annotations

import pytest
import torch
from sklearn.neighbors import NearestNeighbors
from torch.nn.functional import cosine_similarity

from learners.scratch.similarity import cosine, nearest


def test_cosines_are_torchs():
    torch.manual_seed(0)
    a, b = torch.randn(2, 5, 8).unbind(0)
    assert torch.allclose(cosine(a, b), cosine_similarity(a, b, dim=-1), atol=1e-6)
    assert cosine(a[0], 3 * a[0]).item() == pytest.approx(1, abs=1e-6)
    assert cosine(a[0], torch.zeros(8)).item() == 0


def test_nearest_rows_are_those_of_scikit_learn():
    torch.manual_seed(0)
    vectors = torch.randn(50, 8) * torch.rand(50, 1) * 10
    neighbours = NearestNeighbors(n_neighbors=6, metric="cosine").fit(vectors.numpy())
    distances, numbers = neighbours.kneighbors(vectors[:10].numpy())
    for row in range(10):
        found, similar = nearest(vectors, vectors[row], 6)
        assert found.tolist() == numbers[row].tolist()
        assert found[0] == row
        assert similar.tolist() == pytest.approx((1 - distances[row]).tolist(), abs=1e-6)
