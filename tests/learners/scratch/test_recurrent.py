"""The recurrent network against torch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from learners.scratch.recurrent import RNN, RecurrentLanguageModel
from tests.learners.scratch.agree import close


@pytest.mark.parametrize("depth", [1, 3])
def test_states_and_gradients_are_those_of_torchs(depth):
    torch.manual_seed(0)
    ours, theirs = RNN(5, 7, depth), nn.RNN(5, 7, depth, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    x, start = torch.randn(3, 11, 5), torch.randn(depth, 3, 7)
    for state in (None, start):
        results = [network(x, state) for network in (ours, theirs)]
        for mine, expected in zip(*results, strict=True):
            close(mine, expected, 1e-5, "states")
        gradients = [
            torch.autograd.grad(
                states.square().mean() + last.sum(), [*network.parameters()], retain_graph=True
            )
            for network, (states, last) in zip((ours, theirs), results, strict=True)
        ]
        for mine, expected in zip(*gradients, strict=True):
            close(mine, expected, 1e-5, "gradient")


def test_its_weights_start_as_torchs():
    torch.manual_seed(0)
    ours, theirs = RNN(30, 400), nn.RNN(30, 400)
    for name, weight in theirs.named_parameters():
        mine = ours.get_parameter(name)
        assert mine.shape == weight.shape
        assert mine.abs().max().item() == pytest.approx(weight.abs().max().item(), rel=0.02)
        assert mine.std().item() == pytest.approx(weight.std().item(), rel=0.1)


def test_it_goes_on_from_a_state_and_does_not_look_ahead():
    torch.manual_seed(0)
    rnn, x = RNN(5, 7, 2), torch.randn(3, 11, 5)
    states, last = rnn(x)
    first, state = rnn(x[:, :4])
    rest, end = rnn(x[:, 4:], state)
    assert torch.allclose(torch.cat((first, rest), dim=1), states, atol=1e-6)
    assert torch.allclose(end, last, atol=1e-6)
    assert torch.equal(last[-1], states[:, -1])


def test_the_language_model_is_embedding_rnn_and_linear():
    torch.manual_seed(0)
    model, rnn = RecurrentLanguageModel(9, 6), nn.RNN(6, 6, batch_first=True)
    rnn.load_state_dict(model.rnn.state_dict())
    ids = torch.randint(9, (2, 8))
    states, _ = rnn(nn.functional.embedding(ids, model.tokens.weight))
    logits = nn.functional.linear(states, model.proj.weight, model.proj.bias)
    close(model(ids), logits, 1e-5, "logits")
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
    close(model.loss(ids, ids), loss, 1e-5, "loss")
