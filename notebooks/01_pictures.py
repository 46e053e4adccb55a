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
# # What is in a folder of pictures?
#
# An hour with the files saves a week with the network. Before training anything, we count, measure, look for
# copies, broken files and wrong labels, and see what the network receives. Most of this needs no training: a
# pretrained network already knows which pictures look alike.
#
# At the end you will know how to find unequal classes, copies, broken files and wrong labels in a folder, what a
# network sees of a picture, and how well the classes separate without any training.
#
# Everything runs offline. For photos of your own, set `own` in the second cell; they are only read.
#
# `make notebooks` opens this in JupyterLab; in another editor, choose the Python of `.venv` as the kernel.

# %%
import warnings

warnings.filterwarnings("ignore", category=FutureWarning)  # of libraries, for their developers
warnings.filterwarnings("ignore", message="IProgress not found")

import random
import tempfile
from itertools import cycle
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from PIL import Image
from sklearn.datasets import load_sample_images
from sklearn.manifold import TSNE
from sklearn.metrics import confusion_matrix
from sklearn.model_selection import LeaveOneOut, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier

from datasets.images.opening import Preprocessing, open_picture
from datasets.items.describe import summary
from datasets.items.splits import assign_splits
from datasets.loaders.blocks import Augmentation, PictureBlock, dataloaders
from datasets.steps.reading import load_table
from secondhand import embed

COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00",
           "#56B4E9", "#882255", "#999933", "#000000"]  # told apart by all eyes  # fmt: skip
MARKERS = "os^Dv*XP"  # of the first nine classes, the next nine, …
plt.rcParams.update({"figure.dpi": 96, "axes.spines.top": False, "axes.spines.right": False})

# %% [markdown]
# ## A folder
#
# scikit-learn ships two photographs, a pagoda and a dahlia. We cut five classes of patches out of them, with
# different sizes and numbers, as in real folders.

# %%
own = ""  # such as "/home/me/photos", a folder with one folder per class; "" for the five classes below
scratch = tempfile.TemporaryDirectory()  # removed with the kernel
made = Path(scratch.name)
folder = Path(own or made)
REGIONS = {  # photograph, patches, and where they may lie: left, top, right, bottom
    "blossom": (1, 36, (175, 95, 425, 350)),
    "leaves": (1, 12, (0, 0, 160, 427)),
    "pagoda": (0, 32, (85, 60, 325, 385)),
    "sky": (0, 26, (345, 0, 640, 190)),
    "trees": (0, 20, (345, 285, 600, 427)),
}
photographs = load_sample_images().images
rng = np.random.default_rng(0)
for name, (number, count, (left, top, right, bottom)) in REGIONS.items():
    (made / name).mkdir()
    for n in range(count):
        width, height = rng.integers(60, 141, 2)
        x, y = rng.integers(left, right - width + 1), rng.integers(top, bottom - height + 1)
        patch = Image.fromarray(photographs[number][y : y + height, x : x + width])
        patch.save(made / name / f"{name}_{n:02d}.jpg", quality=92)

# %% [markdown]
# Real folders are not clean, so we damage the one that we made in five ways: a truncated file, a copy, a text file among the
# pictures, a downscaled copy, and a wrong label.

# %%
whole = (made / "sky" / "sky_00.jpg").read_bytes()
(made / "sky" / "broken.jpg").write_bytes(whole[: len(whole) // 2])
(made / "pagoda" / "pagoda (copy).jpg").write_bytes((made / "pagoda/pagoda_03.jpg").read_bytes())
(made / "leaves" / "notes.txt").write_text("ask for more of these")
small = Image.open(made / "blossom" / "blossom_05.jpg")
small.resize((small.width * 9 // 10, small.height * 9 // 10)).save(
    made / "blossom" / "from_web.jpg"
)
_ = (made / "blossom" / "blossom_20.jpg").rename(made / "trees" / "IMG_0420.jpg")

# %% [markdown]
# ## What can be read
#
# `load_table` decodes every file completely, because a truncated JPEG looks fine until its end, and compares
# contents. Unusable files are listed with the reason. Nothing stops.

# %%
table = load_table(folder)
print(f"{len(table.frame)} pictures of {len(table.classes)} classes")
print("\n".join(summary(table.rejected)).replace(f"{folder}/", ""))
colour_of = dict(zip(table.classes, cycle(COLOURS), strict=False))
marker_of = {c: MARKERS[n // len(COLOURS) % len(MARKERS)] for n, c in enumerate(table.classes)}
assert own or len(table.rejected) == 3
assert own or len(table.frame) == sum(count for _, count, _ in REGIONS.values()) + 1

# %% [markdown]
# ## How many of each
#
# A class with few files is learnt badly and, worse, measured badly: of 12 files two are used for validation, and
# an accuracy out of two is 0, 50 or 100 %.

# %%
counts = table.frame["label"].value_counts().sort_values()
figure, axes = plt.subplots(figsize=(6.5, 0.9 + 0.26 * len(counts)), layout="constrained")
bars = axes.barh(counts.index, counts, color=COLOURS[0])
axes.bar_label(bars, padding=3)
axes.set(xlabel="pictures", title="Pictures of each class")
plt.show()

# %% [markdown]
# ## Size and shape
#
# The network sees a square of fixed size. Smaller pictures are enlarged, and the ends of long ones are cut off.
# Both show here before they show in the results.

# %%
sizes = np.array([open_picture(path).size for path in table.frame["path"]])
rows_of_names = -(-len(table.classes) // 5)
figure, (left, right) = plt.subplots(
    1, 2, figsize=(8, 2.7 + 0.18 * rows_of_names), layout="constrained"
)
for name, colour in colour_of.items():
    of_class = sizes[table.frame["label"].eq(name)]
    left.scatter(*of_class.T, s=14, color=colour, marker=marker_of[name], alpha=0.7, label=name)
ends = [sizes.min(), sizes.max()]
left.plot(ends, ends, color="grey", lw=0.8, ls=":")
left.set(xlabel="width (pixels)", ylabel="height (pixels)", title="Sizes (dotted: square)")
figure.legend(loc="outside lower left", ncols=5, frameon=False, fontsize=7)
right.hist(np.log2(sizes[:, 0] / sizes[:, 1]), bins=16, color=COLOURS[0])
right.set_xticks([-1, 0, 1], ["1:2", "1:1", "2:1"])
right.set(xlabel="width : height", ylabel="pictures", title="Aspect ratios")
plt.show()
assert own or sizes.min() >= 40

# %% [markdown]
# ## What the network sees
#
# In training each picture is cropped, mirrored and brightened at random. Look at a batch from the loader: can
# *you* still tell the classes? If a crop shows only what two classes share, `min_scale` is too small; if letters
# are mirrored, `flip` must be off.

# %%
random.seed(0), np.random.seed(0), torch.manual_seed(0)
split, _ = assign_splits(table.frame, seed=0)
preprocessing = Preprocessing(size=96, mean=(0.5,) * 3, std=(0.5,) * 3)
block = PictureBlock(preprocessing, Augmentation(min_scale=0.35, flip=True, lighting=0.2))
dls = dataloaders(split, block, table.classes, bs=18, workers=0)
x, y = dls.train.one_batch()
assert own or x.shape == (18, 3, 96, 96)
assert own or -1 <= x.min() < -0.5
assert own or 0.5 < x.max() <= 1

# %%
figure, grid = plt.subplots(3, 6, figsize=(7.5, 4.2), layout="constrained")
for axes in grid.flat:
    axes.axis("off")
for axes, picture, label in zip(grid.flat, x, y, strict=False):
    axes.imshow((picture * 0.5 + 0.5).permute(1, 2, 0).numpy())
    axes.set_title(table.classes[label], fontsize=8)
figure.suptitle("A training batch, cropped, mirrored and lit")
plt.show()

# %% [markdown]
# ## What a pretrained network already knows
#
# The embedded EfficientNet was trained on photographs of a thousand other things. Before its last layer it
# describes a picture by 1280 numbers, its features. Nothing here was trained on our classes, yet pictures that
# look alike have features that point the same way.

# %%
labels = table.frame["label"].to_numpy()
features, bad = embed(table.frame["path"], size=96)
features /= np.linalg.norm(features, axis=1, keepdims=True)
print(f"{features.shape[0]} pictures, {features.shape[1]} numbers each")
assert not bad

# %% [markdown]
# ## Copies that no hash finds
#
# Scaling a picture changes every byte and hardly anything you see. `from_web.jpg` came from somewhere: do we
# already have it? Its nearest neighbour tells. (Of your own photos, we look at the two most alike.) If one of the two were a test file, the network would be tested on
# a picture that it has learnt.

# %%
names = [Path(path).name for path in table.frame["path"]]
alike = features @ features.T
np.fill_diagonal(alike, -1)
query = int(alike.max(axis=1).argmax()) if own else names.index("from_web.jpg")
match = int(alike[query].argmax())
figure, grid = plt.subplots(1, 2, figsize=(4.2, 2.2), layout="constrained")
for axes, row in zip(grid, (query, match), strict=True):
    picture = open_picture(table.frame["path"].iloc[row])
    axes.imshow(picture)
    axes.set_title(f"{names[row]}\n{picture.width} x {picture.height}", fontsize=8)
    axes.axis("off")
figure.suptitle(f"Nearest: cosine {alike.max(axis=1)[query]:.3f}", fontsize=10)
plt.show()
assert own or names[match] == "blossom_05.jpg"

# %% [markdown]
# ## A first confusion matrix
#
# Each picture gets the most frequent label of its five nearest neighbours. This needs no training and gives a
# baseline: a fine-tuned network that does worse has a mistake in it.
#
# (The result is optimistic here, because patches of one photograph share pixels. Files of one origin belong in
# one *group*, which a split never divides: notebook 02 shows what happens otherwise.)

# %%
neighbours = KNeighborsClassifier(5, metric="cosine")
predicted = cross_val_predict(neighbours, features, labels, cv=LeaveOneOut())
matrix = confusion_matrix(labels, predicted, labels=table.classes)
accuracy = float((predicted == labels).mean())
side = 2.4 + 0.34 * len(table.classes)
figure, axes = plt.subplots(figsize=(side + 0.4, side), layout="constrained")
shade = np.sqrt(matrix / matrix.sum(axis=1, keepdims=True))
axes.imshow(shade, cmap="cividis", vmin=0, vmax=1)
for (row, column), count in np.ndenumerate(matrix):
    if count:
        axes.text(column, row, count, ha="center", va="center", fontsize=8,
                  color="black" if shade[row, column] > 0.6 else "white")  # fmt: skip
axes.set_xticks(range(len(table.classes)), table.classes, rotation=45, ha="right")
axes.set_yticks(range(len(table.classes)), table.classes)
axes.set(xlabel="label of the neighbours", ylabel="label of the file",
         title=f"Nearest neighbours: {accuracy:.1%} right")  # fmt: skip
axes.spines[:].set_visible(False)
plt.show()
assert own or accuracy > 0.93

# %% [markdown]
# ## Which labels are wrong?
#
# If all neighbours of a picture agree with each other and not with its label, it may be in the wrong folder. Look
# at it: only you can tell a wrong label from a rare but correct one.

# %%
nearest = labels[np.argsort(-alike, axis=1)[:, :5]]
suspects = [n for n in range(len(labels)) if (nearest[n] == nearest[n, 0]).all()
            and nearest[n, 0] != labels[n]]  # fmt: skip
for n in suspects:
    path = Path(table.frame["path"].iloc[n])
    print(f"{path.name}: labelled {labels[n]}, but its neighbours are all {nearest[n, 0]}")
assert own or "IMG_0420.jpg" in {Path(table.frame["path"].iloc[n]).name for n in suspects}
assert own or len(suspects) <= 4

# %% [markdown]
# ## A map of the folder
#
# t-SNE places the pictures so that neighbours in 1280 dimensions stay neighbours in two. Distances between far
# clusters mean nothing, but a picture in the wrong cluster means a lot. The name of each class is written where most of
# its pictures are. The red circle is the picture with the wrong label (of your own photos, those that disagree with all
# their neighbours). Of a large folder 400 pictures are drawn.

# %%
tsne = TSNE(perplexity=min(15, len(features) / 4), init="pca", random_state=0)
place = tsne.fit_transform(features.astype(np.float64))
figure, axes = plt.subplots(figsize=(9, 7), layout="constrained")
for n in range(0, len(place), -(-len(place) // 400)):
    picture = open_picture(table.frame["path"].iloc[n]).resize((24, 24))
    edge = {"edgecolor": colour_of[labels[n]], "linewidth": 2}
    thumbnail = OffsetImage(np.asarray(picture), zoom=1)
    axes.add_artist(AnnotationBbox(thumbnail, place[n], pad=0.1, bboxprops=edge))
wrong = suspects if own else [names.index("IMG_0420.jpg")]
axes.scatter(*place[wrong].T, s=1800, facecolors="none", edgecolors="red", linewidths=2, zorder=9)
middles = {name: np.median(place[labels == name], axis=0) for name in table.classes}
line = 0.035 * np.ptp(place[:, 1])
written = []
for name, (x, y) in sorted(middles.items(), key=lambda item: item[1][1]):
    near = [b for a, b in written if abs(a - x) < 0.14 * np.ptp(place[:, 0]) and y < b + line]
    y = max(near, default=y - line) + line  # above the names that it would cover
    written.append((x, y))
    axes.annotate(name, (x, y), ha="center", va="center", fontsize=9, zorder=10,
                  bbox={"facecolor": "white", "edgecolor": colour_of[name], "lw": 1.5, "pad": 2})  # fmt: skip
axes.update_datalim(place)
axes.margins(0.06)
axes.autoscale_view()
axes.set(xticks=[], yticks=[], title="The folder as an untrained eye sees it: t-SNE of features")
axes.spines[:].set_visible(False)
plt.show()

# %% [markdown]
# ## To try
#
# - Set `own` to photos of yours. Which class would you split, and which labels would you change?
# - Put a copy of one picture in two classes, and see which cells notice.
# - Fix the folder (move one file, delete the copy), and train:
#
# ```
# python -m learners.finetune --data FOLDER
# ```
