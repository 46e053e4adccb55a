"""Settings: which source wins, and which message an invalid one gives."""

from __future__ import annotations

import math
import re
from dataclasses import fields
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import yaml

from datasets.core.errors import SecondhandError
from datasets.items.settings import read_spectrogram
from learners import evaluate, export, finetune, predict
from learners.cli.flags import PRESETS, dump, parse
from learners.cli.settings import Settings, TrainSettings

#: Nine to the eighth power words, if expanded.
LAUGHS = "data: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{after} [{', '.join([f'*{before}'] * 9)}]\n"
    for name, before, after in zip(
        ("unknown", "kind", "fold", "cv", "valid", "size"), "abcdef", "bcdefg", strict=True
    )
)


def read(*argv: str) -> dict[str, Any]:
    return parse(list(argv)).flat()


def test_every_source_outweighs_the_one_before_in_any_order(tmp_path: Path) -> None:
    preset = yaml.safe_load((PRESETS / "best.yaml").read_text())
    file = tmp_path / "mine.yaml"
    file.write_text("ema: false\nmixup: 0.5\n")
    default = read()
    assert (default["epochs"], default["mixup"]) == (5, 0.0)
    words = (("--preset", "best"), ("--config", str(file)), ("--mixup", "0.9"))
    for order in permutations(words):
        settings = read(*(word for pair in order for word in pair))
        assert settings["wd"] == default["wd"]
        assert settings["epochs"] == preset["epochs"] != default["epochs"]
        assert settings["ema"] is False is not preset["ema"]
        assert settings["mixup"] == 0.9
        equals = read(*("=".join(pair) for pair in order))
        assert equals == settings


def test_a_later_file_outweighs_an_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("epochs: 2\nbs: 8\n")
    (tmp_path / "b.yaml").write_text("epochs: 3\n")
    settings = read("--config", str(tmp_path / "a.yaml"), "--config", str(tmp_path / "b.yaml"))
    assert (settings["epochs"], settings["bs"]) == (3, 8)


def test_unknown_preset_names_the_known_ones() -> None:
    for name in ("bset", "../presets/best"):
        with pytest.raises(SecondhandError, match=r"Choose one of .*best, .*quick"):
            read("--preset", name)


def test_all_unknown_keys_of_a_file_are_named_at_once(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("epoch: 3\nbs: 4\nbakcbone: resnet18\nzzzzz: 1\n")
    with pytest.raises(SecondhandError) as error:
        read("--config", str(file))
    message = str(error.value)
    assert str(file) in message
    assert "'epoch' (did you mean 'epochs'?)" in message
    assert "'bakcbone' (did you mean 'backbone'?)" in message
    assert "'zzzzz'" in message
    assert "'bs'" not in message


def test_an_empty_file_changes_nothing_and_one_that_is_not_there_is_an_error(
    tmp_path: Path,
) -> None:
    with pytest.raises(SecondhandError, match="cannot be read"):
        read("--config", str(tmp_path / "none.yaml"))
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert read("--config", str(tmp_path / "empty.yaml")) == read()


@pytest.mark.parametrize("second", [["--unknown", "b"], ["--unknown=b"]])
def test_unknown_files_named_twice_are_an_error_and_other_flags_are_not(second: list[str]) -> None:
    with pytest.raises(SecondhandError, match="--unknown is given 2 times"):
        read("--unknown", "a", *second)
    assert read("--data", "a", "--epochs", "3", "--epochs", "5")["epochs"] == 5


def test_several_data_are_all_kept_in_their_order(tmp_path: Path) -> None:
    paths = ["a b", "c.csv", "d"]
    assert read("--data", "a b", "--epochs", "3", "--data=c.csv", "--data", "d")["data"] == paths
    assert read("--data", "a b", "c.csv", "d", "--epochs", "3")["data"] == paths
    assert read("--data", "a b")["data"] == "a b"
    (tmp_path / "several.yaml").write_text("data: [a b, c.csv]\n")
    again = read("--config", str(tmp_path / "several.yaml"))["data"]
    assert again == ["a b", "c.csv"]
    assert read("--config", str(tmp_path / "several.yaml"), "--data", "x")["data"] == "x"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("epochs: many\n", "epochs.*many"),
        ("epochs:\n", "'epochs' has no value"),
        ("data: 2024\n", "data must be text, but YAML reads 2024.*'2024'"),
        ("out: 2024\n", "out must be text, but YAML reads 2024"),
        ("group_by: yes\n", "group_by must be text, but YAML reads True"),
        ("views: [0.5, [1]]\n", "'views' is not a number, a word"),
        ("cv: {a: 1}\n", "'cv' is not a number, a word"),
        ("out: 2024-01-01\n", "'out' is not a number, a word"),
        ("out: 2024-99-99\n", "cannot be read .month must be in 1..12"),
        (f"epochs: {'9' * 5000}\n", "cannot be read .a number of 5000 characters"),
        (f"lr: 0x{'f' * 5000}\n", "cannot be read .a number of 5002 characters"),
        (f"data: [0x{'f' * 5000}]\n", "cannot be read .a number of 5002 characters"),
        (f"lr: {':'.join(['59'] * 100_000)}\n", "cannot be read .a number of 299999 characters"),
        (f"lr: {':'.join(['59'] * 10_000)}.5\n", "cannot be read .a number of 30001 characters"),
        ("epochs: !!int ''\n", "cannot be read .string index out of range"),
        ("epochs: !!timestamp x\n", "cannot be read"),
        (f"epochs: {'[' * 3000}\n", "nested more than 50 levels deep"),
        (f"{'- ' * 3000}\n", "nested more than 50 levels deep"),
        ("views: &a [*a]\n", "'views' is not a number, a word"),
        ('out: "\\x1b[2J"\n', "'out' contains characters that cannot be printed"),
        ("data: !!python/object/apply:os.system [id]\n", "cannot be read"),
        (f"views: [{', '.join(['1'] * 1001)}]\n", "'views' is not a number"),
        (f"# {'x' * (1 << 20)}\n", "larger than 1024 kB"),
        (LAUGHS, "'unknown' is not a number, a word"),
        ("- 1\n- 2\n", "not a list of"),
        ("data: [1\n", "cannot be read"),
        ("just words", "not a list of"),
    ],
)
def test_a_wrong_value_in_a_file_is_one_error_that_names_it(
    tmp_path: Path, text: str, match: str
) -> None:
    (tmp_path / "wrong.yaml").write_text(text)
    with pytest.raises(SecondhandError, match=match) as error:
        read("--config", str(tmp_path / "wrong.yaml"))
    assert str(error.value).startswith(f"--config {tmp_path / 'wrong.yaml'}: ")
    assert str(error.value).isprintable()


def test_dump_is_read_back_by_config(tmp_path: Path) -> None:
    argv = ["--preset", "best", "--no-flip", "--data", "Früchte: a #1", "--weights", "w.pth"]
    argv += ["--lr", "1e-5", "--clip", "1", "--group-by", r"(\d+)_", "--out", "runs/x"]
    settings = parse(argv)
    (tmp_path / "config.yaml").write_text(dump(settings), encoding="utf-8")
    again = parse(["--config", str(tmp_path / "config.yaml")])
    assert again == settings
    assert again.train.lr == 1e-5
    assert isinstance(again.train.lr, float)


def test_print_config_is_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        read("--epochs", "9", "--no-flip", "--print_config")
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed)["epochs"] == 9
    (tmp_path / "printed.yaml").write_text(printed)
    assert read("--config", str(tmp_path / "printed.yaml")) == read("--epochs", "9", "--no-flip")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": -1}, "--epochs -1 (must be 0 or more)"),
        ({"cache_limit": 0}, "--cache-limit 0 (must be above 0)"),
        ({"seeds": 17}, "--seeds 17 (must be 1 to 16)"),
        ({"label_smoothing": 1}, "--label-smoothing 1 (must be 0 to below 1)"),
        ({"lr": 100.0}, "--lr 100.0 (must be auto, or above 0 and below 100)"),
        ({"keep_known": 2}, "--keep-known 2 (must be above 0, at most 1)"),
        ({"target_accuracy": 1}, "--target-accuracy 1 (must be above 0 and below 1, such as 0.99)"),
        ({"wd": math.nan, "clip": 0}, "--wd nan (must be 0 or more); --clip 0 (must be above 0)"),
        (
            {"epochs": 0, "freeze_epochs": 0},
            "--epochs 0 with --freeze-epochs 0 (nothing would be trained: leave one of them out)",
        ),
        ({"accumulate": 20}, "--accumulate 20 with --bs 16 (use a multiple of --bs)"),
        ({"bs": 0, "accumulate": 20}, "--bs 0 (must be 1 or more)"),
        ({"cross_fit": 11}, "--cross-fit 11 (must be auto, or 0 to 10)"),
        ({"cross_fit": 1}, "--cross-fit 1 (one body: give at least 2, or 0 for none)"),
        (
            {"overlap": 1, "background": "rest", "head": "cosine"},
            "--overlap 1 (must be 0 to 0.95); --background rest with --head cosine (use --head linear)",
        ),
    ],
)
def test_every_number_out_of_its_range_is_named_with_it(
    values: dict[str, Any], message: str
) -> None:
    Settings().but(overlap=0.95, seeds=16, lr="auto", keep_known=1, clip=None, wd=0).check()
    with pytest.raises(SecondhandError) as error:
        Settings().but(**values).check()
    assert str(error.value) == f"invalid settings: {message}"


@pytest.mark.parametrize(
    "values",
    [
        {"cv": 5},
        {"fold": 1},
        {"from": Path("model")},
        {"labels": "multi"},
        {"seeds": 2},
    ],
)
def test_bodies_are_cross_fitted_only_where_nothing_else_measures(values: dict[str, Any]) -> None:
    """A number is an error that names the other flag; auto gives way."""
    Settings().but(cross_fit=3).check()
    (name,) = values
    with pytest.raises(
        SecondhandError, match=f"--cross-fit 3 with --{name.replace('_', '-')}.*out"
    ):
        Settings().but(cross_fit=3, **values).check()
    Settings().but(cross_fit="auto", **values).check()
    assert Settings().but(cross_fit="auto", **values).against_cross_fit


def test_settings_differ_by_name_in_whatever_section() -> None:
    before = Settings()
    after = before.but(fold=3, out=Path("x"), epochs=9)
    assert (after.splits.fold, after.run.out, after.train.epochs) == ("3", Path("x"), 9)
    assert before == Settings()
    assert after.but(fold=None, out=None, epochs=5) == before
    names = [item.name for section in before.sections.values() for item in fields(section)]
    assert len(names) == len(set(names)) == len(before.flat())
    with pytest.raises(SecondhandError, match=r"'epoch'.*epochs"):
        before.but(epoch=9)


def test_help_shows_groups_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        read("--help-all")
    assert end.value.code == 0
    output = capsys.readouterr().out
    for section in Settings().sections.values():
        assert f"\n{section.__doc__}:\n" in output
    assert f"default: {TrainSettings().freeze_epochs}" in output


def test_switches_and_a_flag_that_may_stand_bare() -> None:
    assert [read(*words)["flip"] for words in ((), ("--no-flip",), ("--flip",))] == [
        True,
        False,
        True,
    ]
    assert [read(*words)["tta"] for words in ((), ("--tta",), ("--tta", "6"))] == [1, 4, 6]
    assert read("--tta", "--epochs", "3")["tta"] == 4


@pytest.mark.parametrize(
    ("text", "fold", "cv"),
    [
        ("fold: 1\ncv: 5", "1", 5),
        ("fold: '1'\ncv: fold", "1", "fold"),
        ("fold:\nseed: 2", None, None),
    ],
)
def test_folds_by_number_or_column_are_read_back_as_they_were(
    tmp_path: Path, text: str, fold: str | None, cv: object
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text + "\n")
    for _ in range(2):
        settings = parse(["--config", str(file)])
        assert (settings.splits.fold, settings.splits.cv) == (fold, cv)
        file.write_text(dump(settings))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n_mel: 40", "unknown 'n_mel' (did you mean 'n_mels'?)"),
        ("n_mels: 40.5", "n_mels is 40.5, but must be a whole number"),
        ("level: {a: b}", "'level' is not a number"),
        ("- 3", "not a list of"),
    ],
)
def test_a_file_of_spectrogram_settings_that_is_wrong_is_named(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(SecondhandError) as error:
        read("--spectrogram", str(file))
    assert str(error.value).startswith(f"--spectrogram {file}")
    assert message in str(error.value)


def test_spectrogram_settings_of_a_file_outlive_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("fmin: 30\npicture: [64, 96]\n")
    settings = parse(["--spectrogram", str(file)])
    (tmp_path / "config.yaml").write_text(dump(settings), encoding="utf-8")
    file.unlink()
    again = read("--config", str(tmp_path / "config.yaml"))["spectrogram"]
    assert read_spectrogram(again) == {"fmin": 30.0, "picture": [64, 96]}
    with pytest.raises(
        SecondhandError, match=r"--spectrogram .*mine.yaml: neither a file nor a preset"
    ):
        read("--spectrogram", str(file))


CALLS = {
    ("finetune", "--data x --epohcs 3"): "there is no flag --epohcs. Did you mean --epochs?",
    ("finetune", "--data x --qqqqq"): "there is no flag --qqqqq.",
    ("finetune", "photos"): "unexpected photos. Write the flag before it, such as --data photos.",
    ("finetune", "--data x --ema false"): (
        "unexpected false. A switch takes no value: write --ema or --no-ema."
    ),
    ("finetune", "--data x --size abc"): "--size abc: must be a whole number",
    ("finetune", "--data x --bs x"): "--bs x: must be a whole number",
    ("finetune", "--data x --lr fast"): "--lr fast: must be a number or auto",
    (
        "finetune",
        "--data x --precision half",
    ): "--precision half: must be auto, fp32, tf32, fp16, bf16",
    ("finetune", "--data"): "--data needs a value.",
    ("predict", "model a.jpg --formt csv"): "there is no flag --formt. Did you mean --format?",
    ("predict", "model a.jpg --form csv"): "there is no flag --form. Did you mean --format?",
    ("predict", "model a.jpg --resize crop"): (
        "--resize is a flag of finetune: a model keeps the setting that it was trained with. "
        "Leave it out."
    ),
    ("predict", "model a.gwf --at 2015-09-14T09:50:45"): (
        "--at 2015-09-14T09:50:45: must be a number: GPS seconds of strain, such as 1126259462.4, or seconds from the "
        "start of a sound"
    ),
    ("evaluate", "model --dta x"): "there is no flag --dta. Did you mean --data?",
    ("export", "model --overwirte"): "there is no flag --overwirte. Did you mean --overwrite?",
}


@pytest.mark.parametrize(("command", "words"), CALLS)
def test_a_wrong_call_is_told_in_a_line(command, words, capsys):
    main = {"finetune": finetune, "predict": predict, "evaluate": evaluate, "export": export}
    with pytest.raises(SystemExit) as end:
        main[command].main(words.split())
    assert end.value.code == 2
    message = CALLS[command, words]
    assert capsys.readouterr() == ("", f"error: {message}\n(python -m learners.{command} --help)\n")


@pytest.mark.parametrize(
    ("main", "words", "missing"),
    [
        (predict, "", "MODEL is missing."),
        (evaluate, "model", "--data is missing."),
        (export, "", "MODEL is missing."),
    ],
)
def test_a_call_without_what_it_needs_shows_the_usage(main, words, missing, capsys):
    with pytest.raises(SystemExit) as end:
        main.main(words.split())
    assert end.value.code == 2
    first, usage, *_ = capsys.readouterr().err.splitlines()
    assert first == f"error: {missing}"
    assert usage.startswith(("usage: python -m learners.", "usage: secondhand "))


def test_without_a_word_it_says_how_to_begin(capsys):
    assert finetune.main([]) == 2
    output = capsys.readouterr().err
    assert output.startswith("error: --data is missing")
    assert all(
        data in output for data in ("--data photos/", "--data items.csv", "--data demo:digits")
    )


@pytest.mark.parametrize(
    ("command", "usual", "rare"),
    [(finetune, "--data", "--lr-mult"), (predict, "--format", "--threshold-per-class")],
)
def test_help_shows_the_usual_flags_and_help_all_all(command, usual, rare, capsys):
    outputs = {}
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as end:
            command.main([flag])
        assert not end.value.code
        outputs[flag] = set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", capsys.readouterr().out, re.M))
    assert outputs["--help"] < outputs["--help-all"]
    assert {usual, "--help-all"} <= outputs["--help"]
    assert len(outputs["--help"]) < 20
    assert rare in outputs["--help-all"] - outputs["--help"]
