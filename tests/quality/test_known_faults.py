"""Public reports that a scan of stock PyTorch on the CPU must find without being told, and what it must leave alone."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from numalign.scan.fresh import FreshProcesses

# Report, case, direction, dtype and the code that the scan must give. Values seen are in the reports.
REPORTS = [
    ("pytorch#61523", "nll_loss/loss-one", "forward", "float16", "NA102"),
    ("pytorch#29429", "nll_loss2d/mean", "forward", "float16", "NA101"),
    ("pytorch#29429", "nll_loss2d/mean", "forward", "float16", "NA102"),
    ("pytorch#29429", "nll_loss2d/mean", "backward", "float16", "NA301"),
    ("pytorch#85791", "cross_entropy/sequence", "forward", "float16", "NA101"),
    ("pytorch#139242", "index_reduce/mean", "forward", "float16", "NA201"),
    ("pytorch#139242", "index_reduce/mean", "forward", "bfloat16", "NA201"),
    ("torch-xpu-ops#1751", "index_put/accumulate", "forward", "float16", "NA201"),
    ("torch-xpu-ops#1751", "index_put/accumulate", "forward", "bfloat16", "NA201"),
    ("mxnet#17703", "embedding/one-row", "backward", "float16", "NA201"),
    ("mxnet#17703", "embedding/one-row", "backward", "bfloat16", "NA201"),
    ("pytorch#124783", "scatter_add/one-destination", "forward", "float32", "NA201"),
    ("pytorch#124783", "index_add/one-destination", "forward", "float32", "NA201"),
    ("pytorch#193006", "linalg.norm/huge", "forward", "float32", "NA103"),
    ("pytorch#193006", "linalg.norm/huge", "backward", "float32", "NA301"),
    ("MIOpen#2344", "avg_pool2d/one-window", "backward", "float16", "NA301"),
    ("torch-xpu-ops#3765", "max_pool2d/overlapping", "backward", "float16", "NA201"),
    ("torch-xpu-ops#3765", "max_pool2d/overlapping", "backward", "bfloat16", "NA201"),
    ("llm.c#476", "layer_norm/rows", "backward", "float16", "NA201"),
    ("llm.c#476", "layer_norm/rows", "backward", "bfloat16", "NA201"),
    ("pytorch#158310", "log_softmax/zeros", "forward", "float16", "NA101"),
]

CLEAN = (
    "sum",
    "mean",
    "dot",
    "mm",
    "bmm",
    "conv1d",
    "batch_norm",
    "l1_loss",
    "conv2d",
)
CLEAN_BACKWARD = ("conv2d",)
"""Of these the report speaks of the backward; of the others, of the forward."""

FORMAT_LIMITS = ("sum/ones", "softplus/format-limit", "nll_loss2d/sum")


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("scan") / "run"
    cases = sorted({case for _, case, _, _, _ in REPORTS} | {*FORMAT_LIMITS})
    select = [option for name in (*cases, *CLEAN) for option in ("--select", name)]
    command = [
        sys.executable,
        "-m",
        "numalign",
        "scan",
        "-q",
        "--repaired",
        *select,
        "--out",
        str(folder),
        "--output-format",
        "json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    return folder, json.loads(done.stdout)


@pytest.mark.parametrize(("report", "case", "direction", "dtype", "code"), REPORTS)
def test_report_is_found(
    scanned: tuple[Path, dict[str, Any]], report: str, case: str, direction: str, dtype: str, code: str
) -> None:
    found = [
        finding["code"]
        for finding in scanned[1]["findings"]
        if (finding["case"], finding["direction"], finding["dtype"]) == (case, direction, dtype)
    ]
    assert code in found, f"{report}: {case}, {direction}, {dtype} gave {found}"


@pytest.mark.parametrize("operator", CLEAN)
def test_clean_operator_has_no_finding(scanned: tuple[Path, dict[str, Any]], operator: str) -> None:
    direction = "backward" if operator in CLEAN_BACKWARD else "forward"
    found = [
        (finding["case"], finding["dtype"], finding["code"])
        for finding in scanned[1]["findings"]
        if finding["operator"] == operator and finding["direction"] == direction
    ]
    assert not found
    assert not [gap for gap in scanned[1]["incomplete"] if gap["operator"] == operator]


@pytest.mark.parametrize("case", FORMAT_LIMITS)
def test_format_limit_is_no_finding(scanned: tuple[Path, dict[str, Any]], case: str) -> None:
    assert case not in {finding["case"] for finding in scanned[1]["findings"]}
    said = {(row["case"], row["code"]) for row in scanned[1]["information"]}
    assert (case, "NA901") in said


def test_the_founding_case_in_numbers(scanned: tuple[Path, dict[str, Any]]) -> None:
    """128 x 128 right, 181 x 181 inf, 256 x 256 nan with a gradient that is all zero; all right under repair()."""
    rows = {
        (row["n"], row["direction"]): row
        for row in scanned[1]["repaired"]
        if (row["case"], row["dtype"]) == ("nll_loss2d/mean", "float16")
    }
    stock = {n: rows[n, "forward"]["stock"]["output"] for n in (128**2, 181**2, 256**2)}
    assert stock[128**2]["error_ulp"] < 1.5
    assert stock[181**2]["observed"] == "inf"
    assert stock[256**2]["observed"] == "nan"
    zero = {n: all(g["all_zero"] for g in rows[n, "backward"]["stock"].values()) for n in (128**2, 181**2, 256**2)}
    assert zero == {128**2: False, 181**2: False, 256**2: True}
    for (n, direction), row in rows.items():
        for result in row["repaired"].values():
            assert not result["not_finite"], (n, direction)
            assert not result["all_zero"], (n, direction)
            assert result["error_ulp"] <= 0.51, (n, direction)


def test_the_smallest_failing_size_is_the_smallest(scanned: tuple[Path, dict[str, Any]]) -> None:
    by_code = {
        f["code"]: f for f in scanned[1]["findings"] if (f["case"], f["dtype"]) == ("nll_loss2d/mean", "float16")
    }
    # 65520 is the smallest integer that rounds to inf in float16; whole numbers above 2048 are stored rounded.
    assert by_code["NA102"]["first_failing_n"] == 65520
    assert by_code["NA301"]["first_failing_n"] == 65520
    assert all(f["first_failing_n"] - f["last_passing_n"] == 1 for f in by_code.values())


UNDER_REPAIR = """
import runpy
import numalign
numalign.repair()
runpy.run_path({path!r}, run_name="__main__")
"""


def test_reproducers_are_cured_by_repair(scanned: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Every one of an operator that is repaired, in a fresh process."""
    covered = [finding for finding in scanned[1]["findings"] if finding["right_under_repair"] is not None]
    assert {"nll_loss/loss-one", "nll_loss2d/mean", "cross_entropy/sequence"} <= {
        finding["case"] for finding in covered
    }
    script = tmp_path / "under_repair.py"
    processes = FreshProcesses()
    try:
        for finding in covered:
            assert finding["right_under_repair"]
            script.write_text(UNDER_REPAIR.format(path=finding["reproducer"]))
            ended = processes.run(script, 60)
            assert ended.output.splitlines()[-1] == "RESULT: not-reproduced", ended.output
            assert ended.status == 0
    finally:
        processes.close()


def test_reproducers_need_torch_alone(scanned: tuple[Path, dict[str, Any]]) -> None:
    """Each was confirmed by the scan in a process with torch and nothing else; one more time here, by a plain interpreter."""
    assert not scanned[1]["unconfirmed"]
    for finding in scanned[1]["findings"]:
        text = Path(finding["reproducer"]).read_text()
        imported = {
            alias.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import) for alias in node.names
        }
        assert imported == {"argparse", "importlib", "math", "sys", "torch", "torch.nn.functional"}
    path = next(Path(f["reproducer"]) for f in scanned[1]["findings"] if f["case"] == "nll_loss2d/mean")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, path.name], cwd=path.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip().splitlines()[-1] == "RESULT: confirmed"
    assert done.returncode == 1


def test_the_draft_of_the_founding_case_is_complete(scanned: tuple[Path, dict[str, Any]]) -> None:
    import yaml

    finding = next(f for f in scanned[1]["findings"] if f["case"] == "nll_loss2d/mean" and f["code"] == "NA301")
    text = Path(finding["draft"]).read_text()
    for part in (
        "aten::nll_loss2d_backward",
        "float16, cpu, shape (1, 21, 256, 256)",
        "| YES |",
        "RESULT: confirmed",
        "torch 2.",
    ):
        assert part in text, part
    block = text.partition("```symptoms\n")[2].partition("```")[0]
    symptoms = yaml.safe_load(block)
    zero = [symptom for symptom in symptoms if symptom["code"] == "NA301" and "float16" in symptom["name"]]
    assert zero
    done = subprocess.run(
        zero[0]["command"].replace("python", sys.executable, 1).split(),
        cwd=scanned[0],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
