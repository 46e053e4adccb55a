"""Three convolutional networks: for digits, AlexNet, and ResNet-18 from its residual blocks.

With ``n_classes=None`` a network has no classifier: a body for fine-tuning. It gives its feature map; the CNN for digits,
whose features depend on places, those of its first linear layer.
Convolution and pooling are torch's; the files are about how they are put together. Tensors are named as in PyTorch's
MNIST example and in torchvision, whose files fit as they are.
"""

from __future__ import annotations

from torch import Tensor, nn

from learners.scratch.layers import BatchNorm, Dropout, Linear


class MnistCNN(nn.Module):
    """Two convolutions and two linear layers, as in PyTorch's MNIST example: 1,199,882 parameters at 10 classes.

    Input [batch, 1 or 3, 28, 28]; colour is averaged to grey. At other sizes, at least 6 pixels a side, the maps are
    averaged to those of 28 pixels. Logits [batch, n_classes], or features [batch, 128].
    """

    def __init__(self, n_classes: int | None = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.pool = nn.Sequential(nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(12))
        self.dropout1 = Dropout(0.25)
        self.fc1 = Linear(64 * 12 * 12, 128)
        self.classifies = n_classes is not None
        if n_classes is not None:
            self.dropout2 = Dropout(0.5)
            self.fc2 = Linear(128, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.mean(1, keepdim=True)  # [batch, 1, 28, 28]
        x = self.conv1(x).relu()  # [batch, 32, 26, 26]
        x = self.conv2(x).relu()  # [batch, 64, 24, 24]
        x = self.pool(x)  # [batch, 64, 12, 12]
        x = self.fc1(self.dropout1(x).flatten(1)).relu()  # [batch, 128]
        return self.fc2(self.dropout2(x)) if self.classifies else x


class AlexNet(nn.Module):
    """AlexNet in its later, single-column form (arXiv:1404.5997), as ``torchvision.models.alexnet``: 61,100,840 parameters.

    Input [batch, 3, 224, 224], at least 63 pixels a side. Logits [batch, n_classes], or the feature
    map [batch, 256, 6, 6]. Nine tenths of it are the first two linear layers.
    """

    def __init__(self, n_classes: int | None = 1000) -> None:
        super().__init__()
        # Shapes behind the layers are those of 224 pixels.
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU()),  # [batch, 64, 55, 55]
            nn.MaxPool2d(3, stride=2),  # [batch, 64, 27, 27]
            *(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU()),
            nn.MaxPool2d(3, stride=2),  # [batch, 192, 13, 13]
            *(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU()),
            nn.MaxPool2d(3, stride=2),  # [batch, 256, 6, 6]
        )
        self.pool = nn.AdaptiveAvgPool2d(6)  # [batch, 256, 6, 6] whatever the size of the input
        self.classifier: nn.Module | None = None
        if n_classes is not None:
            self.classifier = nn.Sequential(
                *(Dropout(0.5), Linear(256 * 6 * 6, 4096), nn.ReLU()),
                *(Dropout(0.5), Linear(4096, 4096), nn.ReLU()),
                Linear(4096, n_classes),
            )

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        return x if self.classifier is None else self.classifier(self.pool(x).flatten(1))


class ResidualBlock(nn.Module):
    """relu(x + f(x)): two convolutions learn what to add (arXiv:1512.03385, figure 2).

    [batch, n_in, h, w] -> [batch, n_out, h / stride, w / stride]. Where the shape changes, x passes
    a convolution of one pixel on its way around.
    """

    def __init__(self, n_in: int, n_out: int, stride: int = 1) -> None:
        super().__init__()
        # No biases: the following norm would cancel them.
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, padding=1, bias=False)
        self.bn1 = BatchNorm(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.bn2 = BatchNorm(n_out)
        self.downsample: nn.Module | None = None
        if stride != 1 or n_in != n_out:
            conv = nn.Conv2d(n_in, n_out, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, BatchNorm(n_out))

    def forward(self, x: Tensor) -> Tensor:
        around = x if self.downsample is None else self.downsample(x)
        x = self.bn1(self.conv1(x)).relu()
        return (around + self.bn2(self.conv2(x))).relu()


class ResNet18(nn.Module):
    """A stem, four stages of two residual blocks, an average, a linear layer (arXiv:1512.03385, table 1).

    As ``torchvision.models.resnet18``: 11,689,512 parameters.

    Input [batch, 3, 224, 224] or any other size. Logits [batch, n_classes], or the feature map
    [batch, 512, h/32, w/32].
    """

    def __init__(self, n_classes: int | None = 1000) -> None:
        super().__init__()
        # Shapes behind the layers are those of 224 pixels.
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)  # [batch, 64, 112, 112]
        self.bn1 = BatchNorm(64)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)  # [batch, 64, 56, 56]
        self.layer1 = nn.Sequential(ResidualBlock(64, 64), ResidualBlock(64, 64))
        self.layer2 = nn.Sequential(ResidualBlock(64, 128, 2), ResidualBlock(128, 128))
        self.layer3 = nn.Sequential(ResidualBlock(128, 256, 2), ResidualBlock(256, 256))
        self.layer4 = nn.Sequential(ResidualBlock(256, 512, 2), ResidualBlock(512, 512))
        self.fc = None if n_classes is None else Linear(512, n_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.bn1(self.conv1(x)).relu())  # [batch, 64, 56, 56]
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))  # [batch, 512, 7, 7]
        return x if self.fc is None else self.fc(x.mean((2, 3)))
