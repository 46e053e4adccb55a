"""Makes the pictures of docs/gallery.md from real runs of the commands, without the network.

    make demo
    python docs/gallery.py runs/glitches

Debian's Chromium takes the screenshots (`apt-get install chromium`). `docs/gw150914.png` needs measured strain and is
made by `docs/gw150914.py`, `docs/spectrograms.png` by `benchmarks/check_real_data.py --out docs/spectrograms.png`.
"""

from __future__ import annotations

import argparse
import csv
import html
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
CHROMIUM = "/usr/bin/chromium"
#: Of the new files, which no training has seen. Whistle_sim is no class of the model.
PER_CLASS, SEED, UNKNOWN = 20, 11, "Whistle_sim"
TERMINAL = """<body style="margin:0;width:920px;background:#1e2227"><pre style="margin:0;padding:18px 22px;
color:#e6e6e6;font:14px/1.5 'DejaVu Sans Mono',monospace;white-space:pre-wrap">{}</pre></body>"""


def printed(folder: Path, *words: str) -> str:
    """What a command of this project prints in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "secondhand", *words], cwd=folder, capture_output=True, text=True, timeout=900,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    if done.returncode not in (0, 3):
        raise SystemExit(done.stderr)
    return done.stdout


def report(browser: Any, run: Path, out: Path) -> None:
    page = browser.new_page(viewport={"width": 1100, "height": 1010})
    page.goto((run / "report/index.html").resolve().as_uri())
    page.screenshot(path=out)


def phone(browser: Any, model: Path, file: Path, out: Path) -> None:
    """The page at the width of a phone, with a prediction and where the network looked."""
    words = [sys.executable, "-m", "secondhand", "app", str(model), "--port", "0"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            found = re.search(r"http://\S+?:\d+", process.stdout.readline())
            assert found, "the page did not start"
            page = browser.new_page(viewport={"width": 390, "height": 1190}, device_scale_factor=2)
            page.set_default_timeout(120_000)
            page.goto(found[0])
            page.locator("#file-0 input[type=file]").set_input_files(file)
            page.wait_for_function("document.querySelectorAll('.sh-panel').length >= 2")
            page.evaluate("document.activeElement.blur(); window.scrollTo(0, 0)")
            page.screenshot(path=out)
        finally:
            process.terminate()


def unknown(model: Path, files: list[Path], out: Path) -> None:
    """Spectrograms of new files, known classes above and unknown ones below, with the predictions."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from learners.loading.predictor import load_predictor

    predictor = load_predictor(model)
    strange = [file for file in files if file.parent.name == UNKNOWN]
    known = [file for file in files if file.stem.endswith("-0000") and file not in strange][:5]
    shown = [*known, *strange[: len(known)]]
    figure, grid = plt.subplots(2, len(known), figsize=(9, 4.4), layout="constrained")
    for axes, prediction in zip(grid.flat, predictor.predict(shown), strict=True):
        file = Path(prediction.path)
        axes.imshow(predictor.spectrogram.picture(file))
        refused = prediction.label == "unknown"
        name = f"unknown\n{prediction.reason}" if refused else f"{prediction.label}\n"
        axes.set_title(name, fontsize=9, color="#b3541e" if refused else "#1f5fa8")
        axes.set(xticks=[], yticks=[], xlabel=file.parent.name)
    figure.suptitle("What the model predicts. Below each picture: what was simulated")
    figure.savefig(out, dpi=110)


def audit(browser: Any, model: Path, folder: Path, out: Path) -> None:
    """Fifty files are drawn, labelled by what was simulated, and the accuracy is estimated."""
    named, table = "runs/glitches/model", folder / "audit.csv"
    (folder / named).parent.mkdir(parents=True)
    (folder / named).symlink_to(model.resolve())
    printed(folder, "audit", named, "new", "--out", table.name)
    with open(table, encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        label = Path(row["path"]).parent.name
        row["label"] = "unknown" if label == UNKNOWN else label
    with open(table, "w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    words = ["audit", named, "--labels", table.name]
    # As the installed command prints it.
    answer = printed(folder, *words).replace(f"{sys.executable} -m secondhand", "secondhand")
    answer = answer.replace("python -m secondhand", "secondhand")
    text = f"$ secondhand {' '.join(words)}\n{answer}"
    page = browser.new_page(viewport={"width": 920, "height": 100})
    page.set_content(TERMINAL.format(html.escape(text.replace(" %", "\u00a0%"))))
    page.screenshot(path=out, full_page=True)


def main() -> None:
    from PIL import Image
    from playwright.sync_api import sync_playwright

    from datasets.sources.glitches import write_demo

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="run folder of make demo")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "gallery")
    settings = parser.parse_args()
    model, out = settings.run / "model", settings.out
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as passing, sync_playwright() as started:
        folder = Path(passing)
        write_demo(folder / "new", per_class=PER_CLASS, seed=SEED)
        files = sorted((folder / "new").rglob("*.hdf5"))
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        report(browser, settings.run, out / "report.png")
        audit(browser, model, folder, out / "audit.png")
        unknown(model, files, out / "unknown.png")
        chirp = next(file for file in files if file.parent.name == "Chirp_sim")
        phone(browser, model, chirp, out / "phone.png")
        browser.close()
    for name in ("phone.png", "unknown.png"):  # of few colours; the report's tell its classes apart
        Image.open(out / name).convert("RGB").quantize(200).save(out / name, optimize=True)


if __name__ == "__main__":
    main()
