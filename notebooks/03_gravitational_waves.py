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
# # Gravitational-wave strain, glitches, and what their spectrograms show
#
# A detector reports one number 16384 times per second, of which public files keep 4096: the strain $h = \Delta L / L$ of its 4 km arms. A merger of black
# holes changes it by $10^{-21}$ for a fraction of a second. So do scattered light, mains hum, and noise of
# unknown origin: the *glitches*. We follow the signal from the raw samples to the picture that a network receives.
#
# At the end you will know what whitening does, how to read a Q-scan, and which glitches look like a wave.
#
# All strain here is **simulated**, offline, from published formulas, unless you set `own` in the second cell to files of
# yours, which are only read. The last section shows a real event if you are online.
#
# `make notebooks` opens this in JupyterLab; in another editor, choose the Python of `.venv` as the kernel.

# %%
import warnings

warnings.filterwarnings("ignore", category=FutureWarning)  # of libraries, for their developers
warnings.filterwarnings("ignore", message="IProgress not found")
warnings.filterwarnings("ignore", message="Wswiglal-redir-stdio")  # of GWF files, in a notebook

from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm

from datasets.core.part import Part
from datasets.kinds.base import kind_of
from datasets.sources.glitches import CLASSES, detector_density, simulate
from datasets.steps.reading import load_table
from datasets.strain.files import Strain, read_strain, usable_spans
from datasets.strain.frames import open_strain, with_channel
from datasets.strain.qscan import (
    QGram,
    highest_frequency,
    qtransform,
    settling,
    spectral_density,
    whiten,
)
from datasets.strain.settings import QScanSettings
from secondhand import SecondhandError

BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"  # told apart by colour-blind eyes as well
plt.rcParams.update({"figure.dpi": 96, "axes.spines.top": False, "axes.spines.right": False})

# %% [markdown]
# ## Strain
#
# `own` is a file, several, or a folder of HDF5 or GWF files (GWF needs `pip install -e '.[gw]'`), or, with a network, a
# published event such as `gwosc:GW150914`. `at` is the GPS time to look at; without it the loudest moment is looked for.
# `channel` is needed where files have several.
#
# Without any, we simulate half a minute of detector noise with a merger in the middle.

# %%
own: str | list[str] = ""  # such as "H-H1_LOSC_4_V2-1126259446-32.hdf5"; "" for the merger below
at: float | None = None  # such as 1126259462.4
channel = ""  # such as "H1:GDS-CALIB_STRAIN"


def files_of(names: str | list[str]) -> list[tuple[str, float | None]]:
    """Files of strain, with the moment that each is looked at."""
    found: list[tuple[str, float | None]] = []
    for name in [names] if isinstance(names, str) else names:
        if name.startswith("gwosc:"):
            event = load_table(name, learned=False).frame
            found += zip(event["path"], event["gps"], strict=True)
        elif Path(name).is_dir():
            found += [(str(f), at) for f in sorted(Path(name).iterdir()) if kind_of(f) == "strain"]
        else:
            found.append((name, at))
    return [(with_channel(path, channel) if channel else path, gps) for path, gps in found]


files = files_of(own) if own else []
context = 32.0  # seconds; of shorter files all
if own:
    with open_strain(files[0][0]) as source:
        context = min(context, float(int(source.duration)))
chirp = (
    read_strain(files[0][0], at=files[0][1], context=context)
    if own
    else simulate("Chirp_sim", rng=13, duration=32)
)
print(f"{chirp.detector or 'simulated'}: {chirp.duration:g} s at {chirp.rate:g} Hz from GPS {chirp.start:.3f}, "
      f"trigger at {chirp.trigger:.3f}")  # fmt: skip

# %% [markdown]
# Two seconds of it are plotted. The event is loud and still hardly visible: below 30 Hz the ground and the suspensions move
# the mirrors more than most waves do.

# %%
t = np.arange(len(chirp.values)) / chirp.rate + chirp.start - chirp.trigger
near = np.abs(t) < 1
figure, axes = plt.subplots(figsize=(8, 2.3), layout="constrained")
axes.plot(t[near], chirp.values[near] * 1e21, color=BLUE, lw=0.5)
axes.axvline(0, color="grey", lw=0.8, ls=":")
axes.set(xlabel="time from the trigger (s)", ylabel="strain ($10^{-21}$)",
         title="Strain around the trigger, as it is measured")  # fmt: skip
plt.show()

# %% [markdown]
# ## How loud is the noise at each frequency?
#
# The amplitude spectral density (ASD) $\sqrt{S(f)}$, in strain per $\sqrt{\mathrm{Hz}}$. It is estimated by Welch's
# method from overlapping periodograms, but with their *median*: one loud glitch among thirty changes the median
# hardly at all, and would dominate the mean. The lines of measured strain are the mains and its harmonics, and wires and
# mirrors that ring.

# %%
density = spectral_density(chirp.values, chirp.rate)
f = np.fft.rfftfreq(len(chirp.values), 1 / chirp.rate)
top = min(1200.0, highest_frequency(chirp.rate))  # what the rate leaves of the band
band = (f >= 10) & (f <= top)
ratio = float(np.median(np.sqrt(density[band] / detector_density(f[band]))))
figure, axes = plt.subplots(figsize=(10, 3.2), layout="constrained")
shown = f >= 3
axes.loglog(
    f[shown], np.sqrt(density[shown]), color=BLUE, lw=0.6, label="estimated from the strain"
)
axes.loglog(f[band], np.sqrt(detector_density(f[band])), color=ORANGE, lw=1.5, label="design curve")
for low, high in ((3, 10), (top, f[-1])):
    axes.axvspan(low, high, color="grey", alpha=0.25, lw=0)
level = np.sqrt(density[band])
axes.set(xlabel="frequency (Hz)", ylabel=r"ASD (1/$\sqrt{\mathrm{Hz}}$)", xlim=(3, f[-1]),
         ylim=(level.min() / 3, level.max() * 3),
         title="Noise of the detector (grey: cut off, no picture shows it)")  # fmt: skip
figure.legend(frameon=False, loc="outside right center")
plt.show()
print(f"the median of estimated over true is {ratio:.3f}")
assert own or abs(ratio - 1) < 0.05

# %% [markdown]
# ## Whitening
#
# Dividing each frequency by its noise, $\tilde d(f) = \tilde h(f) / \sqrt{S(f)}$, gives all frequencies the same
# weight. The remaining noise has variance 1, and the merger stands out of it. A matched filter would find it with
# the signal-to-noise ratio $\rho$:
#
# $$\rho^2 = 4 \int \frac{|\tilde h(f)|^2}{S(f)}\, \mathrm{d}f .$$

# %%
white = whiten(chirp.values, chirp.rate)
quiet = (np.abs(t) > 2) & (np.abs(t) < 14)
zoom = (t > -0.3) & (t < 0.15)
figure, axes = plt.subplots(figsize=(8, 2.5), layout="constrained")
axes.plot(t[zoom], white[zoom], color=BLUE, lw=0.9)
axes.axhspan(-1, 1, color="grey", alpha=0.25, lw=0)
axes.set(xlabel="time from the trigger (s)", ylabel="whitened strain ($\\sigma$)",
         title="The same strain, whitened (grey: noise, one sigma)")  # fmt: skip
plt.show()
print(
    f"away from the event: mean {white[quiet].mean():+.3f}, standard deviation {white[quiet].std():.3f}"
)
assert own or abs(white[quiet].std() - 1) < 0.05
assert own or np.abs(white[zoom]).max() > 1.1 * np.abs(white[quiet]).max()

# %% [markdown]
# ## Q-scan
#
# How do the frequencies change with time? The Q-transform projects the whitened strain onto windowed
# sinusoids whose number of cycles is fixed by the quality factor $Q = f / \Delta f$: short in time at
# high frequencies, long at low ones. (A tile cannot be narrow in both: $\Delta t\, \Delta f \gtrsim
# 1/4\pi$.) The *normalised energy* $E$ of a tile is its power over the median power of its row.
#
# To lowest order the inspiral of two masses depends on one number alone, the chirp mass
# $\mathcal{M} = (m_1 m_2)^{3/5} / (m_1 + m_2)^{1/5}$:
#
# $$f(\tau) = \frac{1}{\pi} \left( \frac{5}{256\, \tau} \right)^{3/8}
#   \left( \frac{G \mathcal{M}}{c^3} \right)^{-5/8},$$
#
# with $\tau$ the time that is left. The sweep upwards, faster and faster, is the signature.


# %%
def scan(strain: Strain, seconds: float | None = None) -> tuple[QGram, float]:
    """The Q-scan of the middle of a stretch, and where in it the trigger lies, in seconds."""
    half = len(strain.values) // 2 if seconds is None else round(seconds * strain.rate / 2)
    middle = round((strain.trigger - strain.start) * strain.rate)
    centre = half / strain.rate
    values = whiten(strain.values[middle - half : middle + half], strain.rate)
    search = (centre - 0.25, centre + 0.25)
    top = min(1200.0, highest_frequency(strain.rate))
    return qtransform(values, strain.rate, frange=(12, top), search=search), centre


gram, centre = scan(chirp)
scan_centre = centre
(picture,) = gram.images([(centre - 0.4, centre + 0.2)], width=400, height=200)
figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
mesh = axes.pcolormesh(np.linspace(-0.4, 0.2, 400), np.geomspace(12, top, 200), picture,
                       vmin=0, vmax=25.5, cmap="viridis", rasterized=True)  # fmt: skip
axes.set_yscale("log", base=2)
axes.set_yticks([16, 32, 64, 128, 256, 512, 1024], ["16", "32", "64", "128", "256", "512", "1024"])
axes.set(xlabel="time from the trigger (s)", ylabel="frequency (Hz)",
         title="Q-scan around the trigger")  # fmt: skip
figure.colorbar(mesh, ax=axes, label="normalised energy")
plt.show()
peak = gram.peak
print(f"loudest tile: energy {peak.energy:.0f} at {peak.frequency:.0f} Hz, Q {peak.q:.1f}, "
      f"{peak.time - centre:+.3f} s from the trigger")  # fmt: skip
assert own or peak.energy > 100
assert own or abs(peak.time - centre) < 0.1

# %% [markdown]
# ## The same at several Q
#
# A plane of low Q shows *when* and blurs the pitch, one of high Q the reverse; a short burst is loud in the first, a hum in
# the last. The scan above is the plane that has the loudest tile near the trigger.

# %%
QS = (5.7, 11.3, 22.6, 45.3)


def at_q(strain: Strain, q: float) -> QGram:
    """The plane of one Q of all of a stretch."""
    high = min(1200.0, highest_frequency(strain.rate, q, q))
    return qtransform(
        whiten(strain.values, strain.rate), strain.rate, qrange=(q, q), frange=(12, high)
    )


planes = {q: at_q(chirp, q) for q in QS}
centre = chirp.trigger - chirp.start
figure, grid = plt.subplots(1, 4, figsize=(10, 2.9), layout="constrained", sharey=True)
for axes, (q, plane) in zip(grid, planes.items(), strict=True):
    (picture,) = plane.images([(centre - 0.4, centre + 0.2)], width=200, height=150)
    mesh = axes.pcolormesh(np.linspace(-0.4, 0.2, 200), np.geomspace(*plane.frange, 150), picture, vmin=0, vmax=25.5,
                           cmap="viridis", rasterized=True)  # fmt: skip
    axes.set_yscale("log", base=2)
    axes.set_yticks([16, 64, 256, 1024], ["16", "64", "256", "1024"])
    axes.set_title(f"Q {q:g}, at most {picture.max():.0f}", fontsize=10)
figure.supxlabel("time from the trigger (s)", fontsize=10)
grid[0].set_ylabel("frequency (Hz)")
figure.colorbar(mesh, ax=grid, label="normalised energy")
plt.show()

# %% [markdown]
# ## What is cut off
#
# A picture shows less than the strain has: a band (grey, above), a time around the trigger, nothing of the ends, where
# whitening has no neighbours, and energies up to 25.5. Whatever is louder has the brightest colour: a loud event is overexposed, so that a
# faint one is seen at all. `clip` changes that.

# %%
(picture,) = gram.images([(scan_centre - 0.4, scan_centre + 0.2)], width=300, height=200)
figure, grid = plt.subplots(1, 2, figsize=(10, 3), layout="constrained", sharey=True)
scales = {"all, on a log scale": {"norm": LogNorm(1, max(float(picture.max()), 30.0))},
          "as the network sees it": {"vmin": 0, "vmax": 25.5}}  # fmt: skip
for axes, (name, how) in zip(grid, scales.items(), strict=True):
    mesh = axes.pcolormesh(np.linspace(-0.4, 0.2, 300), np.geomspace(12, top, 200), np.maximum(picture, 0.01),
                           cmap="viridis", rasterized=True, **how)  # fmt: skip
    axes.set_yscale("log", base=2)
    axes.set_yticks([16, 64, 256, 1024], ["16", "64", "256", "1024"])
    axes.set(title=name, xlabel="time from the trigger (s)")
    figure.colorbar(mesh, ax=axes, label="normalised energy")
grid[0].set_ylabel("frequency (Hz)")
plt.show()
print(f"{np.mean(picture > 25.5):.1%} of this picture is overexposed; the first and last {settling(chirp.rate):g} s of "
      f"{chirp.duration:g} s are of no use")  # fmt: skip

# %% [markdown]
# ## Triggers on a time line
#
# The loudest tile of each quarter of a second, over all of the stretch (of files of yours, up to ten minutes). In noise it
# stays near $\log_2 N$ of the tiles compared, which the next section explains. We put a blip and a whistle beside the
# simulated merger.


# %%
def stretches() -> list[Strain]:
    """The strain to search, as much at a time as is whitened together."""
    if not own:
        later = simulate("Whistle_sim", rng=3, noise=replace(chirp, trigger=chirp.trigger + 9))
        return [simulate("Blip_sim", rng=2, noise=replace(later, trigger=chirp.trigger - 8))]
    with open_strain(files[0][0]) as source:
        spans = usable_spans(source, context, 1)
    half = context / 2 - 1
    moments = [m for a, b in spans for m in np.arange(min(a + half, (a + b) / 2), b, 2 * half)]
    return [read_strain(files[0][0], at=m, context=context, reach=1) for m in moments[:20]]


rows = []
for stretch in stretches():
    bins = round(4 * stretch.duration)
    for q in QS:
        plane = at_q(stretch, q)
        loudest = np.array([np.maximum.reduceat(row, np.arange(bins) * len(row) // bins)
                            for row in plane.energies])  # fmt: skip
        row = loudest.argmax(axis=0)
        rows.append(np.column_stack([stretch.start + (np.arange(bins) + 0.5) / 4, loudest.max(axis=0),
                                     plane.frequencies[row], np.full(bins, q)])[4:-4])  # fmt: skip
found = np.concatenate(rows)
found = found[np.lexsort((-found[:, 1], found[:, 0]))]
found = found[np.diff(found[:, 0], prepend=-1) > 0.01]  # the loudest Q of each quarter of a second
figure, axes = plt.subplots(figsize=(10, 2.9), layout="constrained")
since = found[:, 0] - chirp.trigger
axes.vlines(since, 1, found[:, 1], color="lightgrey", lw=1)
mesh = axes.scatter(
    since, found[:, 1], c=found[:, 2], s=14, cmap="viridis", norm=LogNorm(12, top), zorder=3
)
axes.axhline(25.5, color=ORANGE, lw=1, ls="--")
axes.annotate("brightest", (since[0], 25.5), (0, 3), textcoords="offset points", color=ORANGE)
axes.set(
    yscale="log", xlabel=f"time from GPS {chirp.trigger:.3f} (s)", ylabel="loudest tile (energy)"
)
figure.colorbar(mesh, ax=axes, label="frequency (Hz)")
plt.show()
for gps, energy, frequency, q in found[np.argsort(-found[:, 1])][:8]:
    if energy > 25.5:
        print(f"GPS {gps:.2f}: energy {energy:.0f} at {frequency:.0f} Hz, Q {q:g}")
loud = since[found[:, 1] > 25.5]
assert own or all(np.abs(loud - when).min() < 0.6 for when in (-8, 0, 9))

# %% [markdown]
# ## How much energy exceeds chance?
#
# The power of Gaussian noise in a tile is exponentially distributed. Divided by the *mean* of its row it exceeds
# $E$ with probability $e^{-E}$. Divided by the *median*, which noise exceeds half of the time, $P(> E) = 2^{-E}$. The
# loudest of $N$ independent tiles is expected near $\log_2 N$. Using $e^{-E}$ here would expect $\ln N$ and mistake
# noise for an event.

# %%
noise = np.random.default_rng(7).standard_normal(round(64 * chirp.rate))  # as if whitened
search = (31.75, 32.25)
rows = qtransform(noise, chirp.rate, frange=(12, 1200), search=search).energies
inner = [row[len(row) // 8 : -len(row) // 8] for row in rows]  # away from the ends
tiles = np.sort(np.concatenate(inner))
above = 1 - np.arange(len(tiles)) / len(tiles)
E = np.linspace(0, 25.5, 100)
figure, axes = plt.subplots(figsize=(6.5, 3), layout="constrained")
axes.semilogy(tiles, above, color=BLUE, lw=2, label="tiles of noise")
axes.semilogy(E, 2.0**-E, color=ORANGE, lw=1, ls="--", label="$2^{-E}$")
axes.semilogy(E, np.exp(-E), color="grey", lw=1, ls=":", label="$e^{-E}$, over the mean")
axes.set(xlabel="normalised energy $E$", ylabel="fraction of tiles above it", xlim=(0, 25.5),
         ylim=(1e-8, 2), title="Energies of noise, each row over its median")  # fmt: skip
figure.legend(frameon=False, loc="outside right center")
plt.show()
print(f"P(> 4) = {np.mean(tiles > 4):.4f}, 1/16 = {1 / 16:.4f}; the loudest of {len(tiles)} tiles has "
      f"{tiles[-1]:.1f}, log2 says {np.log2(len(tiles)):.1f}, ln {np.log(len(tiles)):.1f}")  # fmt: skip
assert abs(np.mean(tiles > 4) * 16 - 1) < 0.05

# %% [markdown]
# The pictures are scaled to 25.5, which a tile of noise reaches with probability $2^{-25.5} = 2 \times 10^{-8}$: once
# in fifty million tiles, far more than a picture has. An energy of 10 means nothing: one noise tile in a thousand
# has it.

# %% [markdown]
# ## A gallery of glitches
#
# Each class is a formula with ranges, after what is known of the real ones:
#
# | glitch | waveform | what is behind it |
# |---|---|---|
# | Blip, Tomte | $e^{-t^2/2\sigma^2} \cos(2\pi f_0 t + \varphi)$, $\sigma = Q / 2\pi f_0$ | unknown; a blip has $f_0$ 100 to 300 Hz, a tomte 30 to 60 Hz |
# | Koi fish | a blip of $\rho > 100$ with fins | unknown; so loud that the picture is overexposed |
# | Scattered light | $A \sin\!\left(\frac{4\pi}{\lambda} (x_0 + x_m \sin 2\pi f_m t)\right)$ | stray light from a surface that swings with the microseism: arches up to $f_\max = 4\pi x_m f_m / \lambda$ |
# | Whistle | $f(t) = f_0 + (f_1 - f_0)\,\lvert 2t/T \rvert^p$ | two radio oscillators that beat: a V or a U |
# | Power line | $\sin(2\pi \cdot 60\,t)$ and harmonics | the mains |
# | Repeating blips | a blip every 0.25 to 0.5 s | |

# %%
VIEW = {"Scattered_Light_sim": 4.0, "Repeating_Blips_sim": 4.0, "Chirp_sim": 1.0}
figure, grid = plt.subplots(3, 3, figsize=(8.5, 6.6), layout="constrained")
for axes, label in zip(grid.flat, CLASSES, strict=True):
    view = VIEW.get(label, 1.0)
    settings = QScanSettings(
        context=16, layout="one", durations=(view,), size=(160, 200), fmax=1200
    )
    glitch = simulate(label, rng=4, duration=16)
    mesh = axes.imshow(settings.levels(glitch)[0] / 10, aspect="auto", cmap="viridis", vmin=0,
                       vmax=25.5, extent=(-view / 2, view / 2, np.log2(10), np.log2(1200)))  # fmt: skip
    axes.set_yticks(np.log2([16, 64, 256, 1024]), ["16", "64", "256", "1024"], fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_title(label.replace("_sim", "").replace("_", " "), fontsize=10)
figure.supxlabel("time from the trigger (s)", fontsize=10)
figure.supylabel("frequency (Hz)", fontsize=10)
figure.suptitle("One of each class (simulated)")
figure.colorbar(mesh, ax=grid, label="normalised energy", shrink=0.7)
plt.show()

# %% [markdown]
# A glitch lasts milliseconds or seconds, and one window does not suit both. The network therefore receives four
# lengths of time around the same moment, 0.5, 1, 2 and 4 s, in two rows of one picture.

# %%
arches = simulate("Repeating_Blips_sim", rng=4, duration=16)
settings = QScanSettings(context=16, size=(160, 160), fmax=1200)
views = settings.levels(arches)
figure, grid = plt.subplots(1, 5, figsize=(8.5, 2.2), layout="constrained")
for axes, view, seconds in zip(grid, views, settings.durations, strict=False):
    axes.imshow(view, cmap=settings.colour, vmin=0, vmax=255)
    axes.set_title(f"{seconds:g} s", fontsize=10)
grid[4].imshow(settings.render(arches))
grid[4].set_title("all four, as the\nnetwork sees them", fontsize=10)
for axes in grid:
    axes.axis("off")
figure.suptitle("Repeating blips in four lengths of time")
plt.show()
assert settings.render(arches).shape == (160, 160, 3)

# %% [markdown]
# ## The energy depends on the context
#
# Whitening estimates the noise from the strain around the event. With 6 s the estimate is the median of five
# periodograms, noisy itself, and the event is in two or three of them; with 32 s it is the median of thirty-one. The
# same event then has another energy and its picture another brightness. A network trained with one context does
# not fit pictures of another, so the spectrogram settings, including the context, are stored in the model.

# %%
CONTEXTS = (6, 8, 16, 32)
figure, axes = plt.subplots(figsize=(6.5, 3), layout="constrained")
energies = {}
for label, colour in {"Chirp_sim": BLUE, "Scattered_Light_sim": ORANGE, "Blip_sim": GREEN}.items():
    rows = []
    for seed in range(2):
        event = simulate(label, rng=seed, duration=32)
        rows.append([scan(event, seconds)[0].peak.energy for seconds in CONTEXTS])
    energies[label] = np.array(rows) / np.array(rows)[:, -1:]
    for n, row in enumerate(energies[label]):
        axes.plot(CONTEXTS, row, "o-", color=colour, ms=4, lw=1,
                  label=None if n else label.replace("_sim", "").replace("_", " "))  # fmt: skip
axes.set_xscale("log", base=2)
axes.set_xticks(CONTEXTS, [str(seconds) for seconds in CONTEXTS])
axes.axhline(1, color="grey", lw=0.8, ls=":")
axes.set(xlabel="context (s)", ylabel="energy / energy at 32 s",
         title="Loudest tile of one event, by how much strain around it is used")  # fmt: skip
figure.legend(frameon=False, loc="outside right center")
plt.show()
every = np.concatenate(list(energies.values()))
off = np.abs(every / every[:, -1:] - 1).max(axis=0)
print("; ".join(f"{s} s: off by up to {x:.0%}" for s, x in zip(CONTEXTS, off, strict=True)))
assert off[0] > 0.25
assert off[2] < off[0]

# %% [markdown]
# ## What the network sees of a real event
#
# `gwosc:NAME` is an event of the Gravitational Wave Open Science Center, downloaded on first use. Offline, the
# cell says so and continues. Of files of your own, it shows these.

# %%
try:
    events = files or files_of("gwosc:GW150914")
except SecondhandError as error:
    events = []
    print(f"not shown here, for this was run offline ({str(error)[:60]}…)")
if events:
    events = events[:4]
    settings = QScanSettings.infer([path for path, _ in events], layout="row", size=(160, 800))
    figure, grid = plt.subplots(
        len(events), 1, figsize=(10, 2.5 * len(events)), squeeze=False, layout="constrained"
    )
    for axes, (path, gps) in zip(grid.flat, events, strict=True):
        strain = settings.read(Part(path, at=gps))
        axes.imshow(settings.render(strain))
        axes.set(xticks=np.arange(4) * 200 + 100, yticks=[])
        axes.set_xticklabels([f"{seconds:g} s" for seconds in settings.durations])
        axes.set_title(f"{strain.detector} around GPS {strain.trigger:.3f}", fontsize=10)
    plt.show()

# %% [markdown]
# ## To try
#
# - Make the detector older, `simulate(..., age=1)`, which adds noise: which events do you no longer see?
# - Scan with `qtransform(..., qrange=(4, 8))`: what becomes of a blip, and what of the chirp?
# - Set `own` to measured strain of yours, or to `"gwosc:GW150914"`, and `at` to a moment of it.
# - Train on such pictures and refuse a class that the model never saw, the whistles:
#
# ```
# python -m learners.finetune --data demo:glitches --size 96 --epochs 8
# ```
