"""datasets.loaders.augment: what each transform changes and what it leaves alone."""

import numpy as np
import pytest
import torch
from fastai.data.core import DataLoaders, Datasets
from fastai.data.transforms import IntToFloatTensor, ToTensor
from fastai.vision.augment import Resize
from fastai.vision.core import PILImage, TensorImage
from PIL import Image

from datasets.audio.settings import MelSettings
from datasets.loaders.augment import (
    BackgroundMix,
    Equaliser,
    Gain,
    SpecAugment,
    TimeScale,
    TimeShift,
)
from datasets.strain.settings import QScanSettings

ALL = [
    TimeShift(p=1),
    TimeScale(p=1),
    Gain(p=1),
    Equaliser(p=1),
    BackgroundMix(p=1),
    SpecAugment(p=1),
]
NAMES = [type(tfm).__name__ for tfm in ALL]


def batch(count=8, height=32, width=48):
    return TensorImage(
        torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(0))
    )


def changed(before, after):
    return (before != after).flatten(1).any(1)


@pytest.mark.parametrize("tfm", ALL, ids=NAMES)
class TestAll:
    def test_training_only(self, tfm):
        x = batch()
        assert changed(x, tfm(x, split_idx=0)).any()
        assert not changed(x, tfm(x, split_idx=1)).any()

    def test_shape_type_and_range(self, tfm):
        x = batch()
        before = x.clone()
        y = tfm(x, split_idx=0)
        assert type(y) is TensorImage
        assert (y.shape, y.dtype) == (x.shape, x.dtype)
        assert y.min() >= 0
        assert y.max() <= 1
        assert torch.equal(x, before)

    def test_one_seed_one_batch(self, tfm):
        x, batches = batch(), []
        for seed in (5, 5, 6):
            torch.manual_seed(seed)
            batches.append(tfm(x, split_idx=0))
        assert torch.equal(batches[0], batches[1])
        assert not torch.equal(batches[1], batches[2])

    def test_half_precision(self, tfm):
        y = tfm(batch().to(torch.float16), split_idx=0)
        assert y.dtype == torch.float16
        assert torch.isfinite(y).all()

    def test_batch_of_one(self, tfm):
        assert tfm(batch(1), split_idx=0).shape == (1, 3, 32, 48)


class TestTimeShift:
    def test_rows_keep_their_values_and_their_order_along_frequency(self):
        x = batch()
        y = TimeShift(0.25, p=1)(x, split_idx=0)
        assert torch.equal(x.sort(dim=3).values, y.sort(dim=3).values)
        shifts = set()
        for before, after in zip(x, y, strict=True):
            matching_shifts = [s for s in range(-12, 13) if torch.equal(before.roll(s, 2), after)]
            assert len(matching_shifts) == 1
            shifts.add(matching_shifts[0])
        assert len(shifts) > 3


class TestTimeScale:
    def test_distances_change_by_one_factor_and_rows_stay(self):
        """The distance between two clicks shows the factor."""
        x = TensorImage(torch.zeros(400, 3, 8, 201))
        x[:, :, 3, 80] = x[:, :, 3, 120] = 1
        y = TimeScale(0.25, p=1)(x, split_idx=0)
        assert torch.equal(y[:, :, [0, 1, 2, 4, 5, 6, 7]], torch.zeros(400, 3, 7, 201))
        columns = torch.arange(201.0)
        factors = []
        for row in torch.Tensor(y)[:, 0, 3]:
            lit = columns[row > 0.01]
            if len(lit) and lit.max() - lit.min() > 20:
                middle = (lit.max() + lit.min()) / 2
                early, late = row * (columns < middle), row * (columns >= middle)
                places = [(part * columns).sum() / part.sum() for part in (early, late)]
                factors.append(float(places[1] - places[0]) / 40)
        assert len(factors) > 350
        assert 1 / 1.25 - 0.03 < min(factors) < 0.84
        assert 1.19 < max(factors) < 1.25 + 0.03
        assert abs(np.mean(np.log(factors))) < 0.03, "as many slower as faster"

    def test_a_ramp_stays_straight(self):
        ramp = torch.linspace(0, 1, 64).expand(20, 3, 4, 64)
        y = TimeScale(0.5, p=1)(TensorImage(ramp), split_idx=0)
        inside = (y > 0.001) & (y < 0.999)
        bend = torch.Tensor(y).diff(n=2, dim=3).abs()
        assert bend[inside[..., 1:-1] & inside[..., :-2] & inside[..., 2:]].max() < 1e-5


class TestEqualiser:
    def test_a_smooth_curve_over_frequency_alone(self):
        x = TensorImage(torch.full((300, 3, 41, 6), 0.5))
        y = Equaliser(9, range_db=80, knots=5, p=1)(x, split_idx=0)
        curve = torch.Tensor(y - x)[:, 0, :, 0] * 80
        assert torch.allclose(torch.Tensor(y - x) * 80, curve[:, None, :, None], atol=1e-4)
        assert curve.abs().max() <= 9
        assert curve.min() < -8.5
        assert curve.max() > 8.5
        bend = curve.diff(n=2, dim=1).abs()  # zero between the knots at rows 0, 10, 20, 30, 40
        knots = torch.tensor([9, 19, 29])
        off_knots = torch.ones(39, dtype=torch.bool).index_fill(0, knots, False)
        assert bend[:, off_knots].max() < 1e-3
        assert bend[:, knots].max() > 0.5
        # The knots are independent: one end of the curve does not predict the other.
        assert abs(np.corrcoef(curve[:, 0], curve[:, -1])[0, 1]) < 0.2


class TestGain:
    def test_a_step_in_decibels_is_a_step_in_brightness(self):
        x = TensorImage(torch.full((200, 3, 4, 4), 0.5))
        step = (Gain(6, range_db=80, p=1)(x, split_idx=0) - x)[:, 0, 0, 0] * 80
        assert step.abs().max() <= 6
        assert step.min() < -5
        assert step.max() > 5
        assert abs(step.mean()) < 1


class TestBackgroundMix:
    def test_powers_add(self):
        level, snr = 0.75, 6.0206  # 6 dB is a factor of 2 in amplitude
        x = TensorImage(torch.full((2, 3, 4, 4), level))
        y = BackgroundMix(snr_db=(snr, snr), p=1)(x, split_idx=0)
        expected = level + 10 * torch.log10(torch.tensor(1.25)) / 80
        assert torch.allclose(y, expected.expand_as(y), atol=1e-4)

    def test_black_background_changes_nothing(self):
        x = batch(2)
        x[1] = 0
        y = BackgroundMix(snr_db=(0, 0), p=1)(x, split_idx=0)
        assert torch.allclose(x[0], y[0], atol=1e-5)

    def test_background_shows_where_it_is_dark(self):
        x = TensorImage(torch.zeros(2, 3, 4, 4))
        x[0] = 0.9
        y = BackgroundMix(snr_db=(16, 16), p=1)(x, split_idx=0)
        assert torch.allclose(y[1], torch.tensor(0.7), atol=1e-3)

    def test_of_a_batch_never_itself(self):
        x = TensorImage(torch.zeros(4, 3, 4, 4))
        x[0] = 0.9
        for _ in range(20):
            y = BackgroundMix(snr_db=(10, 10), p=1)(x, split_idx=0)
            assert torch.allclose(y[0], x[0])
            assert (y[1:].amax(dim=(1, 2, 3)) > 0.5).sum() == 1


class TestSpecAugment:
    def test_covers_whole_rows_and_columns_with_the_mean(self):
        x = batch(64)
        y = SpecAugment(0.25, 0.25, count=1, p=1)(x, split_idx=0)
        mean = x.mean(dim=(2, 3), keepdim=True)
        covered = (y == mean).all(1)
        assert torch.equal(torch.where(covered[:, None], mean, x), y)
        rows, columns = covered.all(2).sum(1), covered.all(1).sum(1)
        assert rows.max() <= 8 + 1
        assert columns.max() <= 12 + 1
        assert rows.float().mean() == pytest.approx(4, abs=1)
        assert columns.float().mean() == pytest.approx(6, abs=1.5)
        for one, r, c in zip(covered, rows, columns, strict=True):
            assert one.sum() == r * 48 + c * 32 - r * c

    def test_no_masks(self):
        assert torch.equal(SpecAugment(count=0, p=1)(batch(), split_idx=0), batch())


@pytest.mark.parametrize("kind", [TimeShift, Gain, BackgroundMix, SpecAugment])
def test_part_of_the_pictures(kind):
    x = batch(400, 8, 16)
    share = changed(x, kind(p=0.3)(x, split_idx=0)).float().mean()
    assert 0.15 < share < 0.4


class TestForSettings:
    def kinds(self, spectrogram, **options):
        return [type(tfm) for tfm in spectrogram.augmentations(**options)]

    def test_sound(self):
        assert self.kinds(MelSettings()) == [
            TimeShift,
            TimeScale,
            Gain,
            Equaliser,
            BackgroundMix,
            SpecAugment,
        ]
        assert self.kinds(MelSettings(colour="magma")) == [TimeShift, TimeScale, SpecAugment]
        assert self.kinds(MelSettings(level="pcen")) == [TimeShift, TimeScale, SpecAugment]
        assert self.kinds(MelSettings(), strength=0) == []

    def test_strain_stays_where_it_is(self):
        (cover,) = QScanSettings().augmentations()
        before = torch.rand(200, 3, 64, 48)
        unchanged = (cover.vary(before) == before).all(dim=1)
        assert unchanged.any(dim=1).all()  # no moment is hidden completely
        assert not unchanged.all(dim=(1, 2)).all()  # but bands are

    def test_range_of_the_settings(self):
        gain = MelSettings(range_db=60.0).augmentations()[2]
        assert gain.limit == pytest.approx(0.1)


def test_in_a_fastai_pipeline_after_floats_and_before_normalisation():
    images = [Image.new("RGB", (48, 32), (value,) * 3) for value in range(0, 240, 30)]
    data = Datasets(images, [[PILImage.create]], splits=[range(4), range(4, 8)])
    loaders = DataLoaders.from_dsets(
        data.train,
        data.valid,
        bs=4,
        shuffle=False,
        after_item=[Resize(32), ToTensor],
        after_batch=[SpecAugment(p=1), Gain(p=1), IntToFloatTensor],
        device=torch.device("cpu"),
        num_workers=0,
    )
    steps = [type(step).__name__ for step in loaders.train.after_batch]
    assert steps[0] == "IntToFloatTensor"
    (train,) = loaders.train.one_batch()
    assert (train.shape, train.dtype) == ((4, 3, 32, 32), torch.float32)
    (valid,) = loaders.valid.one_batch()
    assert torch.equal(valid[0], torch.full((3, 32, 32), 120 / 255))
