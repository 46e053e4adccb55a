"""The perceptron, the function that it cannot learn (XOR), and the hidden layer that learns it. NumPy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]

#: The four inputs of two bits [4, 2], and whether exactly one of them is 1 [4].
BITS: Array = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
XOR: Array = np.array([0.0, 1.0, 1.0, 0.0])


class Perceptron:
    """One neuron with a threshold: 1 where w · x + b > 0, else 0 (Rosenblatt, Psychological Review 65, 1958).

    It separates two classes by a plane. No line separates the 0s of XOR from its 1s.
    """

    def __init__(self, n: int) -> None:
        self.w: Array = np.zeros(n)
        self.b = 0.0

    def predict(self, x: Array) -> Array:
        """x [batch, n] -> 0 or 1 [batch]."""
        return (x @ self.w + self.b > 0).astype(float)

    def fit(self, x: Array, y: Array, epochs: int) -> list[int]:
        """Learn from x [batch, n] and y [batch], 0 or 1: each mistake moves the plane towards its point.

        Returns
        -------
        The number of mistakes in each epoch. It reaches 0 if any plane separates the classes (Novikoff 1962).
        """
        mistakes = []
        for _ in range(epochs):
            mistakes.append(0)
            for point, target in zip(x, y, strict=True):
                error = target - self.predict(point[None])[0]  # -1, 0 or 1
                self.w += error * point
                self.b += error
                mistakes[-1] += bool(error)
        return mistakes


class HiddenLayer:
    """sigmoid(v · tanh(W x + b) + c): the hidden neurons draw a line each, and the last one combines their sides.

    Parameters
    ----------
    parameters : W [hidden, n], b [hidden], v [hidden], c [1], drawn from the seed.
    """

    def __init__(self, n: int, hidden: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.parameters: dict[str, Array] = {
            "W": rng.normal(size=(hidden, n)), "b": np.zeros(hidden),
            "v": rng.normal(size=hidden), "c": np.zeros(1),
        }  # fmt: skip

    def predict(self, x: Array) -> Array:
        """x [batch, n] -> probability of 1 [batch]."""
        return (1 + np.tanh(self._forward(x)[1] / 2)) / 2  # the sigmoid

    def loss_and_gradients(self, x: Array, y: Array) -> tuple[float, dict[str, Array]]:
        """x [batch, n], y [batch], 0 or 1 -> mean cross-entropy in nats, and its gradient for each parameter."""
        h, z = self._forward(x)
        loss = float(np.mean(np.logaddexp(0, z) - y * z))  # log(1 + e^z) - y z is -log p(y)
        dz = (self.predict(x) - y) / len(y)  # [batch]
        da = dz[:, None] * self.parameters["v"] * (1 - h**2)  # [batch, hidden]: before tanh
        return loss, {"W": da.T @ x, "b": da.sum(0), "v": h.T @ dz, "c": dz.sum(keepdims=True)}

    def fit(self, x: Array, y: Array, *, steps: int, lr: float) -> list[float]:
        """Gradient descent; returns the loss before each step."""
        losses = []
        for _ in range(steps):
            loss, gradients = self.loss_and_gradients(x, y)
            losses.append(loss)
            for name, gradient in gradients.items():
                self.parameters[name] -= lr * gradient
        return losses

    def _forward(self, x: Array) -> tuple[Array, Array]:
        """Hidden layer [batch, hidden], and the logit of 1 [batch]."""
        w = self.parameters
        h = np.tanh(x @ w["W"].T + w["b"])
        return h, h @ w["v"] + w["c"]
