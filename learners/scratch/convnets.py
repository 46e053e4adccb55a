"""Three convolutional networks: for digits, AlexNet, and ResNet-18 from its residual blocks.

With ``n_classes=None`` a network has no classifier and gives its feature map: a body for
fine-tuning. Convolutions and pooling are torch's; what the files are about is how they are put
together.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from learners.scratch.layers import BatchNorm, Dropout, Linear


class DigitsCNN(nn.Module):
    """Two convolutions and two linear layers: 1,199,882 parameters at 10 classes.

    Input [batch, 1 or 3, 28, 28]; colour is averaged to grey. Logits [batch, n_classes]; without a
    classifier the feature map [batch, 64, 12, 12], at other sizes [batch, 64, h/2 - 2, w/2 - 2].
    """

    def __init__(self, n_classes: int | None = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.pool = nn.MaxPool2d(2)
        self.head: nn.Module | None = None
        if n_classes is not None:
            self.head = nn.Sequential(
                Dropout(0.25),
                nn.Flatten(),  # [batch, 64 * 12 * 12]
                Linear(9216, 128),
                nn.ReLU(),
                Dropout(0.5),
                Linear(128, n_classes),
            )

    def forward(self, x: Tensor) -> Tensor:
        x = x.mean(1, keepdim=True)  # [batch, 1, 28, 28]
        x = self.conv1(x).relu()  # [batch, 32, 26, 26]
        x = self.conv2(x).relu()  # [batch, 64, 24, 24]
        x = self.pool(x)  # [batch, 64, 12, 12]
        return x if self.head is None else self.head(x)


class AlexNet(nn.Module):
    """The network of 2012 as it has been trained since (1404.5997): 61,100,840 parameters.

    Input [batch, 3, 224, 224], at least 63 pixels a side. Logits [batch, n_classes], or the feature
    map [batch, 256, 6, 6]. Nine tenths of it are the first two linear layers.
    """

    def __init__(self, n_classes: int | None = 1000) -> None:
        super().__init__()
        # Shapes behind the layers are those of 224 pixels.
        self.conv1 = nn.Conv2d(3, 64, 11, stride=4, padding=2)  # [batch, 64, 55, 55]
        self.conv2 = nn.Conv2d(64, 192, 5, padding=2)  # [batch, 192, 27, 27]
        self.conv3 = nn.Conv2d(192, 384, 3, padding=1)  # [batch, 384, 13, 13]
        self.conv4 = nn.Conv2d(384, 256, 3, padding=1)  # [batch, 256, 13, 13]
        self.conv5 = nn.Conv2d(256, 256, 3, padding=1)  # [batch, 256, 13, 13]
        self.pool = nn.MaxPool2d(3, stride=2)
        self.head: nn.Module | None = None
        if n_classes is not None:
            self.head = nn.Sequential(
                nn.AdaptiveAvgPool2d(6),  # [batch, 256, 6, 6] whatever the size of the input
                nn.Flatten(),
                Dropout(0.5),
                Linear(256 * 6 * 6, 4096),
                nn.ReLU(),
                Dropout(0.5),
                Linear(4096, 4096),
                nn.ReLU(),
                Linear(4096, n_classes),
            )

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.conv1(x).relu())  # [batch, 64, 27, 27]
        x = self.pool(self.conv2(x).relu())  # [batch, 192, 13, 13]
        x = self.conv4(self.conv3(x).relu()).relu()  # [batch, 256, 13, 13]
        x = self.pool(self.conv5(x).relu())  # [batch, 256, 6, 6]
        return x if self.head is None else self.head(x)


class ResidualBlock(nn.Module):
    """relu(x + f(x)): two convolutions learn what to add (1512.03385, figure 2).

    [batch, n_in, h, w] -> [batch, n_out, h / stride, w / stride]. Where the shape changes, x passes
    a convolution of one pixel on its way around.
    """

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        # No biases: the norm that follows would take them off again.
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False)
        self.norm1 = BatchNorm(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.norm2 = BatchNorm(n_out)
        self.around: nn.Module | None = None
        if stride != 1 or n_in != n_out:
            conv = nn.Conv2d(n_in, n_out, 1, stride, bias=False)
            self.around = nn.Sequential(OrderedDict(conv=conv, norm=BatchNorm(n_out)))

    def forward(self, x: Tensor) -> Tensor:
        around = x if self.around is None else self.around(x)
        x = self.norm1(self.conv1(x)).relu()
        return (around + self.norm2(self.conv2(x))).relu()


class ResNet18(nn.Module):
    """A stem, four stages of two residual blocks, an average, a linear layer: 11,689,512 parameters.

    Input [batch, 3, 224, 224] or any other size. Logits [batch, n_classes], or the feature map
    [batch, 512, h/32, w/32].
    """

    def __init__(self, n_classes: int | None = 1000) -> None:
        super().__init__()
        # Shapes behind the layers are those of 224 pixels.
        self.conv = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)  # [batch, 64, 112, 112]
        self.norm = BatchNorm(64)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)  # [batch, 64, 56, 56]
        self.stage1 = _stage(64, 64, stride=1)  # [batch, 64, 56, 56]
        self.stage2 = _stage(64, 128, stride=2)  # [batch, 128, 28, 28]
        self.stage3 = _stage(128, 256, stride=2)  # [batch, 256, 14, 14]
        self.stage4 = _stage(256, 512, stride=2)  # [batch, 512, 7, 7]
        self.head = None if n_classes is None else Linear(512, n_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.norm(self.conv(x)).relu())  # [batch, 64, 56, 56]
        x = self.stage4(self.stage3(self.stage2(self.stage1(x))))  # [batch, 512, 7, 7]
        return x if self.head is None else self.head(x.mean((2, 3)))


def _stage(n_in: int, n_out: int, stride: int) -> nn.Sequential:
    return nn.Sequential(ResidualBlock(n_in, n_out, stride), ResidualBlock(n_out, n_out, 1))
