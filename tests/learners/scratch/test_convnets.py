"""AlexNet and ResNet-18 against torchvision and timm; the digits CNN on digits."""

from __future__ import annotations

import numpy as np
import pytest
import timm
import torch
import torchvision
from torch import nn

from learners.scratch.convnets import AlexNet, MnistCNN, ResNet18
from tests.learners.scratch.agree import check_agreement, parameters

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("network", "count"), [(AlexNet, 61_100_840), (ResNet18, 11_689_512), (MnistCNN, 1_199_882)]
)
def test_number_of_parameters(network, count):
    assert parameters(network()) == count


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_resnet18(library, training):
    theirs = (
        torchvision.models.resnet18() if library == "torchvision" else timm.create_model("resnet18")
    ).double()  # in float32, gradients behind norms of two items differ by 1e-5
    ours = ResNet18().double()
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1)).double()
    check_agreement(ours, theirs, x, training=training, tolerance=1e-10)
    # The running averages have changed, and agree with theirs.
    mean = theirs.layer3[0].bn2.running_mean
    assert torch.allclose(ours.layer3[0].bn2.running_mean, mean, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("size", [64, pytest.param(224, marks=pytest.mark.long("64 px are tried"))])
def test_alexnet(size):
    x = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1))
    theirs = torchvision.models.alexnet()
    check_agreement(AlexNet(), theirs, x, training=True, tolerance=1e-5)


class MNISTExample(nn.Module):
    """The CNN of PyTorch's MNIST example in torch's own layers, under its names."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = nn.functional.max_pool2d(self.conv2(self.conv1(x).relu()).relu(), 2)
        return self.fc2(self.fc1(x.flatten(1)).relu())


def test_digits_cnn_is_the_example():
    x = torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    check_agreement(MnistCNN(), MNISTExample(), x, training=True, tolerance=1e-5)


@pytest.mark.parametrize(
    ("network", "size", "shape"),
    [(AlexNet, 224, (256, 6, 6)), (ResNet18, 64, (512, 2, 2)), (MnistCNN, 40, (128,))],
)
def test_without_a_classifier_features(network, size, shape):
    assert network(None)(torch.zeros(2, 3, size, size)).shape == (2, *shape)


def test_digits_cnn_takes_grey_as_it_takes_equal_colours():
    network = MnistCNN().eval()
    x = torch.randn(2, 1, 28, 28)
    assert torch.allclose(network(x), network(x.expand(2, 3, 28, 28)), atol=1e-5)


@pytest.mark.timeout(600)
def test_digits_cnn_reads_digits():
    """After four epochs, 98 % of scikit-learn's held-out digits are right.

    The training digits are few (1347), so they are shifted by up to two pixels. Unshifted ones are learnt by heart, and
    the initial weights decide whether 96 or 98 % of the others are right.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    x = torch.from_numpy(digits.images.astype(np.float32) / 16)[:, None]  # [1797, 1, 8, 8]
    x = (nn.functional.interpolate(x, size=28, mode="bicubic") - 0.3) / 0.37  # mean 0, variance 1
    y = torch.from_numpy(digits.target)
    train, test = train_test_split(np.arange(len(y)), test_size=0.25, random_state=0, stratify=y)
    torch.manual_seed(0)
    network = MnistCNN()
    epochs, bs = 4, 16
    steps = epochs * (len(train) // bs)
    optimizer = torch.optim.AdamW(network.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for _ in range(epochs):
        order = torch.from_numpy(train)[torch.randperm(len(train))]
        for rows in order.split(bs)[: len(train) // bs]:
            shifted = x[rows].roll(torch.randint(-2, 3, (2,)).tolist(), (2, 3))
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(shifted), y[rows]).backward()
            optimizer.step()
            schedule.step()
    network.eval()
    with torch.inference_mode():
        right = (network(x[test]).argmax(1) == y[test]).float().mean().item()
    print(f"{right:.4f} of {len(test)} held-out digits")
    assert right >= 0.98
