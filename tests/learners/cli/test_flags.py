"""A wrong call is answered in a line that says what is near it."""

from __future__ import annotations

import re

import pytest

from learners import evaluate, export, finetune, predict

CALLS = {
    ("finetune", "--data x --epohcs 3"): "there is no --epohcs; did you mean --epochs?",
    ("finetune", "--data x --qqqqq"): "there is no --qqqqq",
    ("finetune", "photos"): "photos belongs to no flag: name what it is, as in --data photos",
    ("finetune", "--data x --ema false"): (
        "false belongs to no flag: a switch takes no value, as in --ema or --no-ema"
    ),
    ("finetune", "--data x --size abc"): "--size abc: not a whole number",
    ("finetune", "--data x --bs x"): "--bs x: not a whole number",
    ("finetune", "--data x --lr fast"): "--lr fast: not a number or auto",
    ("finetune", "--data x --precision half"): "--precision half: not auto, fp32, fp16, bf16",
    ("finetune", "--data"): "--data: expected one argument",
    ("predict", "model a.jpg --formt csv"): "there is no --formt; did you mean --format?",
    (
        "predict",
        "model a.jpg --format pdf",
    ): "--format pdf: not csv, jsonl, table, raven, audacity, camtrap-dp",
    ("evaluate", "model --dta x"): "there is no --dta; did you mean --data?",
    ("export", "model --overwirte"): "there is no --overwirte; did you mean --overwrite?",
}


@pytest.mark.parametrize(("command", "words"), CALLS)
def test_a_wrong_call_is_told_in_a_line(command, words, capsys):
    main = {"finetune": finetune, "predict": predict, "evaluate": evaluate, "export": export}
    with pytest.raises(SystemExit) as end:
        main[command].main(words.split())
    assert end.value.code == 2
    said = CALLS[command, words]
    assert capsys.readouterr().err == f"error: {said}\n(python -m learners.{command} --help)\n"


def test_without_a_word_it_says_how_to_begin(capsys):
    assert finetune.main([]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: nothing to learn from")
    assert all(
        data in said for data in ("--data photos/", "--data items.csv", "--data demo:digits")
    )


@pytest.mark.parametrize(
    ("command", "usual", "rare"),
    [(finetune, "--data", "--lr-mult"), (predict, "--format", "--threshold-per-class")],
)
def test_help_shows_the_usual_flags_and_help_all_all(command, usual, rare, capsys):
    said = {}
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as end:
            command.main([flag])
        assert not end.value.code
        said[flag] = set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", capsys.readouterr().out, re.M))
    assert said["--help"] < said["--help-all"]
    assert {usual, "--help-all"} <= said["--help"]
    assert len(said["--help"]) < 18
    assert rare in said["--help-all"] - said["--help"]
