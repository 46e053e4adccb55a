# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Fine-tuning, and when to say "unknown"
#
# The command `python -m learners.finetune` calls the functions on this page. Here they are one by one: a table, its
# split, a learner, training in two steps; and then whether the probabilities can be trusted, and what the model
# says of classes that it has never seen.
#
# At the end you will know what each step of a training does, how to tell whether a probability can be believed, and how
# a threshold trades answers for errors.
#
# The pictures are scikit-learn's handwritten digits. 8 and 9 are left out of training.
#
# `make notebooks` opens this in JupyterLab; in another editor, choose the Python of `.venv` as the kernel.

# %%
import warnings

warnings.filterwarnings("ignore", category=FutureWarning)  # of libraries, for their developers
warnings.filterwarnings("ignore", message="IProgress not found")

import tempfile
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from fastai.callback.core import Callback
from fastai.callback.progress import ProgressCallback  # noqa: F401  (adds no_bar to Learner)
from fastai.torch_core import set_seed
from PIL import Image

from datasets.items.facts import Origin
from datasets.items.splits import assign_splits
from datasets.loaders.blocks import Augmentation, PictureBlock, dataloaders
from datasets.steps.reading import load_table
from learners.backbones.building import NetworkSpec, build
from learners.cli.settings import TrainSettings
from learners.evaluation.figures import all_figures, score_items
from learners.evaluation.held_out import outputs_to_calibrate, predict_held_out
from learners.machine.acceleration import keep_memory
from learners.model.bundle import Bundle, save_bundle
from learners.rule.settings import ConfidenceSettings
from learners.tasks.single import SingleLabel
from learners.training.callbacks import Ema
from learners.training.learner import fine_tune, make_learner
from secondhand import load_predictor

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"  # told apart by colour-blind eyes as well
plt.rcParams.update({"figure.dpi": 96, "axes.spines.top": False, "axes.spines.right": False})
set_seed(0, reproducible=True)
_ = keep_memory()  # a fifth quicker on a CPU

# %% [markdown]
# ## Table and split
#
# Four parts have four tasks. *train* fits the weights; *valid* chooses among epochs; *calibration*, which training
# never sees, sets the temperature and the threshold; files of unknown classes show what is refused. To be quick we
# keep 50 of each digit.

# %%
table = load_table("demo:digits")
frame = table.frame.groupby("label").head(50).reset_index(drop=True)
frame, _ = assign_splits(frame, valid=0.2, calibration=0.25, seed=0)
table = replace(table, frame=frame, unknown_items=table.unknown_items.head(60))
print(table.fact(Origin).note)
print(pd.crosstab(table.frame["label"], table.frame["split"]))
assert len(table.frame) == 400

# %% [markdown]
# ## Network and loaders
#
# The backbone determines the preprocessing. Digits are not mirrored and only slightly cropped.

# %%
classes = table.classes
network, spec, preprocessing = build(NetworkSpec("embedded", len(classes), size=48))
block = PictureBlock(preprocessing, Augmentation(min_scale=0.7, flip=False, lighting=0.2))
scratch = tempfile.TemporaryDirectory()  # removed with the kernel
dls = dataloaders(table.frame, block, classes, bs=16, workers=0, path=scratch.name)
train = TrainSettings(epochs=3, bs=16, lr=3e-4, lr_mult=1)  # else the first third stays as it is
x, y = dls.train.one_batch()
assert x.shape == (16, 3, 48, 48)

# %% [markdown]
# ## Raw weights and their average
#
# Each step of the optimizer overshoots in some direction. The exponential moving average of the weights (EMA)
# follows the middle. This callback records the validation loss of both every few steps.


# %%
class Beside(Callback):
    """Validation loss of the raw and of the averaged weights, every few steps."""

    order = Ema.order + 1

    def before_fit(self):
        self.run = self.opt.frozen_idx == 0  # all weights learn
        if self.run:
            self.seen = [(0, *self.losses())]

    def after_batch(self):
        if self.training and self.train_iter % 6 == 0:
            self.seen.append((self.train_iter, *self.losses()))

    def losses(self):
        return [valid_loss(model) for model in (self.learn.model, self.learn.ema.ema_model)]


@torch.no_grad()
def valid_loss(model: torch.nn.Module) -> float:
    """Cross-entropy on the validation pictures, of a copy: what learns keeps its modes."""
    return torch.nn.functional.cross_entropy(deepcopy(model).eval()(held_x), held_y).item()


held_x, held_y = (torch.cat([part.as_subclass(torch.Tensor) for part in parts])
                  for parts in zip(*dls.valid, strict=True))  # fmt: skip
beside = Beside()
learn = make_learner(dls, network, preprocessing, train, cbs=[Ema(horizon=0.2), beside])

# %% [markdown]
# ## The head, then all layers
#
# First the head alone: one linear layer on the outputs of all stages of the network, fitted to its optimum in a second (a
# linear probe). A random head would distort the network before it has learnt anything (arXiv 2202.10054). Then all
# weights take small steps while the learning rate rises and falls once. After a bad batch the average is the
# safer choice.

# %%
with learn.no_bar(), learn.no_logging():
    fine_tune(learn, train)
steps, raw, average = np.array(beside.seen).T
figure, axes = plt.subplots(figsize=(8, 2.8), layout="constrained")
axes.axhline(raw[0], color="grey", lw=0.8, ls=":", label="the head alone (probe)")
axes.plot(steps, raw, "o-", color=ORANGE, ms=4, label="raw weights")
axes.plot(steps, average, "s-", color=BLUE, ms=4, label="their average (EMA)")
axes.set(xlabel="step, all weights learning", ylabel="validation loss (nats)", ylim=(0, None),
         title="What all weights add to a fitted head")  # fmt: skip
figure.legend(frameon=False, loc="outside right center")
plt.show()
assert average.max() < raw.max()

# %% [markdown]
# With 28 pictures of each digit, the steps add nothing to the fitted head. The command measures this after every
# epoch: it keeps the weights that validate best among the epochs, the head-only model, and two blends of the two
# (arXiv 2109.01903).

# %% [markdown]
# ## Calibrate
#
# The averaged model becomes a model folder (`Bundle`). On the calibration files, `fit_rule` fits a temperature $T$, which divides the
# logits, $p = \operatorname{softmax}(z / T)$, and the distance from the training items beyond which an item is "out of
# distribution". Then the finished model predicts all other files, and `all_figures` computes the metrics.

# %%
bundle = Bundle(learn.model_ema.eval(), spec, classes, preprocessing)
measured = outputs_to_calibrate(load_predictor(bundle), table, table.frame, train.seed)
rule = SingleLabel().fit_rule(measured, classes, ConfidenceSettings(threshold=0.9, keep_known=0.8))
bundle = replace(bundle, rule=rule)
predictor = load_predictor(bundle, bs=64)
evaluation = predict_held_out(predictor, table)
metrics = all_figures(evaluation, classes, score_items(evaluation, classes, rule))
valid = metrics["splits"]["valid"]
print(f"{valid['accuracy']['value']:.1%} of the validation digits are right; "
      f"{valid['coverage']['value']:.0%} are answered, {valid['accuracy_of_accepted']['value']:.1%} "
      "of these right")  # fmt: skip
assert valid["accuracy"]["value"] > 0.85
assert valid["accuracy_of_accepted"]["value"] >= valid["accuracy"]["value"]

# %% [markdown]
# ## Can the probabilities be trusted?
#
# Of the predictions made with 80 %, 80 % should be right. A reliability diagram shows whether they are. The bars are
# exact 95 % limits, and with 80 pictures they are long: they can show that a model is wrong, but hardly that it is right. A
# temperature above 1 means that the network was too confident, one below 1 that it was not confident enough, which
# is common after few epochs.

# %%
figure, grid = plt.subplots(1, 2, figsize=(7.5, 3.2), layout="constrained", sharey=True)
for axes, when in zip(grid, ("before", "after"), strict=True):
    bins = {name: np.array(value) for name, value in metrics["reliability"][when].items()}
    errors = np.abs(np.stack([bins["low"], bins["high"]]) - bins["accuracy"])
    axes.plot([0, 1], [0, 1], color="grey", lw=0.8, ls=":")
    axes.errorbar(bins["confidence"], bins["accuracy"], errors, fmt="o", color=BLUE, ms=4, lw=1)
    axes.set(xlabel="confidence", title=f"{when} the temperature", xlim=(0, 1.02), ylim=(0, 1.04))
grid[0].set_ylabel("accuracy")
temperature = bundle.rule.calibrator.temperature.value
figure.suptitle(f"Reliability on the validation digits; the temperature is {temperature:.2f}")
plt.show()
assert 0.3 < temperature < 2

# %% [markdown]
# ## How much to answer
#
# A higher threshold answers less and is right more often. The risk-coverage curve shows all thresholds at once. The
# dot is the model's operating point: the threshold of 0.9 that we set, and the files refused by distance, which
# is why it lies off the curve. The best point depends on what a mistake costs and what a manual check costs.

# %%
curve = metrics["risk_coverage"]
figure, axes = plt.subplots(figsize=(5.5, 2.8), layout="constrained")
axes.plot(curve["coverage"], curve["risk"], color=BLUE)
point = curve["point"]
axes.plot(point["coverage"], point["risk"], "o", color=ORANGE, ms=8, label="chosen")
axes.set(xlabel="coverage: part of the items answered", ylabel="risk: part of these wrong",
         title="Risk and coverage", xlim=(0, 1.02), ylim=(-0.005, None))  # fmt: skip
axes.legend(frameon=False, loc="upper left")
plt.show()
assert point["risk"] <= curve["risk"][-1]

# %% [markdown]
# ## Unknown classes
#
# The model has no class for an 8 or a 9. A plain softmax gives them one all the same. The score that ranks known
# before unknown files combines probability and distance. Its AUROC is the probability that a known digit ranks above an
# unknown one.

# %%
ood = metrics["unknown_classes"]
bars = ood["histogram"]
figure, axes = plt.subplots(figsize=(6, 2.8), layout="constrained")
for name, colour in (("known", BLUE), ("unknown", ORANGE)):
    counts = np.array(bars[name], float)
    axes.stairs(
        counts / counts.sum(), bars["edges"], fill=True, color=colour, alpha=0.5, label=name
    )
axes.set(xlabel="score: higher is more known", ylabel="part of each",
         title="Known digits (0 to 7) and unknown classes (8 and 9)")  # fmt: skip
axes.legend(frameon=False, loc="upper left")
plt.show()
auroc = ood["auroc"]["value"]
refused = evaluation.predictions.query("split == 'unknown'")["label"].eq("unknown").mean()
print(f"AUROC {auroc:.3f}; {refused:.0%} of the unknown digits are refused")
assert auroc > 0.8
assert refused > 0.3

# %% [markdown]
# ## Save, load, predict
#
# The model folder holds safetensors and JSON: loading it runs no code. Its predictions are the same as before.

# %%
folder = save_bundle(bundle, Path(scratch.name) / "model")
print(", ".join(sorted(file.name for file in folder.iterdir())))
mixed = pd.concat([table.frame.query("split == 'valid'").head(9), table.unknown_items.head(9)])
answers = list(load_predictor(folder).predict(mixed["path"]))
before = list(load_predictor(bundle).predict(mixed["path"]))
assert [a.label for a in answers] == [b.label for b in before]
np.testing.assert_allclose(
    [a.probability for a in answers], [b.probability for b in before], atol=1e-4
)

# %%
figure, grid = plt.subplots(2, 9, figsize=(9, 2.9), layout="constrained")
for axes, prediction in zip(grid.flat, answers, strict=True):
    axes.imshow(Image.open(prediction.path), cmap="gray")
    axes.set_title(f"{prediction.label}\n{prediction.probability:.0%}", fontsize=9,
                   color=ORANGE if prediction.label == "unknown" else BLUE)  # fmt: skip
    axes.axis("off")
figure.suptitle("Above: digits it knows. Below: eights and nines, which it never saw")
plt.show()

# %% [markdown]
# ## To try
#
# - Leave out other digits than 8 and 9. Which pair is hardest to refuse?
# - Lower the threshold until half of the eights are answered, and count the wrong answers among the known digits.
# - Run the same by one command, and compare its report:
#
# ```
# python -m learners.finetune --data demo:digits --size 64 --no-flip
# ```
