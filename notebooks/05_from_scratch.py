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
# # From scratch
#
# A pretrained network is easier to trust once you have seen that it consists of sums and products.
# `learners/scratch/` has the networks written out by hand, one idea per file. Here we compare layers with torch's, look at
# positions and attention, teach a Transformer to reverse sequences and a mixture of experts to share its work, find words
# that are used alike, and train a small GPT twice: in torch, and in NumPy with the backward pass derived by hand.
#
# At the end you will know what each layer computes, where the parameters of a network are, what the backward pass is, and
# how to read an attention weight.
#
# Everything runs offline, on two cores, in about a minute. Change `SEED` to draw everything anew.
#
# `make notebooks` opens this in JupyterLab; in another editor, choose the Python of `.venv` as the kernel.

# %%
import codecs
import contextlib
import io
import time

import matplotlib.pyplot as plt
import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import nn
from torchinfo import summary

from learners.scratch import (
    attention,
    convnets,
    experts,
    gpt,
    layers,
    numpy_gpt,
    recurrent,
    similarity,
    transformer,
    vit,
)

SEED = 1
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"  # told apart by colour-blind eyes as well
plt.rcParams.update({"figure.dpi": 80, "axes.spines.top": False, "axes.spines.right": False})
torch.manual_seed(SEED)
torch.set_num_threads(1)  # matrices this small are done before a second thread has woken up
_ = threadpool_limits(1)  # and so in NumPy

# %% [markdown]
# ## By hand and by torch
#
# A layer is a few lines of arithmetic. LayerNorm, for example, subtracts the mean of each position and divides by the
# standard deviation; then come a weight and a bias. `layers.LayerNorm` spells this out in four lines.
#
# Below, each layer gets the weights of torch's, and both get the same input, 5 positions of width 16. The difference is the
# rounding of float32.

# %%
x = torch.randn(2, 5, 16)
pictures = torch.randn(4, 16, 6, 6)
logits, targets = torch.randn(10, 7), torch.arange(10) % 7
pairs = {
    "linear": (layers.Linear(16, 8), nn.Linear(16, 8), x),
    "embedding": (layers.Embedding(9, 16), nn.Embedding(9, 16), torch.arange(9)),
    "LayerNorm": (layers.LayerNorm(16), nn.LayerNorm(16), x),
    "RMSNorm": (layers.RMSNorm(16), nn.RMSNorm(16, eps=1e-5), x),
    "BatchNorm": (layers.BatchNorm(16), nn.BatchNorm2d(16), pictures),
    "GELU": (layers.gelu, nn.GELU(), x),
    "softmax": (layers.softmax, nn.Softmax(-1), x),
}
differences = {}
for name, (ours, theirs, given) in pairs.items():
    if isinstance(ours, nn.Module):
        ours.load_state_dict(theirs.state_dict())
    differences[name] = (ours(given) - theirs(given)).abs().max().item()
differences["cross-entropy"] = abs(
    layers.cross_entropy(logits, targets) - nn.functional.cross_entropy(logits, targets)
).item()

by_hand, by_torch = attention.Attention(16, 4), nn.MultiheadAttention(16, 4, batch_first=True)
by_hand.qkv.weight, by_hand.qkv.bias = by_torch.in_proj_weight, by_torch.in_proj_bias
by_hand.proj.weight, by_hand.proj.bias = by_torch.out_proj.weight, by_torch.out_proj.bias
differences["attention"] = (by_hand(x) - by_torch(x, x, x)[0]).abs().max().item()

for name, difference in differences.items():
    print(f"{name:14} differs by {difference:.1e}")
assert max(differences.values()) < 1e-5

# %% [markdown]
# ## What are they made of?
#
# The number of parameters is the first thing to compare when two people ask whether they have the same network. The
# "meta" device gives tensors shapes but no memory, so counting is free.

# %%
with torch.device("meta"):
    networks = {
        "digits CNN": convnets.MnistCNN(),
        "ResNet-18": convnets.ResNet18(),
        "AlexNet": convnets.AlexNet(),
        "ViT-B/16": vit.vit_b_16(),
        "ViT, the essay's": vit.essay_vit(),
        "GPT-2": gpt.GPT(gpt.GPTConfig()),
    }
counts = {name: sum(p.numel() for p in net.parameters()) for name, net in networks.items()}
for name, count in counts.items():
    print(f"{name:18}{count:>12,}")
assert counts["AlexNet"] == 61_100_840
assert counts["ResNet-18"] == 11_689_512
assert counts["digits CNN"] == 1_199_882
assert counts["ViT, the essay's"] == 86_565_352

# %% [markdown]
# Layer by layer, with the shape of what each gives, its weights, and the multiplications and additions of a picture
# (torchinfo's table). In the CNN for digits nearly all weights are in the first linear layer, and nearly all of the work is
# in the second convolution, which uses its few weights at 576 places.

# %%
COLUMNS = ("output_size", "num_params", "mult_adds")
table = summary(convnets.MnistCNN(), input_size=(1, 1, 28, 28), col_names=COLUMNS, verbose=0)
print(table)
assert table.total_params == counts["digits CNN"]
of_sixteen = summary(convnets.MnistCNN(), input_size=(16, 1, 28, 28), verbose=0)
assert round(of_sixteen.total_mult_adds / 1e6, 2) == 192.82  # as in the essay, of 16 pictures
deep = summary(
    convnets.ResNet18(), input_size=(1, 3, 224, 224), col_names=COLUMNS, depth=2, verbose=0
)
print(deep)
assert round(16 * deep.total_mult_adds / 1e9, 2) == 29.03

# %% [markdown]
# The essay's ViT has 2304 parameters fewer than the published one, three vectors of its width: its
# class token has no position (768), and no LayerNorm follows its last layer (2 x 768).
#
# Where do the parameters sit? A convolution uses its few numbers at every place of the picture; a
# linear layer has one for each pair of input and output. That is why AlexNet is large and ResNet-18,
# which is deeper and better, is small.

# %%
KINDS = {"convolution": BLUE, "attention": GREEN, "linear, embedding, norm": ORANGE}


def kind(name: str, shape: torch.Size) -> str:
    """By what the layer is called, or by its four-dimensional weight."""
    if ".attn." in name:
        return "attention"
    return "convolution" if len(shape) == 4 else "linear, embedding, norm"


figure, axes = plt.subplots(figsize=(7, 2.8))
for row, net in enumerate(networks.values()):
    left = 0.0
    for label, colour in KINDS.items():
        width = sum(p.numel() for n, p in net.named_parameters() if kind(n, p.shape) == label) / 1e6
        axes.barh(row, width, left=left, color=colour, label=label if row == 0 else None)
        left += width
axes.set_yticks(range(len(networks)), networks)
axes.invert_yaxis()
axes.set(xlabel="parameters (millions)", title="What the parameters are for")
axes.legend(frameon=False, loc="upper right")
figure.tight_layout()
plt.show()

# %% [markdown]
# ## Where is a token?
#
# Attention compares each token with each other one, and does not know their order. Rotary positions tell it: pairs of
# numbers of a query or key are turned, each pair by its own angle, in proportion to the position. The scalar product of a
# turned query and a turned key then depends on the distance of their positions only: it is the same 5 places later.

# %%
query, key = torch.randn(2, 1, 1, 1, 32)
turned_query, turned_key = (
    layers.rotate(vector.expand(1, 1, 40, 32))[0, 0] for vector in (query, key)
)
scores = turned_query @ turned_key.T  # [40, 40]: the same query and key at all pairs of positions
assert torch.allclose(scores[:35, :35], scores[5:, 5:], atol=1e-4)

figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9.5, 3), layout="constrained")
for pair, colour in ((2, BLUE), (4, GREEN), (6, ORANGE)):
    places = turned_query[:12, 2 * pair : 2 * pair + 2]  # [12, 2]
    places = places / places.norm(dim=1, keepdim=True)
    left.plot(*places.T, "o-", color=colour, lw=0.8, ms=4, label=f"pair {pair}")
left.set(title="A query at positions 0 to 11", aspect="equal", xlim=(-1.3, 1.3), ylim=(-1.3, 1.3))
left.legend(frameon=False, loc="center")
angles = layers.sinusoidal_positions(40, 32)
middle.imshow(angles, cmap="RdBu", aspect="auto", vmin=-1, vmax=1)
middle.set(title="Sines and cosines of the angles", xlabel="column", ylabel="position")
image = right.imshow(scores, cmap="PuOr", vmin=-scores.abs().max(), vmax=scores.abs().max())
right.set(title="Query times key", xlabel="position of the key", ylabel="position of the query")
plt.show()

# %% [markdown]
# On the left, the first pairs of a vector turn fast and the last ones slowly, like the hands of a clock. On the right,
# every diagonal has one colour. The table in the middle is the older way: the first Transformer adds it to the tokens.
#
# ## One sequence from another
#
# `transformer.EncoderDecoder` is the Transformer of "Attention is all you need". Its encoder reads a source, and its decoder
# writes a target token by token, looking at the source by cross-attention. Here the target is the source reversed: the
# smallest task that cannot be solved by looking at one place.

# %%
LENGTH, START, BATCH = 8, 10, 64  # digits 0 to 9, and a token to start with
reverser = transformer.EncoderDecoder(11, width=48, depth=1, heads=2, hidden=96, dropout=0.0)
optimizer = torch.optim.AdamW(reverser.parameters())
steps = 250
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
for _ in range(steps):
    source = torch.randint(10, (BATCH, LENGTH))
    target = torch.cat((torch.full((BATCH, 1), START), source.flip(1)), dim=1)
    logits = reverser(source, target[:, :-1])  # [64, 8, 11]: each from the tokens before
    loss = layers.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()

source = torch.randint(10, (200, LENGTH))
written = reverser.eval().generate(source, START, LENGTH)
right = (written == source.flip(1)).float().mean().item()
print("source   ", *source[0].tolist())
print("generated", *written[0].tolist())
print(f"{right:.1%} of the digits of 200 new sequences are right")
assert right > 0.98

# %% [markdown]
# Nobody told the network what reversing is. The cross-attention shows what it has found: to write the first digit it looks
# at the last one of the source, and so on. Each row is a position that is written, and sums to 1.

# %%
layer = reverser.decoder[0]
with torch.inference_mode():
    memory = reverser.encode(source[:1])
    state = reverser.embed(torch.cat((torch.tensor([[START]]), written[:1, :-1]), dim=1))
    state = layer.norm1(state + layer.attn(state))
    maps = layer.cross.weights(state, memory)[0]  # [heads, 8, 8]
assert torch.allclose(maps.sum(-1), torch.ones(2, LENGTH), atol=1e-5)

figure, grid = plt.subplots(1, 2, figsize=(6.4, 3.1), layout="constrained", sharey=True)
for head, axes in enumerate(grid):
    image = axes.imshow(maps[head], cmap="cividis", vmin=0, vmax=1)
    axes.set_xticks(range(LENGTH), source[0].tolist())
    axes.set_yticks(range(LENGTH), written[0].tolist())
    axes.set(title=f"head {head + 1}", xlabel="source")
grid[0].set_ylabel("written")
figure.colorbar(image, ax=grid, label="attention weight")
plt.show()

# %% [markdown]
# ## Many networks, a few of them at work
#
# In a mixture of experts a router sends each token to the k most suitable of several small networks (here 2 of 8), so a
# larger network costs no more time. The router learns from the experts that it chooses; the others never improve, and are
# chosen even less. A balance loss, added with a small factor, spreads the tokens.
#
# The tokens below are of four kinds, each with a linear map of its own to be learnt.

# %%
EXPERTS, KINDS, WIDTH = 8, 4, 16


def train_mixture(balance: float) -> tuple[float, np.ndarray]:
    """The last error, and the fraction of the tokens that each expert got: [steps, experts]."""
    torch.manual_seed(SEED)
    centres, maps = 3 * torch.randn(KINDS, WIDTH), torch.randn(KINDS, WIDTH, WIDTH) / 4
    mixture = experts.MixtureOfExperts(WIDTH, WIDTH, experts=EXPERTS, k=2)
    optimizer = torch.optim.AdamW(mixture.parameters(), lr=1e-2)
    loads = []
    for _ in range(300):
        kind = torch.randint(KINDS, (256,))
        noise = torch.randn(256, WIDTH)
        target = torch.einsum("ni,nij->nj", noise, maps[kind])
        error = (mixture(centres[kind] + noise) - target).square().mean()
        optimizer.zero_grad()
        (error + balance * mixture.routing.balance_loss).backward()
        optimizer.step()
        loads.append(mixture.routing.load.numpy())
    return error.item(), np.array(loads)


results = {balance: train_mixture(balance) for balance in (0.0, 0.1)}
figure, grid = plt.subplots(1, 2, figsize=(8, 2.8), layout="constrained", sharey=True)
for axes, (balance, (error, loads)) in zip(grid, results.items(), strict=True):
    axes.stackplot(range(len(loads)), loads.T, colors=plt.colormaps["tab10"].colors)
    axes.set(
        title=f"balance loss x {balance:g}", xlabel="step", xlim=(0, len(loads) - 1), ylim=(0, 1)
    )
    last = np.sort(loads[-20:].mean(0))
    print(f"balance x {balance:g}: error {error:.3f}, loads {last.round(2)}")
grid[0].set_ylabel("fraction of the tokens")
plt.show()
idle, busy = (loads[-20:].mean(0) for _, loads in results.values())
assert idle.min() < 0.02  # an expert that learnt nothing
assert busy.min() > 0.04

# %% [markdown]
# Each colour is an expert. Without the balance loss some disappear in the first steps and never return: their parameters
# are wasted. With it all eight work.
#
# ## Words that are used alike
#
# An embedding starts as random vectors. Here a recurrent network, which reads word by word and keeps what it has read in a
# state, learns to say the next word of small sentences. Nobody tells it which words are animals.

# %%
WORDS = {
    "animal": ["cat", "dog", "horse", "mouse"],
    "person": ["king", "queen", "baker", "sailor"],
    "food": ["bread", "cheese", "apple", "soup"],
    "text": ["book", "letter", "poem", "map"],
}
PATTERNS = ["the animal eats the food", "the animal sleeps", "the person reads the text",
            "the person cooks the food", "the food tastes good", "the text has pages"]  # fmt: skip
frames = [pattern.split() for pattern in PATTERNS]
members = [word for words in WORDS.values() for word in words]
vocabulary = [".", *members, *sorted({w for frame in frames for w in frame} - {*WORDS})]
index = {word: i for i, word in enumerate(vocabulary)}
rng = np.random.default_rng(SEED)


def sentences(count: int, length: int) -> torch.Tensor:
    """Random sentences one after another: int64 [count, length + 1]."""
    rows = []
    for _ in range(count):
        row: list[int] = []
        while len(row) <= length:
            frame = frames[rng.integers(len(frames))]
            words = [rng.choice(WORDS[word]) if word in WORDS else word for word in frame]
            row += [index[word] for word in (*words, ".")]
        rows.append(row[: length + 1])
    return torch.tensor(rows)


torch.manual_seed(SEED)
reader = recurrent.RecurrentLanguageModel(len(vocabulary), 16)
optimizer = torch.optim.AdamW(reader.parameters(), lr=1e-2)
for _ in range(250):
    ids = sentences(16, 18)
    loss = reader.loss(ids[:, :-1], ids[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.2f} nats a word; {np.log(len(vocabulary)):.2f} without learning")

vectors = reader.tokens.weight.detach()
alike = 0
for words in WORDS.values():
    for word in words:
        found, cosines = similarity.nearest(vectors, vectors[index[word]], 4)
        names = [vocabulary[i] for i in found.tolist()][1:]  # without the word itself
        alike += sum(name in words for name in names)
        if word == words[0]:
            near = ", ".join(f"{n} {c:.2f}" for n, c in zip(names, cosines[1:], strict=True))
            print(f"{word:7} {near}")
print(f"{alike} of {3 * len(members)} nearest words are of the same kind")
assert alike > 0.8 * 3 * len(members)

# %% [markdown]
# Words that are followed by the same get vectors of the same direction: that is all that a network of words knows of their
# meaning, and with all that people have written instead of six kinds of sentences it is a lot.
#
# ## A text that is always available
#
# A language model needs a text. Python contains a poem, the Zen of Python, in the module `this`, encrypted by a shift of
# 13 letters. (Importing the module prints the poem; we suppress that.)

# %%
with contextlib.redirect_stdout(io.StringIO()):
    import this

text = codecs.decode(this.s, "rot13")
print(text[:157])

# %% [markdown]
# Tokens are single characters: the simplest choice, and adequate for so short a text. The last 15 % are the
# validation text, to see whether the model learns English or memorises the poem.

# %%
characters = sorted(set(text))
number = {character: i for i, character in enumerate(characters)}
ids = np.array([number[character] for character in text])
cut = int(0.85 * len(ids))
train, held = ids[:cut], ids[cut:]
print(
    f"{len(text)} characters, {len(characters)} different; {len(train)} train, {len(held)} held out"
)

# %% [markdown]
# ## One network, twice
#
# `gpt.GPT` is GPT-2 in torch, `numpy_gpt.GPT` the same in NumPy alone. Their parameters have the same names, so copying the
# initial values takes one line.

# %%
torch.manual_seed(SEED)
config = gpt.GPTConfig(vocabulary=len(characters), context=48, width=64, depth=2, heads=4)
in_torch = gpt.GPT(config)
in_numpy = numpy_gpt.GPT(
    {name: value.numpy().copy() for name, value in in_torch.state_dict().items()}, heads=4
)
print(f"{sum(p.numel() for p in in_torch.parameters()):,} parameters each")

# %% [markdown]
# ## Is the backward pass right?
#
# torch computes gradients automatically; in NumPy each was derived on paper. The two must agree to the rounding of
# float32, about 1e-7 of the largest number, times a little for the long sums.


# %%
def batch(rng: np.random.Generator, size: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Random windows: tokens [size, context], and at each place the token that follows."""
    starts = rng.integers(len(train) - config.context, size=size)
    windows = train[starts[:, None] + np.arange(config.context + 1)]
    return windows[:, :-1], windows[:, 1:]


x, y = batch(np.random.default_rng(SEED))
loss, gradients = in_numpy.loss_and_gradients(x, y)
in_torch.loss(torch.from_numpy(x), torch.from_numpy(y)).backward()
off = {
    name: float(np.abs(gradients[name] - p.grad.numpy()).max() / np.abs(p.grad.numpy()).max())
    for name, p in in_torch.named_parameters()
    if "qkv.bias" not in name  # a key's bias adds the same to a whole row of scores: gradient 0
}
worst = max(off, key=lambda name: off[name])
print(f"loss {loss:.4f} nats; {len(off)} gradients, the worst is {off[worst]:.1e} off ({worst})")
assert off[worst] < 1e-4

# %% [markdown]
# Before training, a model can do no better than to give all characters the same probability. Its loss is then the
# logarithm of their number.

# %%
print(f"log({len(characters)}) = {np.log(len(characters)):.4f}")
assert abs(loss - np.log(len(characters))) < 0.1

# %% [markdown]
# ## Training, side by side
#
# The same batches, AdamW, a learning rate that rises for 20 steps and then falls along a cosine.
# Nothing else is shared.

# %%
STEPS, PEAK = 400, 5e-3
optimizer = torch.optim.AdamW(
    [
        {"params": [p for p in in_torch.parameters() if p.ndim > 1], "weight_decay": 0.01},
        {"params": [p for p in in_torch.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
)
by_hand = numpy_gpt.AdamW(in_numpy.parameters, decay=0.01)
unseen = torch.from_numpy(held[: 2 * config.context + 2].reshape(2, -1))
losses: dict[str, list[float]] = {"torch": [], "NumPy": [], "held out": []}
seconds = {"torch": 0.0, "NumPy": 0.0}
rng = np.random.default_rng(SEED)
for step in range(STEPS):
    lr = numpy_gpt.cosine(step, STEPS, peak=PEAK, warmup=20)
    x, y = batch(rng)

    began = time.perf_counter()
    loss, gradients = in_numpy.loss_and_gradients(x, y)
    by_hand.step(gradients, lr)
    losses["NumPy"].append(loss)
    seconds["NumPy"] += time.perf_counter() - began

    began = time.perf_counter()
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.zero_grad()
    loss_torch = in_torch.loss(torch.from_numpy(x), torch.from_numpy(y))
    loss_torch.backward()
    optimizer.step()
    losses["torch"].append(loss_torch.item())
    seconds["torch"] += time.perf_counter() - began

    with torch.inference_mode():
        losses["held out"].append(in_torch.loss(unseen[:, :-1], unseen[:, 1:]).item())
apart = np.abs(np.subtract(losses["torch"], losses["NumPy"]))
print(f"after {STEPS} steps: torch {losses['torch'][-1]:.3f}, NumPy {losses['NumPy'][-1]:.3f} nats")
ends = [np.mean(losses[name][-50:]) for name in ("torch", "NumPy")]
print(f"apart by at most {apart[:20].max():.1e} in the first 20 steps")
print(f"mean of the last 50 steps: torch {ends[0]:.3f}, NumPy {ends[1]:.3f} nats")
print("; ".join(f"{name} {1000 * s / STEPS:.0f} ms a step" for name, s in seconds.items()))
assert apart[:20].max() < 1e-4
assert abs(ends[0] - ends[1]) < 0.05
assert losses["torch"][-1] < 0.5
assert losses["held out"][-1] > min(losses["held out"]) + 0.2

# %% [markdown]
# The two curves coincide. The remaining difference is rounding: sums in another order differ in the last digit, and
# each step builds on the one before.
#
# The third curve is the point of the other notebooks. On text that the model has not seen the loss soon rises, while
# the model memorises the poem: seven hundred characters are far too few to learn English. That is what pretrained
# weights are for.

# %%
figure, (top, below) = plt.subplots(
    2, 1, figsize=(7, 4.4), sharex=True, height_ratios=[2, 1], layout="constrained"
)
top.plot(losses["torch"], color=BLUE, lw=4, alpha=0.5, label="torch, train")
top.plot(losses["NumPy"], color="black", lw=1, ls="--", label="NumPy, train")
top.plot(losses["held out"], color=ORANGE, lw=1.5, label="torch, held out")
top.axhline(np.log(len(characters)), color="grey", lw=0.8)
top.annotate("all characters alike", (STEPS, np.log(len(characters))), (0, -11),
             textcoords="offset points", ha="right", color="grey")  # fmt: skip
top.set(ylabel="cross-entropy (nats a character)", title="A small GPT learns the Zen of Python")
top.legend(frameon=False)
below.semilogy(np.maximum(apart, 1e-9), color="black", lw=0.8)
below.set(xlabel="step", ylabel="difference\n(nats)")
plt.show()

# %% [markdown]
# ## What does it write?
#
# Text is generated one token at a time: the model gives probabilities, one token is sampled and appended. Low
# temperatures sharpen the probabilities. At 0 the most probable token is always taken, and lines of the poem come back; at
# 1.5 the spelling breaks down.

# %%
start = "Beautiful"
texts = {}
prompt = torch.tensor([[number[character] for character in start]])
for temperature in (0.0, 0.7, 1.5):
    out = in_torch.generate(
        prompt, 110, temperature=temperature, generator=torch.Generator().manual_seed(SEED)
    )
    texts[temperature] = "".join(characters[i] for i in out[0].tolist())
    print(f"--- temperature {temperature}\n{texts[temperature]}\n")
assert texts[0.0].startswith("Beautiful is better than ")

# %% [markdown]
# Keys and values of past tokens do not change, so they are cached. The cache changes the time per token and the memory;
# it must not change the tokens.

# %%
generated = [
    in_torch.generate(prompt, 60, cached=c, generator=torch.Generator().manual_seed(SEED))
    for c in (True, False)
]
assert torch.equal(generated[0], generated[1])
size = sum(cache.nbytes for cache in in_torch.new_caches(batch=1))
print(f"the same 60 tokens with and without; the caches take {size / 1024:.0f} KiB")

# %% [markdown]
# ## What does it look at?
#
# Each row of an attention map belongs to one character; the columns are the characters it may look at, itself and
# those before. A row sums to 1. In the first layer the heads average over many of the last characters; in the second
# each looks at a few particular ones.

# %%
line = "Explicit is better than"
tokens = torch.tensor([[number[character] for character in line]])
with torch.inference_mode():
    state = in_torch.tokens(tokens) + in_torch.positions(torch.arange(len(line)))
    maps = []
    for layer in in_torch.blocks:
        maps.append(layer.attn.weights(layer.norm1(state))[0])  # [heads, n, n]
        state = layer(state)
sums = torch.stack(maps).sum(-1)
assert torch.allclose(sums, torch.ones_like(sums), atol=1e-5)

figure, grid = plt.subplots(
    2, 4, figsize=(9.5, 5.2), layout="constrained", sharex=True, sharey=True
)
for depth, row in enumerate(grid):
    for head, axes in enumerate(row):
        picture = axes.imshow(maps[depth][head], cmap="cividis", vmin=0, vmax=1)
        axes.set_title(f"layer {depth + 1}, head {head + 1}", fontsize=9)
        axes.set_xticks(range(len(line)), line, fontsize=6)
        axes.set_yticks(range(len(line)), line, fontsize=6)
        axes.tick_params(length=0)
figure.supxlabel("looked at")
figure.supylabel("looking")
figure.colorbar(picture, ax=grid, label="attention weight (a row sums to 1)", shrink=0.8)
plt.show()

# %% [markdown]
# ## And pictures?
#
# The convolutional networks and the ViT of `learners/scratch/` are backbones like any other. They read the files that
# torchvision and timm publish, and a fine-tuned one is saved and predicts like the library's own:
#
# ```
# python -m learners.finetune --data photos --backbone scratch/resnet18 --weights resnet18-f37072fd.pth
# ```
#
# ## To try
#
# - Train the GPT on a text of yours, and give it one more layer or one more head: what becomes of the loss?
# - Remove a term of the hand-written backward pass, and see which comparison fails.
