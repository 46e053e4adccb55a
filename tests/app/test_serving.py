from __future__ import annotations

import itertools
import sys
import threading
import time
from types import SimpleNamespace

import httpx
import numpy as np
import pytest

from app.interface import build_page
from app.rules import PageRule
from app.server import serve
from app.serving import Busy, Served, Site, load, load_each
from app.settings import PageSettings
from app.views import listed
from datasets.core.errors import SecondhandError
from datasets.core.part import Part
from learners.inference.predictor import Predictor
from learners.loading.predictor import load_predictor
from learners.model.bundle import save_bundle
from learners.rule.tree import Tree
from learners.rule.tree_rule import with_tree
from tests.app.sites import colours
from tests.learners.evaluations import make_bundle
from tests.pictures import write_pictures

pytestmark = pytest.mark.slow


class Slow(Predictor):
    """A model that waits for ``go`` and records its batch sizes."""

    def __init__(self) -> None:
        super().__init__(colours())
        self.go = threading.Event()
        self.batches: list[int] = []

    def predict(self, paths, **options):
        paths = list(paths)
        self.batches.append(len(paths))
        self.go.wait(20)
        if any("cursed" in source.path for source in paths):
            raise RuntimeError("a bug")
        return super().predict(paths, **options)


@pytest.fixture
def files(tmp_path):
    folder = write_pictures(tmp_path, per_class=4)
    return [str(path) for path in sorted(folder.glob("*/*.jpg"))]


@pytest.fixture
def slow():
    predictor = Slow()
    served = Served("slow", predictor, settings=PageSettings(queue=6, bs=4))
    yield served
    predictor.go.set()
    served.close()


def test_the_page_starts_on_a_slow_machine(slow, monkeypatch):
    """Looks at the clock are ten seconds apart, and answers take more than three. The network's
    threads must not wait long for the interpreter then."""
    from gradio import http_server, networking

    def too_late(*_, **__):
        raise httpx.ReadTimeout("3 s")

    clock = SimpleNamespace(time=itertools.count(0, 10).__next__, sleep=time.sleep)
    monkeypatch.setattr(http_server, "time", clock)
    monkeypatch.setattr(networking.httpx, "head", too_late)
    slow.predictor.go.set()
    before = sys.getswitchinterval()
    with serve({"slow": slow}) as url:
        assert httpx.get(f"{url}health").json()["status"] == "ok"
        assert sys.getswitchinterval() <= 1e-3
    assert sys.getswitchinterval() == before


def test_the_page_is_never_asked_through_a_proxy(slow, monkeypatch):
    """A proxy that the environment names does not know this machine's addresses; this one is dead."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    slow.predictor.go.set()
    with serve({"slow": slow}) as url:
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{url}health")
        assert httpx.get(f"{url}health", trust_env=False).json()["status"] == "ok"


def wait_until_started(served: Served) -> None:
    end = time.monotonic() + 10
    while served.waiting and time.monotonic() < end:
        time.sleep(0.01)
    assert not served.waiting


def test_waiting_requests_are_predicted_in_one_batch(slow, files):
    expected = list(Predictor(colours()).predict(files[:5]))
    first = slow.submit(Part(files[0]))
    wait_until_started(slow)
    others = [slow.submit(Part(file)) for file in files[1:5]]
    slow.predictor.go.set()
    answers = [future.result(20) for future in (first, *others)]
    assert slow.predictor.batches == [1, 4]
    for answer, right in zip(answers, expected, strict=True):
        assert (answer.path, answer.label) == (right.path, right.label)
        assert answer.probability == pytest.approx(right.probability, abs=1e-5)


def test_a_full_queue_is_busy_and_its_requests_are_predicted(slow, files):
    accepted = [slow.submit(Part(files[0]))]
    wait_until_started(slow)
    accepted += [slow.submit(Part(files[1])) for _ in range(6)]
    for _ in range(6):
        with pytest.raises(Busy, match="6 requests"):
            slow.submit(Part(files[1]))
    slow.submit(Part(files[2]), admitted=True)
    slow.predictor.go.set()
    assert all(future.result(20).label for future in accepted)


def test_a_failing_request_leaves_the_others(slow, files):
    blocker = slow.submit(Part(files[0]))
    wait_until_started(slow)
    futures = [slow.submit(Part(name)) for name in (files[0], "cursed.jpg", files[1])]
    slow.predictor.go.set()
    assert blocker.result(20).label
    assert futures[0].result(20).label
    assert futures[2].result(20).label
    with pytest.raises(RuntimeError, match="a bug"):
        futures[1].result(20)


def test_cancelled_requests_are_not_predicted(slow, files):
    slow.submit(Part(files[0]))
    wait_until_started(slow)
    cancelled = slow.submit(Part(files[1]))
    assert cancelled.cancel()
    pending = slow.submit(Part(files[2]))
    slow.predictor.go.set()
    pending.result(20)
    assert slow.predictor.batches == [1, 1]


def test_closing_cancels_the_queue(files):
    served = Served("a", Predictor(colours()))
    served.close()
    with pytest.raises(SecondhandError, match="closing"):
        served.submit(Part(files[0]))


def test_models_are_named_by_their_runs(tmp_path):
    folders = [tmp_path / name for name in ("one/model", "two/model", "other/one")]
    for folder in folders:
        save_bundle(colours(), folder)
    served, _ = load_each(PageSettings(models=[*map(str, folders)]))
    assert list(served) == ["one", "two", "one 2"]
    assert served["one"].kind.name == "picture"
    for each in served.values():
        each.close()
    with pytest.raises(SecondhandError, match="not a model folder"):
        load(tmp_path, PageSettings())


def test_a_model_with_groups_shows_five_classes_and_decides_on_all(tmp_path, files):
    names = [*"abcdefg"]
    tree = Tree((*names, "group"), np.array([7, 7, 7, -1, -1, -1, -1, -1]), 7)
    bundle = make_bundle(names, distance=False)
    bundle.rule = with_tree(bundle.rule, tree)
    served = load(save_bundle(bundle, tmp_path / "run" / "model"), PageSettings())
    try:
        answers = list(served.predictor.predict(files))
        for threshold in (0.2, 0.4, 0.6):
            rule = PageRule(bundle.rule.but(threshold=threshold), names, of_model=False)
            shown = [listed(rule.judge(answer), served.top) for answer in answers]
            expected = list(load_predictor(bundle, threshold=threshold, top=5).predict(files))
            assert [(one.label, one.reason, one.top) for one in shown] == [
                (one.label, one.reason, one.top) for one in expected
            ]
    finally:
        served.close()
    assert {len(one.top) for one in answers} == {7}
    assert {len(one.top) for one in shown} == {5}


def test_a_model_that_cannot_be_opened_is_named_and_the_others_are_served(tmp_path, caplog):
    folders = [tmp_path / name / "model" for name in ("one", "torn", "two")]
    for folder in folders:
        save_bundle(colours(), folder)
    (folders[1] / "config.json").write_text("{")
    caplog.set_level("INFO", "app")
    served, failed = load_each(PageSettings(models=[*map(str, folders), "gone"]))
    site = Site(served, str(tmp_path), PageSettings(device="cpu"), failed=failed)
    assert [*site.models] == ["one", "two"]
    assert [*site.not_opened()] == ["torn", "gone"]
    assert site.not_opened()["torn"].startswith("model/config.json")
    assert str(tmp_path) not in site.not_opened()["torn"]
    expected = [f"Opening the model {folder} …" for folder in (*folders, "gone")]
    assert [r.getMessage() for r in caplog.records if r.name == "app.serving"] == expected
    page = build_page(site)
    assert any(
        "torn could not be opened" in str(block.value)
        for block in page.blocks.values()
        if hasattr(block, "value")
    )
    page.close(verbose=False)
    # A model trained in this process: named until it has been written again.
    with pytest.raises(SecondhandError):
        site.add(folders[1])
    save_bundle(colours(), folders[1])
    site.add(folders[1])
    assert [*site.models, *site.not_opened()] == ["one", "two", "torn", "gone"]
    for each in site.models.values():
        each.close()


def test_limits_are_checked():
    with pytest.raises(SecondhandError, match=r"--max-mb 0 .*--queue -1 "):
        PageSettings(max_mb=0, queue=-1).check()
