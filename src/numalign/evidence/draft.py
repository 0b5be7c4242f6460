"""The issue draft: what a maintainer needs to believe a finding and to check a patch, as Markdown with a block of
symptoms."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from numalign.evidence.codes import CODES
from numalign.evidence.records import Case, Finding, Observation, Outcome, Plan, Result, TensorFacts, Track


def draft_name(track: Track) -> str:
    """File name of the draft that ``track`` belongs to: one an operator and device."""
    device = "" if track.device == "cpu" else f"-{track.device.replace(':', '')}"
    return f"{track.operator}{device}.md"


def render_draft(plan: Plan, findings: Sequence[Finding], observations: Iterable[Observation]) -> str:
    """The Markdown of one draft.

    Args:
        plan: The plan of the run.
        findings: Confirmed findings of one operator on one device, at least one.
        observations: All observations of the run; those of other operators are passed over.
    """
    seen = list(observations)
    return "\n".join(_lines(plan, findings, seen)).rstrip() + "\n"


def _lines(plan: Plan, findings: Sequence[Finding], seen: Sequence[Observation]) -> Iterator[str]:
    track = findings[0].track
    dtypes = ", ".join(sorted({finding.track.dtype for finding in findings}))
    faults = "; ".join(dict.fromkeys(finding.summary for finding in findings))
    yield f"# {track.operator} on {track.device}: {faults} ({dtypes})"
    yield ""
    yield from _overview(findings)
    for case in dict.fromkeys(finding.track.case for finding in findings):
        own = [finding for finding in findings if finding.track.case == case]
        yield from _case_section(plan.case(case), own, [o for o in seen if o.cell.case == case])
    yield "## Causes"
    yield ""
    for code in dict.fromkeys(finding.code for finding in findings):
        entry = CODES[code]
        yield f"- **{code}, {entry.title}.** {entry.cause} {entry.consequence} {entry.remedy}"
    yield ""
    yield "## Reproducers"
    yield ""
    yield "Each needs torch and nothing else, and was run in a fresh process. Its exit status is 0 when the result is"
    yield "right, 1 when the symptom shows, 2 when it cannot be told."
    yield ""
    for finding in findings:
        yield f"`python {finding.reproducer}`"
        yield ""
        yield "```text"
        yield finding.reproducer_output
        yield "```"
        yield ""
    yield "## Symptoms"
    yield ""
    yield "Run from the folder that holds `reproducers/`."
    yield ""
    yield from _symptoms(findings)
    yield "## Environment"
    yield ""
    environment = plan.environment
    yield f"- torch {environment.torch}, Python {environment.python}, {environment.platform}"
    yield f"- {environment.processor}, {environment.cores} cores, {environment.threads} threads"
    for device in environment.devices:
        yield f"- {device}"
    yield f"- numalign {environment.numalign}, seed {plan.seed}"


def _overview(findings: Sequence[Finding]) -> Iterator[str]:
    yield "| case | code | direction | dtype | fails from | observed | expected, rounded once | under repair() |"
    yield "|---|---|---|---|---:|---:|---:|---|"
    for finding in findings:
        cured = {True: "right", False: "still wrong", None: "not repaired"}[finding.repaired]
        track = finding.track
        yield (
            f"| {track.case} | {finding.code} {finding.summary} | {track.direction} | {track.dtype} "
            f"| n = {finding.first_failing_n} "
            f"| {_number(finding.observed)} | {_number(finding.expected)} | {cured} |"
        )
    yield ""


def _case_section(case: Case, findings: Sequence[Finding], seen: Sequence[Observation]) -> Iterator[str]:
    yield f"## {case.id}"
    yield ""
    yield case.why
    yield ""
    yield "```python"
    yield f"n = ...  # {case.unit}"
    yield from textwrap.dedent(case.inputs).strip().splitlines()
    yield case.call
    yield "```"
    yield ""
    for track in dict.fromkeys(finding.track for finding in findings):
        brackets = {n for f in findings if f.track == track for n in (f.first_failing_n, f.last_passing_n)}
        shown = brackets | set(case.ladder(track.dtype))
        yield from _track_section(case, track, [o for o in seen if o.cell.track == track and o.cell.n in shown])


def _track_section(case: Case, track: Track, seen: Sequence[Observation]) -> Iterator[str]:
    """The ladder and the sizes on either side of each first failure; what bisection tried between is left out."""
    yield f"### {track.direction}, {track.dtype}"
    yield ""
    heads = (
        "arm",
        "tensor",
        "device result",
        "fp64 reference",
        "correctly rounded",
        "error in ulp",
        "gradient all zero",
    )
    yield f"| {case.unit} | {' | '.join(heads)} |"
    yield "|---:|---|---|---:|---:|---:|---:|---|"
    for observation in sorted(seen, key=lambda o: (o.cell.n, o.cell.arm == "repaired")):
        for result in observation.results:
            yield _row(observation, result)
        if observation.outcome is not Outcome.RAN:
            died = f"{observation.outcome.value}: {observation.detail}"
            yield f"| {observation.cell.n} | {observation.cell.arm} | {died} | | | | | |"
    yield ""
    yield from _proof(seen)


def _row(observation: Observation, result: Result) -> str:
    wrong = result.infinite + result.nan
    error = f"{wrong} of {result.entries} not finite" if wrong else f"{result.error_ulp:.3g}"
    zero = "-" if observation.cell.direction == "forward" else "YES" if result.all_zero else "no"
    values = " | ".join(_number(value) for value in (result.observed, result.expected, result.rounded))
    return f"| {observation.cell.n} | {observation.cell.arm} | {result.tensor.name} | {values} | {error} | {zero} |"


def _proof(seen: Sequence[Observation]) -> Iterator[str]:
    """Where the operator ran, from the largest stock cell that ran."""
    ran = [o for o in seen if o.outcome is Outcome.RAN and o.cell.arm == "stock"]
    if not ran:
        return
    observation = max(ran, key=lambda o: o.cell.n)
    yield f"Proof that it ran there, at n = {observation.cell.n}:"
    yield ""
    for tensor in observation.inputs:
        yield f"- input {_where(tensor)}"
    for tensor in (*observation.between, *(result.tensor for result in observation.results)):
        yield f"- {_where(tensor)}"
    yield f"- operators seen by the dispatcher: {', '.join(f'`{name}`' for name in observation.operators)}"
    yield f"- what they returned: {', '.join(observation.returned)}"
    yield ""


def _where(tensor: TensorFacts) -> str:
    return f"`{tensor.name}`: {tensor.dtype}, {tensor.device}, shape {tuple(tensor.shape)}"


def _symptoms(findings: Sequence[Finding]) -> Iterator[str]:
    """YAML; every string is a JSON string, which YAML reads as it is."""
    yield "```symptoms"
    for finding in findings:
        track = finding.track
        name = f"{track.dtype} {track.direction}: {finding.summary} at n = {finding.rung}"
        yield f"- name: {json.dumps(name)}"
        yield f"  command: {json.dumps(f'python {finding.reproducer} --size {finding.rung}')}"
        yield f"  code: {finding.code}"
    yield "```"
    yield ""


def _number(text: str) -> str:
    return f"{float(text):.6g}"
