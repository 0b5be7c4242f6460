"""The command line: exit codes, near matches, formats. Each command runs as a user runs it, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "numalign"]


def numalign(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    env = {**os.environ, **environment}
    return subprocess.run([*COMMAND, *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("cli") / "run"
    done = numalign(
        "scan", "-q", "--select", "index_add", "--dtype", "bfloat16", "--direction", "forward", "--out", str(folder)
    )
    return folder, done


def test_findings_exit_with_one_and_are_shown(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = run
    assert done.returncode == 1, done.stderr
    assert "index_add/one-destination" in done.stdout
    assert "NA201" in done.stdout
    assert f"numalign show {folder}" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("numalign explain NA201")
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_show_is_the_same_run_again(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = run
    again = numalign("show", str(folder))
    assert again.returncode == 1
    assert again.stdout.partition("\n\n")[2] == done.stdout.partition("\n\n")[2] != ""  # all but the headline


def test_json_is_one_object_with_the_promised_fields(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    shown = numalign("show", str(run[0]), "--output-format", "json")
    data = json.loads(shown.stdout)
    (finding, *_) = data["findings"]
    promised = (
        "code",
        "operator",
        "direction",
        "dtype",
        "device",
        "first_failing_n",
        "observed",
        "expected",
        "reproducer",
        "draft",
    )
    assert set(promised) <= finding.keys()
    assert Path(finding["reproducer"]).is_file()
    assert Path(finding["draft"]).is_file()
    lines = numalign("show", str(run[0]), "--output-format", "jsonl").stdout.splitlines()
    assert [json.loads(line) for line in lines] == data["findings"]


def test_show_imports_no_torch(run: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('torch was imported')\n")
    done = numalign("show", str(run[0]), PYTHONPATH=str(tmp_path))
    assert done.returncode == 1, done.stderr


def test_a_clean_scan_exits_with_zero(tmp_path: Path) -> None:
    done = numalign("scan", "-q", "--select", "dot", "--dtype", "float16", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 faults" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("scan", "--select", "nll_los2d"), "nll_loss2d"),
        (("scna",), "scan"),
    ],
)
def test_bad_input_is_one_line_and_exits_with_two(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    done = numalign(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert says in done.stderr
    assert not list(tmp_path.iterdir())


def test_nothing_selected_exits_with_five(tmp_path: Path) -> None:
    done = numalign("scan", "--select", "index_add", "--ignore", "index_*", cwd=tmp_path)
    assert done.returncode == 5
    assert not list(tmp_path.iterdir())


def test_resume_takes_no_other_plan(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    done = numalign("scan", "--resume", str(run[0]), "--dtype", "float16")
    assert done.returncode == 2
    assert "--dtype" in done.stderr


def test_resume_of_a_finished_run_runs_nothing(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    before = (run[0] / "store.sqlite").read_bytes()
    done = numalign("scan", "-q", "--resume", str(run[0]))
    assert done.returncode == 1
    assert (run[0] / "store.sqlite").read_bytes() == before


def test_out_does_not_overwrite_a_run(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    done = numalign("scan", "--select", "dot", "--out", str(run[0]))
    assert done.returncode == 2
    assert "holds a run already" in done.stderr


def test_every_code_is_explained() -> None:
    listed = json.loads(numalign("explain", "--output-format", "json").stdout)["codes"]
    assert len(listed) >= 20
    for entry in listed:
        assert all(entry[field] for field in ("cause", "consequence", "remedy", "example")), entry["code"]
    assert "gradient" in numalign("explain", "na301").stdout


def test_progress_goes_to_stderr_off_a_terminal(tmp_path: Path) -> None:
    done = numalign(
        "scan", "--select", "dot", "--dtype", "float16", "--out", str(tmp_path / "run"), "--output-format", "json"
    )
    json.loads(done.stdout)


def test_importing_the_package_loads_no_torch() -> None:
    code = "import numalign, sys; assert 'torch' not in sys.modules; print(numalign.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_reader_that_goes_away_is_no_finding() -> None:
    command = f"{sys.executable} -m numalign explain | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout.split()[-1] in ("0", "141")
    assert done.stderr == ""


IN_WORKERS = "import multiprocessing as mp\nprint('banner')\nif mp.parent_process() is not None:\n    "


@pytest.mark.parametrize(
    ("text", "code", "outcome"),
    [
        ("import sys; sys.exit(0)", 2, ""),
        ("1 / 0", 2, ""),
        (IN_WORKERS + "raise RuntimeError('no runtime')", 3, "raised"),
        (IN_WORKERS + "import os; os._exit(7)", 3, "crashed"),
        (IN_WORKERS + "import os; os._exit(0)", 3, "crashed"),
        (IN_WORKERS + "import sys; sys.exit()", 3, "crashed"),
        (IN_WORKERS + "import time; time.sleep(600)", 3, "timeout"),
    ],
)
def test_a_module_that_fails_to_import_costs_cells_and_not_the_scan(
    tmp_path: Path, text: str, code: int, outcome: str
) -> None:
    (tmp_path / "backend.py").write_text(text)
    limit = "4" if outcome == "timeout" else "60"
    options = f"-q --select dot --dtype float16 --max-size 16 --jobs 1 --timeout {limit} --output-format json".split()
    done = numalign("scan", "--import", "backend", *options, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == code, done.stdout + done.stderr
    if outcome:
        (gap,) = json.loads(done.stdout)["incomplete"]
        assert gap["outcome"] == outcome
    else:
        assert "--import backend failed" in done.stderr
