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
# # The loop
#
# Nobody trains once. One asks, corrects, adds what is missing, and trains on. This page goes round once:
# a small first model, what it gets wrong, a correction with a class that it had never heard of, the files
# that are worth a label, and more files like one.
#
# The pictures are scikit-learn's handwritten digits. At first the model is shown eight each of 0 to 6.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from PIL import Image

from datasets.items.table import load_table
from learners.active import labelled_in
from learners.cli.settings import Settings
from learners.inference.predictor import Predictor
from learners.model.bundle import save_bundle
from learners.runs import prepare
from learners.runs.stages import calibrate, train
from secondhand import Embeddings, suggest

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"  # told apart by colour-blind eyes as well
plt.rcParams.update({"figure.dpi": 72, "axes.spines.top": False, "axes.spines.right": False})
scratch = tempfile.TemporaryDirectory()  # removed with the kernel
root = Path(scratch.name)

# %% [markdown]
# ## Eight labels a digit
#
# The files lie in three heaps: a few with labels; a pool of 160 without, sevens among them; and 120
# that nobody learns, to measure by. The labels of the pool are the ones that we would give if we were
# asked.

# %%
digits = load_table("demo:digits").frame.sample(frac=1, random_state=0)
nth = digits.groupby("label").cumcount()
test, pool = (
    digits.loc[nth < 15],
    digits.loc[(nth >= 15) & (nth < 35)].sample(frac=1, random_state=1),
)
first = digits.loc[(nth >= 35) & (nth < 43) & digits["label"].ne("7")]
truth = digits.set_index("path")["label"]
first[["path", "label"]].to_csv(root / "first.csv", index=False)
print(len(first), "labels,", len(pool), "files in the pool,", len(test), "to measure by")
assert len(pool) == 160


# %%
def fit(name: str, **settings: object) -> Path:
    """A run as far as its model, whose folder it gives. The head alone is fitted, a linear probe."""
    folder = root / name
    folder.mkdir()
    asked = Settings().but(valid=0.2, calibration=0.2, workers=0, **settings)
    run = prepare(folder, asked)
    train(run)
    calibrate(run)
    return save_bundle(run.bundle, folder / "model")


def answers(model: Path, files: pd.Series) -> pd.DataFrame:
    """What a model says of files, and what they are."""
    found = pd.DataFrame(Predictor(model).predict(files, workers=1))
    return found.assign(truth=truth[found["path"]].to_numpy())


def accuracy(model: Path) -> float:
    """The part of the 120 whose best class is right."""
    found = answers(model, test["path"])
    return float(found["best"].eq(found["truth"]).mean())


reached = {}
model = fit("first", data=str(root / "first.csv"), epochs=0, size=48, flip=False, min_scale=0.7)
reached["first"] = accuracy(model)
print(f"{reached['first']:.1%} of the 120 are right; the sevens among them cannot be")
assert 0.5 < reached["first"] < 0.9

# %% [markdown]
# ## Correct
#
# Forty files come in. What is wrong is put right in the table that the model wrote: the column `label`
# says what it is. A seven is a new class, and nothing has to be declared for that. The page writes the
# same table, from *This is wrong* or from its table of several files.

# %%
came = answers(model, pool["path"].iloc[:40])
wrong = came.loc[came["best"].ne(came["truth"])]
came.assign(label=came["truth"]).loc[wrong.index, ["path", "label"]].to_csv(
    root / "corrected.csv", index=False
)
print(f"{len(wrong)} of 40 corrected, {wrong['truth'].eq('7').sum()} of them sevens")
figure, grid = plt.subplots(1, 9, figsize=(9, 1.6), layout="constrained")
for axes, row in zip(grid, wrong.itertuples(), strict=False):
    axes.imshow(Image.open(row.path), cmap="gray")
    axes.set_title(f"{row.best}? no: {row.truth}", fontsize=9, color=ORANGE)
    axes.axis("off")
figure.suptitle("What the first model took for something else")
plt.show()

# %% [markdown]
# ## Go on from there
#
# `--from` takes network, size and recipe from the model, and the rows of the head for the classes that
# both know. Its own files are learnt again beside the new ones, each in the part that it was in, so
# nothing that was held out is trained on.

# %%
second = fit("second", data=str(root / "corrected.csv"), **{"from": model}, epochs=0)
reached["corrected"] = accuracy(second)
print(f"{len(first) + len(wrong)} labels: {reached['corrected']:.1%}, and it knows sevens")
assert "7" in Predictor(second).classes

# %% [markdown]
# ## What to label next?
#
# Not the files it is sure of, and not fifty of one kind. `suggest` takes the unsure ones, or those unlike
# anything it knows, each as far as can be from those taken before (1708.00489, weighed as in 1906.03671).

# %%
asker = Predictor(second)
rest = pool["path"].iloc[40:]
found = suggest(asker, rest, n=24, labelled=labelled_in(second), workers=1)
figure, grid = plt.subplots(2, 8, figsize=(9, 3.2), layout="constrained")
for axes, one in zip(grid.flat, found.rows, strict=False):
    axes.imshow(Image.open(one.source.path), cmap="gray")
    likely = one.why.split(": ")[-1].replace(" or ", "\n")
    axes.set_title(likely, fontsize=8, color=BLUE)
    axes.axis("off")
figure.suptitle("Worth a label: what the model hesitates between")
plt.show()
chosen = [one.source.path for one in found.rows]
new = truth[chosen].eq("7").mean()
print(f"{new:.0%} of them are sevens, of which it has seen few; of the pool it is {1 / 8:.0%}")
assert new > 1 / 8

# %% [markdown]
# We label the 24, and go on once more. The page does this in its tab *Label*
# (`python -m app MODEL --label new/`), one file at a time, by keys.

# %%
pd.DataFrame({"path": chosen, "label": truth[chosen].to_numpy()}).to_csv(
    root / "next.csv", index=False
)
third = fit("third", data=str(root / "next.csv"), **{"from": second}, epochs=0)
reached["suggested"] = accuracy(third)
counts = np.cumsum([len(first), len(wrong), len(chosen)])
figure, axes = plt.subplots(figsize=(5.5, 2.8), layout="constrained")
axes.plot(counts, list(reached.values()), "o-", color=GREEN)
for x, (name, y) in zip(counts, reached.items(), strict=True):
    axes.annotate(f"{name}: {y:.0%}", (x, y), xytext=(6, -12), textcoords="offset points")
axes.set(xlabel="labels", ylabel="accuracy on 120 digits", title="Twice round", ylim=(0.5, 1),
         xlim=(counts[0] - 4, counts[-1] + 18))  # fmt: skip
plt.show()
assert reached["suggested"] > reached["first"] + 0.03

# %% [markdown]
# ## More like this
#
# Are there more like this one? No class need be known for that. The features of the pool are computed once, kept in a
# Parquet file, and searched exactly by their cosine.

# %%
kept = Embeddings(root / "pool.parquet", third, Predictor(third))
kept.extend(pool["path"], workers=1)
example = test.loc[test["label"].eq("0"), "path"].iloc[0]
near = kept.search(example, top=8)
figure, grid = plt.subplots(1, 9, figsize=(9, 1.6), layout="constrained")
for axes, file, said in zip(
    grid,
    [example, *(one.source.path for one in near)],
    ["the example", *(f"{one.similarity:.2f}" for one in near)],
    strict=True,
):
    axes.imshow(Image.open(file), cmap="gray")
    axes.set_title(said, fontsize=9, color=ORANGE if file == example else BLUE)
    axes.axis("off")
figure.suptitle("The nearest of the pool, with the cosine of their features and the example's")
plt.show()
same = sum(truth[one.source.path] == truth[example] for one in near)
print(f"{same} of 8 are the same digit; by chance it would be 1")
assert same >= 3

# %% [markdown]
# The same by commands:
#
# ```
# python -m learners.finetune --from runs/first/model --data corrected.csv
# python -m learners.suggest runs/second/model new/ --n 24
# python -m learners.search runs/third/model a.png new/ --embeddings pool.parquet
# ```
