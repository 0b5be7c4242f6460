"""The benchmark runs, keeps what it finds, and counts right. Its numbers are not looked at."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import accuracy
import losses
import speed
import timing
from ops import loss_reference
from parts import Column, Part, Settings, number

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("results") / "new" / "cpu.json"
    command = [sys.executable, "benchmarks/losses.py", "--quick", "--scale", "1e-5", "--threads", "1"]
    command += ["--only", "cpu,spatial,memory,facts", "--peers", "numalign,eager,quack", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ours/floor" in done.stdout
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_a_run_says_what_it_ran_on(result: dict[str, Any]) -> None:
    assert result["schema"] == losses.SCHEMA
    assert result["command"].startswith("python benchmarks/losses.py --quick --scale 1e-5")
    assert result["machine"]["torch"] == torch.__version__
    assert set(result["machine"]) >= {"date", "python", "triton", "numalign", "peers", "processor", "threads"}
    assert result["copy_bytes_per_second"] > 0


def test_a_run_keeps_times_and_errors(result: dict[str, Any]) -> None:
    parts = result["parts"]
    assert len(parts["cpu"]) == 9
    assert all(record["grad_ulp"]["numalign"] <= 0.51 for record in parts["cpu"])
    assert [record["dtype"] for record in parts["spatial"]] == ["float16"] * len(speed.SPATIAL)
    for record in parts["spatial"]:
        ours, eager = record["times"]["numalign"], record["times"]["eager"]
        assert ours["least_ms"] <= ours["ms"] <= ours["most_ms"]
        assert ours["over_floor"] == pytest.approx(ours["ms"] / record["floor_ms"])
        assert eager["over_ours"] == pytest.approx(eager["ms"] / ours["ms"])
        assert ours["iterations"] % record["copies"] == 0
    assert all(record["results"]["numalign"]["grad_off"] == 0 for record in parts["facts"])


def test_a_part_that_fails_does_not_stop_the_others(result: dict[str, Any]) -> None:
    assert result["parts"]["memory"] == []
    assert result["failed"].keys() == {"memory"}
    assert result["seconds"].keys() == {"cpu", "spatial", "memory", "facts"}


def test_what_came_before_a_failure_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def records(_: Settings) -> Iterator[dict[str, Any]]:
        yield {"value": float("nan")}
        raise ValueError("too large\nand more")

    monkeypatch.setitem(losses.PARTS, "cpu", Part("", (Column("value", 6, lambda r: number(r["value"])),), records))
    result: dict[str, Any] = {"parts": {}, "failed": {}, "seconds": {}}
    losses.run("cpu", Settings(CPU, 1e9), result, tmp_path / "out.json")
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["parts"] == {"cpu": [{"value": "nan"}]}
    assert written["failed"] == {"cpu": "ValueError: too large"}


def test_a_step_that_fails_does_not_stop_the_others() -> None:
    def fails(_: int) -> None:
        raise MemoryError("none left")

    steps: dict[str, timing.Step | str] = {"fails": fails, "absent": "not installed", "works": lambda _: None}
    found = timing.interleaved(steps, CPU, multiple=3, floor_ms=1.0, rounds=2)
    assert list(found) == list(steps)
    assert found["fails"] == {"error": "MemoryError: none left"}
    assert found["absent"] == {"error": "not installed"}
    assert found["works"]["how"] == "clock"
    assert found["works"]["iterations"] % 3 == 0


def test_floor() -> None:
    # 6 pixels of 5 classes: 30 logits read and 30 entries written, 2 bytes each, and 6 targets of 8.
    assert speed.floor_bytes((1, 5, 2, 3), torch.float16) == 2 * 30 * 2 + 6 * 8


def test_copies_overflow_the_cache_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "cache_bytes", lambda _: 1000)
    small, large = (speed.Inputs((1, 5, n), torch.float16, Settings(CPU, 1e9)) for n in (30, 3000))
    assert (len(small.pairs), small.fits_cache) == (7, False)
    assert (len(large.pairs), large.fits_cache) == (1, False)
    assert speed.Inputs((1, 5, 2), torch.float16, Settings(CPU, 1e9)).fits_cache


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_reference_by_chunks_is_the_reference(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    monkeypatch.setattr(accuracy, "CHUNK", 7)
    torch.manual_seed(0)
    logits, target = (4 * torch.randn(5, 30)).to(dtype), torch.randint(5, (30,))
    exact = loss_reference.cross_entropy(logits.unsqueeze(0), target.unsqueeze(0), incoming=64.0)
    torch.testing.assert_close(accuracy.exact_loss(logits, target), exact.loss, rtol=1e-14, atol=0)
    rounded = exact.grad.squeeze(0).to(dtype)
    found = accuracy.gradient_errors(rounded, logits, target, 64.0)
    assert found.ulps <= 0.5
    assert (found.off, found.state) == (0, "ok")

    # One entry next to the right one, one further away, one of the wrong sign.
    bits = rounded.clone().view(torch.int16)
    bits[0, 3] += 1
    bits[4, 29] += 2
    wrong = bits.view(dtype)
    wrong[2, 5] *= -1
    found = accuracy.gradient_errors(wrong, logits, target, 64.0)
    assert found.ulps > 2
    assert found.off == 2

    assert accuracy.gradient_errors(torch.zeros_like(rounded), logits, target, 64.0).state == "all zero"
    rounded[1, 1] = float("nan")
    found = accuracy.gradient_errors(rounded, logits, target, 64.0)
    assert (found.state, found.ulps, found.off) == ("not finite", float("inf"), 1)


def test_numbers_stand_in_line() -> None:
    part = Part(
        "", (Column("name", 6, lambda r: r["name"]), Column("ms", 9, lambda r: number(r["ms"], 1))), lambda _: iter(())
    )
    lines = [
        part.line({"name": "a", "ms": 1234.56}),
        part.line({"name": "bcd", "ms": None}),
        part.heading().splitlines()[-1],
    ]
    assert lines == ["a         1 234.6", "bcd             -", "name           ms"]


def test_plot(result: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    import plot

    record = result["parts"]["spatial"][0]
    timed = {"ms": 1.0, "how": "events", "over_floor": 2.0, "ns_per_logit": 0.5}
    point = record | {"times": {"numalign": timed, "eager": timed, "liger": {"error": "not installed"}}}
    full = result | {"parts": {name: [point, point] for name in ("spatial", "rows", "pixels", "classes")}}
    for name, drawn in (("all.svg", full), ("some.png", result)):
        plot.draw(drawn, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 10_000
    assert "liger" not in (tmp_path / "all.svg").read_text()
    with pytest.raises(SystemExit, match="Nothing to draw"):
        plot.draw(result | {"parts": {}}, tmp_path / "none.svg")
