"""How much error summation may have, how it grows, and where a format itself is the limit.

For a sum of x_i in any order, accumulated in a format of unit roundoff u and rounded once at the end:
|y - s| <= (rounding of the result) + gamma_h(u) sum|x_i|, where h is the number of additions on the longest path from a
term to the result. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed. (2002), lemma 3.1 and section 4.2.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from numalign.numerics.float64_values import float64_values
from numalign.numerics.formats import Format

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def sequential(n: int) -> int:
    """Additions on the longest path when ``n`` terms are added one after the other: n - 1."""
    return _count(n, "n", least=0) - 1 if n else 0


def pairwise(n: int) -> int:
    """Additions on the longest path when ``n`` terms are added in a balanced tree: ceil(log2 n)."""
    return (_count(n, "n", least=0) - 1).bit_length() if n else 0


def blocked(n: int, b: int) -> int:
    """Additions on the longest path when blocks of ``b`` terms are added one after the other, then the blocks' sums.

    min(b, n) - 1 + ceil(n / b) - 1. Blanchard, Higham and Mary, "A class of fast and accurate summation algorithms",
    SIAM J. Sci. Comput. 42 (2020), A1541-A1557.

    Raises:
        ValueError: If ``n`` is negative or ``b`` is not positive.
    """
    _count(b, "b", least=1)
    return sequential(min(b, n)) + sequential(-(-n // b))


def gamma(h: int, u: float) -> float:
    """gamma_h = h u / (1 - h u), which bounds the relative effect of ``h`` roundings; inf from h u = 1 on.

    The bound says nothing once h u >= 1: a bfloat16 accumulator reaches that at 256 additions, where it also stands
    still. inf keeps comparisons right: every finite error is within it. Evaluated in float64: relative error below
    2^-51 while h u <= 1/2.

    Higham (2002), lemma 3.1.

    Args:
        h: Additions on the longest path.
        u: Unit roundoff of the accumulator.

    Raises:
        ValueError: If ``h`` is negative or ``u`` is not in (0, 1).
    """
    _roundings(h, u)
    return h * u / (1 - h * u) if h * u < 1 else math.inf


def gamma_probabilistic(h: int, u: float, failure: float, terms: int | None = None) -> float:
    """What takes the place of gamma_h if rounding errors are independent with mean zero: it grows with sqrt(h).

    exp(lambda sqrt(h) u + h u^2 / (1 - u)) - 1, with lambda = sqrt(2 ln(2 terms / failure)) / (1 - u).

    Higham and Mary, "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41 (2019),
    A2815-A2835: one product of ``h`` factors 1 + delta stays within it except with probability
    2 exp(-lambda^2 (1 - u)^2 / 2) (theorem 2.4), and a sum is a set of such products, each of which may fail (theorem
    3.1). Adding n terms one after the other makes h = n - 1 different products; a tree makes up to n.

    It is no bound on sums whose roundings are not random. Equal terms all round the same way, and an accumulator that
    stands still rounds down every time. For few roundings it can exceed ``gamma``, which always holds.

    Args:
        h: Additions on the longest path.
        u: Unit roundoff of the accumulator.
        failure: Probability, in (0, 1), that the sum breaks the bound.
        terms: Number of products that have to hold: the number of terms, unless the sum is sequential. ``h`` if not
            given.

    Returns:
        A factor of sum|x_i|; inf where it exceeds float64. 0 for no additions. Relative error below 2^-48.

    Raises:
        ValueError: If ``h`` is negative, ``u`` or ``failure`` is not in (0, 1), or ``terms`` is not positive.
    """
    _roundings(h, u)
    if not 0 < failure < 1:
        raise ValueError(f"failure is {failure}; wanted a probability between 0 and 1")
    products = _count(h, "h", least=0) if terms is None else _count(terms, "terms", least=1)
    if h == 0:
        return 0.0
    # A sum of logarithms, because 2 terms / failure can exceed float64.
    factor = math.sqrt(2 * (math.log(2 * products) - math.log(failure))) / (1 - u)
    try:
        return math.expm1(factor * math.sqrt(h) * u + h * u * u / (1 - u))
    except OverflowError:
        return math.inf


def allowed_error(
    reference: npt.ArrayLike, magnitude: npt.ArrayLike, h: int, out_fmt: Format, acc_fmt: Format
) -> Array:
    """The largest |y - s| of a sum accumulated in ``acc_fmt`` and rounded once to ``out_fmt``.

    max(u_out |s|, eta / 2) + (1 + u_out) gamma_h(u_acc) sum|x_i|, with eta the smallest subnormal of ``out_fmt``. The
    rounding acts on the accumulated value, not on s: hence the factor 1 + u_out. Additions have no error of their own
    among subnormals. The bound holds in any order of addition, for terms that ``acc_fmt`` holds exactly, while nothing
    overflows: ask ``format_limit`` first.

    Args:
        reference: s, any shape.
        magnitude: sum|x_i| of every entry. Shapes broadcast.
        h: Additions on the longest path: ``sequential``, ``pairwise`` or ``blocked``.
        out_fmt: The format of the result.
        acc_fmt: The format of the accumulator. If it is ``out_fmt``, a last rounding is counted although there is none.

    Returns:
        Array of the broadcast shape. inf where gamma is and the magnitude is not 0; nan beside nan. Evaluated in
        float64: relative error below 2^-49 while h u <= 1/2.

    Raises:
        TypeError: If an argument is not real.
        ValueError: If a magnitude or ``h`` is negative, or the shapes do not broadcast.
    """
    exact, total = np.broadcast_arrays(float64_values(reference, "reference"), float64_values(magnitude, "magnitude"))
    if (total < 0).any():
        raise ValueError(f"magnitude has the entry {total.min()}; wanted sums of absolute values")
    factor = (1 + out_fmt.unit_roundoff) * gamma(h, acc_fmt.unit_roundoff)
    with np.errstate(all="ignore"):
        accumulated = np.where(total == 0, 0.0, factor * total)
        last = np.maximum(out_fmt.unit_roundoff * np.abs(exact), out_fmt.smallest_subnormal / 2)
        return np.asarray(last + accumulated, dtype=np.float64)


def stagnation_length(fmt: Format) -> int:
    """2^p: counting up by ones in ``fmt`` stops here, since 2^p + 1 rounds to 2^p. 256 in bfloat16, 2048 in float16."""
    return 1 << fmt.precision


def flushed(observed: npt.ArrayLike, exact: npt.ArrayLike, fmt: Format) -> Mask:
    """Where the result is zero although the exact value rounds to something else: |exact| > smallest subnormal / 2.

    Args:
        observed: Values of ``fmt``, any shape.
        exact: The reference, taken as exact. Shapes broadcast. nan is never flushed.
        fmt: The format of ``observed``.

    Raises:
        TypeError: If an argument is not real.
        ValueError: If float64 cannot hold one of the values, or the shapes do not broadcast.
    """
    got, wanted = np.broadcast_arrays(float64_values(observed, "observed"), float64_values(exact, "exact"))
    # Half of float64's smallest subnormal rounds to 0 here, which is right: every other float64 is above that half.
    return np.asarray((got == 0) & (np.abs(wanted) > fmt.smallest_subnormal / 2), dtype=np.bool_)


def format_limit(exact: npt.ArrayLike, fmt: Format) -> Mask:
    """Where the right answer itself does not fit ``fmt``: it rounds past the largest finite number.

    An infinite reference counts, be it the answer or float64's own overflow: no finite result could be right. nan does
    not.

    Args:
        exact: The reference, any shape.
        fmt: The format of the result.

    Raises:
        TypeError: If the values are not real.
        ValueError: If float64 cannot hold one of them.
    """
    return fmt.overflows(float64_values(exact, "exact"))


def growth_slope(ns: npt.ArrayLike, errors: npt.ArrayLike) -> float:
    """The exponent k of errors ~ n^k, by least squares of log(error) against log(n).

    About 0 for a few roundings whatever the size, 0.5 for random roundings one after the other, 1 for roundings that
    all go one way or for an accumulator that stands still.

    Args:
        ns: Sizes, 1-D.
        errors: The error at each size, the same shape, in any one unit. Those that are zero or not finite have no
            logarithm and are left out.

    Returns:
        The slope; nan if fewer than two sizes are left.

    Raises:
        TypeError: If an argument is not real.
        ValueError: If the shapes differ or are not 1-D, a size is not positive, or an error is negative.
    """
    sizes, values = float64_values(ns, "ns"), float64_values(errors, "errors")
    if sizes.shape != values.shape or sizes.ndim != 1:
        raise ValueError(f"ns has shape {sizes.shape}, errors has shape {values.shape}; wanted one 1-D shape")
    if not (sizes > 0).all() or (values < 0).any():
        raise ValueError("wanted positive sizes and errors that are not negative")
    kept = np.isfinite(values) & (values > 0)
    if np.unique(sizes[kept]).size < 2:
        return math.nan
    x, y = np.log(sizes[kept]), np.log(values[kept])
    x, y = x - x.mean(), y - y.mean()
    return float(x @ y / (x @ x))


def _count(value: int, name: str, least: int) -> int:
    if value < least:
        raise ValueError(f"{name} is {value}; wanted an integer of at least {least}")
    return value


def _roundings(h: int, u: float) -> None:
    _count(h, "h", least=0)
    if not 0 < u < 1:
        raise ValueError(f"u is {u}; wanted a unit roundoff between 0 and 1")
