"""The reproducer: one file that needs torch and nothing else, and says by its last line and exit status whether the
fault is there."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence

from numalign.evidence.codes import CODES
from numalign.evidence.records import Case, Plan, Track

CONFIRMED = "RESULT: confirmed"
NOT_REPRODUCED = "RESULT: not-reproduced"

_TOO_FAR = '''\
def symptom(observed, exact, magnitude, n):
    """The error is more than float32 accumulation and one rounding allow, and than NOISE explains."""
    vanished = (observed == 0) & (exact.abs() > SMALLEST_SUBNORMAL / 2 + slack(magnitude, n))  # a symptom of its own
    fits = rounded(exact).isfinite() & observed.isfinite() & ~vanished
    error = (observed - exact).abs()[fits]
    allowed = (ulp(exact) / 2 + slack(magnitude, n))[fits]
    return bool(((error > allowed) & (error > NOISE * ulp(exact)[fits])).any())'''

_CHECKS = {
    "overflow": '''\
def symptom(observed, exact, magnitude, n):
    """The result is not finite although the right one, rounded to the dtype, is."""
    return bool((~observed.isfinite() & rounded(exact).isfinite()).any())''',
    "undefined": '''\
def symptom(observed, exact, magnitude, n):
    """The result is nan although the right one, rounded to the dtype, is finite."""
    return bool((observed.isnan() & rounded(exact).isfinite()).any())''',
    "zero": '''\
def symptom(observed, exact, magnitude, n):
    """All is zero although entries of the right result are not, even after rounding."""
    representable = exact.abs() > SMALLEST_SUBNORMAL / 2 + slack(magnitude, n)
    return bool(representable.any()) and not bool((observed[representable] != 0).any())''',
    "flushed": '''\
def symptom(observed, exact, magnitude, n):
    """Entries are zero although the right ones are not, even after rounding."""
    representable = exact.abs() > SMALLEST_SUBNORMAL / 2 + slack(magnitude, n)
    return bool((observed[representable] == 0).any())''',
    "precision": _TOO_FAR,
    "wrong": _TOO_FAR,  # with the NOISE that no rounding passes
    "misplaced": '''\
def symptom(observed, exact, magnitude, n):
    """Where the right result is inf, nan or too large for the dtype, this is not what it rounds to."""
    right = rounded(exact)
    same = (observed == right) | (observed.isnan() & right.isnan())
    return bool((~right.isfinite() & ~same).any())''',
}

_TEMPLATE = '''\
"""{title}

{story}

{how}

Needs torch and nothing else. Exit status: 0 the result is right, 1 the symptom shows, 2 it cannot be told.

    python {name}

runs the sizes below; --size {first} runs one, --device cuda another device, --import MODULE a backend of its own.
"""

import argparse
import importlib
import math
import sys

import torch
import torch.nn.functional as F  # noqa: F401

DTYPE = torch.{dtype}
SIGNIFICAND_BITS, SMALLEST_NORMAL_EXPONENT = {precision}, {emin}
SMALLEST_SUBNORMAL = 2.0 ** (SMALLEST_NORMAL_EXPONENT - SIGNIFICAND_BITS + 1)
NOISE = {noise!r}  # ulp that roundings between the input and the last one may explain
SIZES = {sizes}  # {unit}
FAILING = {failing}  # the smallest failing size, and one at which it shows whatever the order of additions


def make_inputs(n):
    """{why}

    Made in float64; floating tensors are then rounded to the dtype under test.
    """
    torch.manual_seed({seed})
    torch.set_default_dtype(torch.float64)
{inputs}
    torch.set_default_dtype(torch.float32)
    made = {{{made}}}
    return {{name: converted(value, DTYPE) for name, value in made.items()}}


def operator({names}):
    return {call}


def reference({names}):
    """Evaluated in float64 on the CPU, from the same values."""
    return {reference}


def terms({names}):
    """The sum of the absolute terms of every entry, which scales the error that accumulation may add."""
    return {magnitude}


{run}


{check}


def converted(value, dtype):
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def rounded(exact):
    """To nearest, ties to even, straight from float64; a cast may go through float32 and round twice."""
    spacing = ulp(exact)
    nearest = torch.where(exact.isfinite(), torch.round(exact / spacing) * spacing, exact)
    return torch.where(nearest.abs() > torch.finfo(DTYPE).max, nearest * math.inf, nearest)


def ulp(exact):
    exponent = torch.frexp(exact.abs()).exponent - 1
    exponent = torch.where(exact == 0, SMALLEST_NORMAL_EXPONENT, exponent).clamp(min=SMALLEST_NORMAL_EXPONENT)
    return torch.ldexp(torch.ones_like(exact), exponent - SIGNIFICAND_BITS + 1)


def slack(magnitude, n):
    """What n additions in {accumulate} may add to one rounding; a right sum breaks it once in {odds}.

    Higham and Mary, SIAM J. Sci. Comput. 41 (2019): gamma = exp(lambda sqrt(n) u + n u^2 / (1 - u)) - 1.
    """
    gamma = 0.0
    for u in (2.0**-{accumulate_bits}, 2.0**-53):  # the operator's accumulate type, and the reference's own float64
        lam = math.sqrt(2 * math.log(2 * n / {failure!r})) / (1 - u)
        worst = n * u / (1 - n * u) if n * u < 1 else math.inf
        gamma += min(worst, math.expm1(lam * math.sqrt(n) * u + n * u * u / (1 - u)))
    return gamma * torch.where(magnitude.isfinite(), magnitude.abs(), 0.0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int)
    parser.add_argument("--device", default="{device}")
    parser.add_argument("--import", dest="modules", action="append", default={imports!r})
    options = parser.parse_args()
    torch.set_num_threads({threads})
    for module in options.modules:
        importlib.import_module(module)
    shown = {{}}
    heads = ("{unit}", "observed", "float64", "rounded once", "error, ulp")
    print("{{:>12}}  {{:>14}}  {{:>14}}  {{:>14}}  {{:>10}}".format(*heads))
    for n in [options.size] if options.size is not None else SIZES:
        inputs = make_inputs(n)
        moved = {{k: v.to(options.device) if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}}
        wide = {{k: converted(v, torch.float64) for k, v in inputs.items()}}
        observed = [value.detach().cpu().double() for value in run(operator, moved)]
        exact = [value.detach().double() for value in run(reference, wide)]
        magnitude = [value.detach().double() for value in run(terms, wide)]
        shown[n] = any(symptom(o, e, m, n) for o, e, m in zip(observed, exact, magnitude))
        row(n, observed, exact)
    there = any(shown.get(n) for n in ([options.size] if options.size is not None else FAILING))
    print("{confirmed}" if there else "{not_reproduced}")
    return 1 if there else 0


def row(n, observed, exact):
    """One line for the worst entry: a non-finite one if there is any, else the one with the largest error in ulp."""
    observed, exact = (torch.cat([value.reshape(-1) for value in values]) for values in (observed, exact))
    fits = rounded(exact).isfinite()
    error = torch.where(fits, (observed - exact).abs() / ulp(torch.where(fits, exact, 1.0)), 0.0)
    worst = int(error.nan_to_num(nan=math.inf).argmax())
    values = [f"{{v:14.6g}}" for v in (observed[worst].item(), exact[worst].item(), rounded(exact)[worst].item())]
    zero = "  all zero" if bool((observed == 0).all()) else ""
    print(f"{{n:12d}}  {{'  '.join(values)}}  {{error[worst].item():10.4g}}{{zero}}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Exception as error:  # nothing can be told of an operator that does not run
        print(f"{{type(error).__name__}}: {{error}}", file=sys.stderr)
        print("RESULT: cannot-tell")
        sys.exit(2)
'''

_RUN_FORWARD = """\
def run(function, inputs):
    with torch.no_grad():
        result = function(**inputs)
    return [result] if isinstance(result, torch.Tensor) else list(result)"""

_RUN_BACKWARD = """\
def incoming(output, {names}):
    return {grad_output}


def run(function, inputs):
    leaves = {{name: inputs[name].detach().requires_grad_() for name in {grad!r}}}
    output = function(**{{**inputs, **leaves}})
    return torch.autograd.grad(output, list(leaves.values()), incoming(output.detach(), **inputs))"""


def reproducer_name(track: Track, code: str) -> str:
    """File name of the reproducer of ``code`` on ``track``."""
    case = track.case.replace("/", "-")
    device = "" if track.device == "cpu" else f"-{track.device.replace(':', '')}"
    return f"{case}-{track.direction}-{track.dtype}-{code}{device}.py"


def render(
    plan: Plan,
    track: Track,
    *,
    sign: str,
    code: str,
    sizes: Sequence[int],
    first: int,
    rung: int,
    noise: float,
    precision: int,
    emin: int,
    accumulate: tuple[str, int],
    failure: float,
) -> str:
    """The text of a reproducer.

    Args:
        plan: The plan, for seed, threads and imports.
        track: What failed.
        sign: The sign to check for.
        code: Its fault code.
        sizes: Sizes to print a row for.
        first: The smallest failing size.
        rung: The smallest failing size of the ladder. The symptom is there if it shows at either.
        noise: Ulp granted to intermediate roundings.
        precision: Significand bits of the dtype.
        emin: Exponent of its smallest normal number.
        accumulate: Name and significand bits of its accumulate type.
        failure: Probability that a right sum breaks the bound.
    """
    case = plan.case(track.case)
    made = _bound_names(case)
    backward = track.direction == "backward"
    names = ", ".join(made)
    return _TEMPLATE.format(
        title=f"{case.operator}, {track.direction}, {track.dtype}: {CODES[code].title} ({code}).",
        story=textwrap.fill(case.why, 110),
        how=textwrap.fill(CODES[code].cause, 110),
        why=case.why.partition(". ")[0].rstrip(".") + ".",
        name=reproducer_name(track, code),
        dtype=track.dtype,
        precision=precision,
        emin=emin,
        noise=noise,
        sizes=f"({', '.join(map(str, sizes))},)",
        unit=case.unit,
        first=first,
        failing=f"({', '.join(str(n) for n in sorted({first, rung}))},)",
        seed=plan.seed,
        inputs=textwrap.indent(textwrap.dedent(case.inputs).strip(), "    "),
        made=", ".join(f'"{name}": {name}' for name in made),
        names=names,
        call=case.call,
        reference=case.reference or case.call,
        magnitude=case.magnitude or case.reference or case.call,
        run=_RUN_BACKWARD.format(names=names, grad_output=case.grad_output, grad=list(case.grad))
        if backward
        else _RUN_FORWARD,
        check=_CHECKS[sign],
        accumulate=accumulate[0],
        accumulate_bits=accumulate[1],
        odds=f"{1 / failure:.0e}",
        failure=failure,
        device=track.device,
        imports=list(plan.imports),
        threads=plan.threads,
        confirmed=CONFIRMED,
        not_reproduced=NOT_REPRODUCED,
    )


def _bound_names(case: Case) -> list[str]:
    """Names that the inputs bind, in order, and the size where an expression asks for it."""
    tree = ast.parse(textwrap.dedent(case.inputs))
    bound = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    expressions = (case.call, case.reference, case.magnitude, case.grad_output)
    used = {node.id for text in expressions if text for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    return sorted({*bound, *({"n"} & used)}, key=[*bound, "n"].index)
