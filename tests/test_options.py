"""Numbers with units, on the command line."""

import click
import pytest

from command import run
from shardmill.cli.main import cli
from shardmill.cli.options import COUNT, SIZE, Rejects, Share

COUNTS = {
    **{"35M": 35_000_000, "1.5G": 1_500_000_000, "10k": 10_000, "2B": 2 * 10**9, "1t": 10**12, "1_000": 1000},
    **{"7": 7, " 12 K ": 12_000, "1,000,000": 10**6, "0.25k": 250, "9007199254740993": 9007199254740993},
    **{"1.1M": 1_100_000, "0.0035G": 3_500_000},
}
SIZES = {
    **{"512MiB": 512 << 20, "2GiB": 2 << 30, "1K": 1024, "1kB": 1000, "1.5m": 3 << 19, "10": 10, "1.1GiB": 1181116006},
}


@pytest.mark.parametrize(("kind", "text", "number"), [(COUNT, *each) for each in COUNTS.items()] + [(SIZE, *each) for each in SIZES.items()])  # fmt: skip
def test_numbers_may_have_units(kind, text, number):
    assert kind.convert(text, None, None) == number


@pytest.mark.parametrize("text", ["", "-1", "1.5", "M", "1e6", "5X", "1..2M", "ten", "1.5b5"])
def test_what_is_no_number_is_refused_with_examples(text):
    with pytest.raises(click.BadParameter, match=r"write it like 35M, 1\.5G"):
        COUNT.convert(text, None, None)


def test_a_share_may_be_a_percentage():
    shares = {"50%": 0.5, "0.07%": 0.0007, "5 %": 0.05, "0.1": 0.1, "1e-3": 0.001, "1/20": 0.05, "0": 0.0}
    assert {text: Share().convert(text, None, None) for text in shares} == shares
    for text in ("half", "", "%", "1/0"):
        with pytest.raises(click.BadParameter, match=r"is not a share; write it like 0\.1 or 10%"):
            Share().convert(text, None, None)


def test_rejects_are_a_number_or_a_share():
    found = {text: Rejects().convert(text, None, None) for text in ("100", "10k", "0.1%", "5 %", "0.001", "1e-05")}
    assert found == {"100": 100, "10k": 10_000, "0.1%": 0.001, "5 %": 0.05, "0.001": 0.001, "1e-05": 1e-05}
    assert type(found["10k"]) is int and type(found["0.001"]) is float
    with pytest.raises(click.BadParameter, match="neither a number of records nor a share"):
        Rejects().convert("many", None, None)


def test_every_option_that_counts_something_takes_units():
    plain = {"seed", "eot_id"}  # names, not amounts
    for command in cli.commands.values():
        for param in command.params:
            assert param.name in plain or not isinstance(param.type, click.types.IntParamType), param.name


@pytest.mark.parametrize("option", ["--limit-tokens", "--max-rejects", "--tokenizer", "--where", "--seed"])
def test_an_option_without_its_value_is_an_error(tmp_path, option):
    done = run("prepare", "a.txt", "-o", "out", option, cwd=tmp_path)
    assert done.returncode == 2 and "requires an argument" in done.stderr
