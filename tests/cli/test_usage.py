"""Command lines that do not fit: whatever is wrong, the answer is one line in the project's own words, and exit status 2."""

from __future__ import annotations

import contextlib
import io
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from numalign.cli.app import run


@pytest.fixture(scope="module", autouse=True)
def _sigterm() -> Iterator[None]:
    """``run`` answers SIGTERM in its own way."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def answer(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(arguments)
    return status, out.getvalue(), err.getvalue()


HELP = "`numalign {} --help` shows all"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        # Commands.
        (("scna",), "unknown command 'scna', did you mean scan?; wanted one of scan, list, show, explain"),
        (("a\nb",), "unknown command 'a\\nb'; wanted one of scan, list, show, explain"),
        (
            ("--vresion",),
            "unknown option '--vresion', did you mean --version?; wanted one of scan, list, show, explain",
        ),
        (
            ("--version=3",),
            "unknown option '--version=3', did you mean --version?; wanted one of scan, list, show, explain",
        ),
        # More than a command takes.
        (
            ("list", "zzz"),
            "got 'zzz', but list takes options alone: name operators with --select; " + HELP.format("list"),
        ),
        (
            ("scan", "sum"),
            "got 'sum', but scan takes options alone: name operators with --select; " + HELP.format("scan"),
        ),
        (
            ("scan", "--repaired", "yes"),
            "got 'yes', but scan takes options alone: name operators with --select; " + HELP.format("scan"),
        ),
        (("show", "a", "b"), "got 'b', but show takes one folder; " + HELP.format("show")),
        (("explain", "NA101", "NA102"), "got 'NA102', but explain takes one code; " + HELP.format("explain")),
        # Options that do not exist.
        (("scan", "--selct", "sum"), "unknown option --selct of scan, did you mean --select"),
        (("scan", "--selct=sum"), "unknown option --selct of scan, did you mean --select"),
        (("list", "--foo"), "unknown option --foo of list; " + HELP.format("list")),
        (("list", "-q"), "unknown option -q of list; " + HELP.format("list")),
        (("show", "--no-last"), "unknown option --no-last of show, did you mean --last?; " + HELP.format("show")),
        (("show", "--run", "a"), "unknown option --run of show; " + HELP.format("show")),
        (("explain", "--code", "NA101"), "unknown option --code of explain; " + HELP.format("explain")),
        # Options without their value, or with an empty one.
        (("list", "--output-format"), "--output-format has no value; wanted one of table, json, jsonl"),
        (("list", "--select"), "--select has no value; wanted names, with commas between them"),
        (("scan", "--select", "sum", "--select"), "--select has no value; wanted names, with commas between them"),
        (("scan", "--max-size"), "--max-size has no value; wanted a whole number"),
        (("scan", "--timeout"), "--timeout has no value; wanted a number"),
        (("scan", "--jobs"), "--jobs has no value; wanted a whole number"),
        (("scan", "--out"), "--out has no value; wanted a folder"),
        (("scan", "--import"), "--import has no value; wanted names, with commas between them"),
        (("scan", "--select", ""), "--select is ''; give it a value, or leave it out"),
        (("scan", "--select="), "--select is ''; give it a value, or leave it out"),
        (("scan", "--resume", " "), "--resume is ' '; give it a value, or leave it out"),
        (("scan", "--out", ""), "--out is ''; give it a value, or leave it out"),
        (("show", ""), "an argument is ''; give it a value, or leave it out"),
        (("explain", ""), "an argument is ''; give it a value, or leave it out"),
        (("",), "an argument is ''; give it a value, or leave it out"),
        # Values of another kind.
        (("scan", "--max-size", "many"), "--max-size is 'many'; wanted a whole number"),
        (("scan", "--max-size", "1.5"), "--max-size is '1.5'; wanted a whole number"),
        (("scan", "--max-size", "1e3"), "--max-size is '1e3'; wanted a whole number"),
        (("scan", "--jobs=two"), "--jobs is 'two'; wanted a whole number"),
        (("scan", "--timeout", "soon"), "--timeout is 'soon'; wanted a number"),
        (("scan", "--select", ","), "--select is ','; wanted names, with commas between them"),
        (("list", "--select", "sum,"), "--select is 'sum,'; wanted names, with commas between them"),
        (("scan", "--device", "cpu,,cpu"), "--device is 'cpu,,cpu'; wanted names, with commas between them"),
        (
            ("show", "--output-format", "jason"),
            "--output-format is 'jason', did you mean json or jsonl?; wanted one of table, json, jsonl",
        ),
        (("explain", "--output-format=[red]"), "--output-format is '[red]'; wanted one of table, json, jsonl"),
        (("show", "--last=maybe"), "--last is 'maybe'; wanted no value"),
        (("scan", "--jobs", "1", "--jobs", "2"), "--jobs is given more than once; wanted once"),
        (("scan", "-qq"), "-q is given more than once; wanted once"),
        # Numbers out of range.
        (("scan", "--max-size", "0"), "--max-size is 0; wanted a whole number from 1 to 9223372036854775807"),
        (("scan", "--max-size", "-5"), "--max-size is -5; wanted a whole number from 1 to 9223372036854775807"),
        (("scan", "--seed", "-1"), "--seed is -1; wanted a whole number from 0 to 9223372036854775807"),
        (("scan", "--threads", "99999"), "--threads is 99999; wanted a whole number from 1 to 1024"),
        (("scan", "--timeout", "-1"), "--timeout is -1; wanted a number of seconds above 0"),
        (("scan", "--timeout", "nan"), "--timeout is nan; wanted a number of seconds above 0"),
        (("scan", "--timeout", "inf"), "--timeout is inf; wanted a number of seconds above 0"),
        # Names that are not there.
        (("list", "--select", "indexx"), "no operator matches 'indexx', did you mean "),
        (("scan", "--ignore", "nll_los2d"), "no operator matches 'nll_los2d', did you mean nll_loss2d"),
        (("scan", "--select", "\x1b[31m"), "no operator matches '\\x1b[31m'; `numalign list` shows them all"),
        (("scan", "--dtype", "float61"), "unknown dtype 'float61', did you mean "),
        (("scan", "--direction", "forwards"), "unknown direction 'forwards', did you mean forward"),
        (("scan", "--device", "cuba"), "unknown device 'cuba', did you mean cuda"),
        (("scan", "--device", "cuda:99"), "device 'cuda:99' is not there: "),
        (("scan", "--device", "meta"), "device 'meta' holds no numbers; name a device that computes"),
        (("scan", "--import", "no_such_module"), "--import no_such_module failed: ModuleNotFoundError: "),
        (("explain", "NA110"), "unknown code 'NA110', did you mean "),
        (("show", "nowhere"), "no run at nowhere: there is no store.sqlite"),
        (("show", "no\nwhere"), "no run at no where: there is no store.sqlite"),
        (("show",), "no run in "),
        (("scan", "--resume", "nowhere"), "no run at nowhere: there is no store.sqlite"),
    ],
)
def test_it_says_what_was_got_what_was_wanted_and_what_to_do(
    arguments: tuple[str, ...], line: str, tmp_path: Path
) -> None:
    status, out, err = answer(*arguments)
    assert (status, out) == (2, ""), err
    assert err.startswith(f"numalign: {line}")
    assert err.endswith("\n")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_jobs_are_bounded_by_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    for jobs in ("-1", "0", "9"):
        said = f"numalign: --jobs is {jobs}; wanted a whole number from 1 to 8, 4 a core\n"
        assert answer("scan", "--jobs", jobs) == (2, "", said)


def test_what_a_shell_cannot_decode_is_written_out() -> None:
    status, _, err = answer("show", "\udcff")
    assert status == 2
    assert err.startswith("numalign: no run at \\udcff: ")


OPTIONS = (
    "--select --ignore --dtype --device --max-size --seed --timeout --threads --jobs --output-format --last --quiet -q"
)
VALUES = (
    "-x -- - --= = -1 0 nan float16 cpu sum NA101 json 1e9 --select= --output-format=json --no-quiet [bold]x[/] \udcff"
)
WORDS = st.one_of(st.sampled_from([*OPTIONS.split(), *VALUES.split(), "", " "]), st.text(max_size=6))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["scan", "list", "show", "explain"]), st.lists(WORDS, max_size=4))
def test_no_command_line_is_a_bug(command: str, words: list[str]) -> None:
    """Anything is either answered or refused in one line. ``scan`` is given no operator, so that it never runs."""
    guard = ["--select", "no-such-operator"] if command == "scan" else []
    status, out, err = answer(command, *guard, *words)
    assert status in (0, 2)
    if status == 2:
        assert out == ""
        assert err.startswith("numalign: ")
        assert err.count("\n") == 1
    else:
        assert command != "scan" or out.startswith("Usage")
