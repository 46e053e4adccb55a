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
# # Improve a model step by step
#
# A model is rarely trained once. You predict, correct, add what is missing, and train again. This notebook goes through these steps once: a
# small first model, its mistakes, a correction with a new class, the files that are worth labelling, and files similar to an
# example.
#
# At the end you will know how to correct a model, add a class to it, and choose the files that are worth labelling.
#
# The pictures are scikit-learn's handwritten digits. The first model sees eight each of 0 to 6.
#
# `make notebooks` opens this in JupyterLab; in another editor, choose the Python of `.venv` as the kernel.

# %%
import warnings

warnings.filterwarnings("ignore", category=FutureWarning)  # of libraries, for their developers
warnings.filterwarnings("ignore", message="IProgress not found")

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from PIL import Image

from datasets.steps.reading import load_table
from fields.loop.teaching import Pool, labelled_in
from learners.cli.settings import Settings
from learners.model.bundle import save_bundle
from learners.runs.run import prepare
from learners.runs.stages import calibrate, train
from secondhand import Embeddings, load_predictor, suggest

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"  # told apart by colour-blind eyes as well
plt.rcParams.update({"figure.dpi": 96, "axes.spines.top": False, "axes.spines.right": False})
scratch = tempfile.TemporaryDirectory()  # removed with the kernel
root = Path(scratch.name)

# %% [markdown]
# ## Eight labels per digit
#
# There are three sets of files: a few with labels; a pool of 280 without, sevens among them; and 120 test files. The true
# labels of the pool stand in for the ones that you would give.

# %%
digits = load_table("demo:digits").frame.sample(frac=1, random_state=0)
nth = digits.groupby("label").cumcount()
test, pool = (
    digits.loc[nth < 15],
    digits.loc[(nth >= 15) & (nth < 50)].sample(frac=1, random_state=1),
)
first = digits.loc[(nth >= 50) & (nth < 58) & digits["label"].ne("7")]
truth = digits.set_index("path")["label"]
first[["path", "label"]].to_csv(root / "first.csv", index=False)
print(len(first), "labels,", len(pool), "files in the pool,", len(test), "to measure by")
assert len(pool) == 280


# %%
def fit(name: str, **settings: object) -> Path:
    """Fit the head of a model (a linear probe); returns its folder."""
    folder = root / name
    folder.mkdir()
    settings_of_run = Settings().but(valid=0.2, calibration=0.2, workers=0, **settings)
    run = calibrate(train(prepare(folder, settings_of_run)))
    return save_bundle(run.bundle, folder / "model")


def predictions(model: Path, files: pd.Series) -> pd.DataFrame:
    """Predictions for files, with their true classes."""
    table = pd.DataFrame(one.record() for one in load_predictor(model, workers=1).predict(files))
    return table.assign(truth=truth[table["path"]].to_numpy())


def accuracy(model: Path) -> float:
    """Fraction of the 120 test files whose best class is right."""
    table = predictions(model, test["path"])
    return float(table["best"].eq(table["truth"]).mean())


accuracies = {}
model = fit("first", data=str(root / "first.csv"), epochs=0, size=48, flip=False, min_scale=0.7)
accuracies["first"] = accuracy(model)
print(f"{accuracies['first']:.1%} of the 120 are right; the sevens among them cannot be")
assert 0.5 < accuracies["first"] < 0.9

# %% [markdown]
# ## Correct
#
# A hundred files come in. We correct mistakes in the table of predictions: the column `label` holds the true class. A
# seven is a new class and needs no declaration. The page writes the same table, from *This is wrong* or from its table of
# several files.

# %%
table = predictions(model, pool["path"].iloc[:100])
wrong = table.loc[table["best"].ne(table["truth"])]
table.assign(label=table["truth"]).loc[wrong.index, ["path", "label"]].to_csv(
    root / "corrected.csv", index=False
)
print(f"{len(wrong)} of 100 corrected, {wrong['truth'].eq('7').sum()} of them sevens")
figure, grid = plt.subplots(-(-len(wrong) // 9), 9, figsize=(9, 1.3 * -(-len(wrong) // 9) + 0.3),
                            layout="constrained")  # fmt: skip
for axes in grid.flat:
    axes.axis("off")
for axes, row in zip(grid.flat, wrong.itertuples(), strict=False):
    axes.imshow(Image.open(row.path), cmap="gray")
    axes.set_title(f"{row.best}? no: {row.truth}", fontsize=9, color=ORANGE)
figure.suptitle("What the first model took for something else")
plt.show()

# %% [markdown]
# ## Continue from the model
#
# `--from` takes network, size and preprocessing from the model, and the head's rows for the classes that both know. Items of
# the earlier run are trained on again (rehearsal), each in its old part of the split, so no validation or
# calibration file is trained on.

# %%
second = fit("second", data=str(root / "corrected.csv"), **{"from": model}, epochs=0)
accuracies["corrected"] = accuracy(second)
print(f"{len(first) + len(wrong)} labels: {accuracies['corrected']:.1%}, and it knows sevens")
assert "7" in load_predictor(second).classes
assert accuracies["corrected"] > accuracies["first"] + 0.03

# %% [markdown]
# ## What to label next?
#
# Not the files that the model is sure of, and not fifty of one kind. `suggest` selects files that the model is unsure of or that are
# unlike its training data, each as different as possible from those already selected (arXiv 1708.00489, weighted as
# in 1906.03671).

# %%
predictor = load_predictor(second, workers=1)
rest = pool["path"].iloc[100:]
suggestions = suggest(Pool(predictor, rest, labelled_in(second)), n=24)
figure, grid = plt.subplots(3, 8, figsize=(9, 4.8), layout="constrained")
for axes, one in zip(grid.flat, suggestions, strict=False):
    axes.imshow(Image.open(one.part.path), cmap="gray")
    likely = one.why.split(": ")[-1].replace(" or ", "\n")
    axes.set_title(likely, fontsize=8, color=BLUE)
    axes.axis("off")
figure.suptitle("Worth a label: what the model hesitates between")
plt.show()
chosen = [one.part.path for one in suggestions]
answers = predictions(second, rest)
wrong_in_rest = answers["best"].ne(answers["truth"])
wrong_in_chosen = wrong_in_rest[answers["path"].isin(chosen)]
print(
    f"it mistakes {wrong_in_chosen.mean():.0%} of them, and {wrong_in_rest.mean():.0%} of all that are left"
)
assert wrong_in_chosen.mean() > 1.5 * wrong_in_rest.mean()

# %% [markdown]
# We label the 24 and train again. On the page, the tab *Label* does this one file at a time, by keys
# (`secondhand app MODEL --label new/`).

# %%
pd.DataFrame({"path": chosen, "label": truth[chosen].to_numpy()}).to_csv(
    root / "next.csv", index=False
)
third = fit("third", data=str(root / "next.csv"), **{"from": second}, epochs=0)
accuracies["suggested"] = accuracy(third)
counts = np.cumsum([len(first), len(wrong), len(chosen)])
figure, axes = plt.subplots(figsize=(5.5, 2.8), layout="constrained")
axes.plot(counts, list(accuracies.values()), "o-", color=GREEN)
for x, (name, y) in zip(counts, accuracies.items(), strict=True):
    axes.annotate(f"{name}\n{y:.0%}", (x, y), xytext=(0, -30), textcoords="offset points",
                  ha="center")  # fmt: skip
axes.set(xlabel="labels", ylabel="accuracy on 120 digits", title="Twice round", ylim=(0.5, 1.02))
axes.margins(x=0.12)
plt.show()
assert accuracies["suggested"] > accuracies["first"] + 0.03

# %% [markdown]
# ## Find similar files
#
# Are there more files like this one? No class needs to be known. The features of the pool are computed once, stored in a
# Parquet file, and searched exactly by cosine similarity.

# %%
kept = Embeddings(root / "pool.parquet", third, load_predictor(third, workers=1))
kept.extend(pool["path"])
example = test.loc[test["label"].eq("0"), "path"].iloc[0]
near = kept.search(example, top=8)
figure, grid = plt.subplots(1, 9, figsize=(9, 1.6), layout="constrained")
for axes, file, title in zip(
    grid,
    [example, *(one.part.path for one in near)],
    ["the example", *(f"{one.similarity:.2f}" for one in near)],
    strict=True,
):
    axes.imshow(Image.open(file), cmap="gray")
    axes.set_title(title, fontsize=9, color=ORANGE if file == example else BLUE)
    axes.axis("off")
figure.suptitle("The nearest of the pool, with the cosine of their features and the example's")
plt.show()
same = sum(truth[one.part.path] == truth[example] for one in near)
print(f"{same} of 8 are the same digit; by chance it would be 1")
assert same >= 3

# %% [markdown]
# ## To try
#
# - Label files drawn at random instead of the suggested ones, and compare the accuracies.
# - Correct a digit wrongly on purpose: how many corrections does it take until the model follows you?
# - Do the same with commands:
#
# ```
# python -m learners.finetune --from runs/first/model --data corrected.csv
# secondhand suggest runs/second/model new/ --n 24
# secondhand search runs/third/model a.png new/ --embeddings pool.parquet
# ```
