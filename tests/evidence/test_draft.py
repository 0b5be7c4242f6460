"""The draft's proof of where an operator ran: devices and dtypes of all that flowed in and came out, scalars too."""

from __future__ import annotations

import msgspec

from numalign.evidence.draft import render_draft
from numalign.evidence.records import Finding, Observation, TensorFacts, Track
from records import observation, plan_of, ramp


def finding(track: Track) -> Finding:
    return Finding(
        id="ramp",
        code="NA101",
        track=track,
        first_failing_n=64,
        last_passing_n=16,
        rung=64,
        observed="inf",
        expected="1.0",
        error_ulp=None,
        summary="overflow in the sum",
        reproducer="reproducers/ramp.py",
        reproducer_output="RESULT: confirmed",
        confirmed=True,
        draft="drafts/ramp.md",
    )


def scalar(name: str, dtype: str = "float16") -> TensorFacts:
    return TensorFacts(name=name, dtype=dtype, device="xpu:0", shape=())


def proof(draft: str, direction: str) -> list[str]:
    section = draft.partition(f"### {direction}, float16")[2]
    lines = section.partition("Proof that it ran there, at n = 64:\n\n")[2].partition("\n\n")[0]
    return lines.splitlines()


def test_the_proof_states_device_and_dtype_of_scalars() -> None:
    plan = plan_of(ramp(grad=("x",)))
    forward, backward = plan.tracks

    def at_64(track: Track, result: str, **changes: object) -> Observation:
        seen = observation(track.cell(64), operators=("aten::sum",))
        (only,) = seen.results
        return msgspec.structs.replace(
            seen, results=(msgspec.structs.replace(only, tensor=scalar(result)),), inputs=(scalar("x"),), **changes
        )

    seen = [
        at_64(forward, "output", returned=("float16 on xpu:0", "float64 on cpu (constant)")),
        at_64(
            backward,
            "gradient of x",
            between=(scalar("output"), scalar("gradient of output", "float32")),
            returned=("float16 on xpu:0",),
        ),
    ]
    draft = render_draft(plan, [finding(forward), finding(backward)], seen)
    assert proof(draft, "forward") == [
        "- input `x`: float16, xpu:0, shape ()",
        "- `output`: float16, xpu:0, shape ()",
        "- operators seen by the dispatcher: `aten::sum`",
        "- what they returned: float16 on xpu:0, float64 on cpu (constant)",
    ]
    assert proof(draft, "backward") == [
        "- input `x`: float16, xpu:0, shape ()",
        "- `output`: float16, xpu:0, shape ()",
        "- `gradient of output`: float32, xpu:0, shape ()",
        "- `gradient of x`: float16, xpu:0, shape ()",
        "- operators seen by the dispatcher: `aten::sum`",
        "- what they returned: float16 on xpu:0",
    ]
