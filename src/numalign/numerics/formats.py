"""The floating-point formats that tensors are stored in: precision, range, and the format they accumulate in.

Sources: IEEE 754-2019, section 3, for float16, float32 and float64; the OCP 8-bit Floating Point Specification (OFP8)
and Micikevicius et al., "FP8 formats for deep learning", arXiv:2209.05433, for the 8-bit formats. bfloat16 is the upper
half of float32.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Format:
    """A binary floating-point format with subnormals, rounded to nearest with ties to even.

    A finite value is m * 2^(e - precision + 1) with integers |m| < 2^precision and emin <= e <= emax.

    Attributes:
        name: The name PyTorch gives it, such as ``"float16"``.
        precision: Significand bits p, the hidden one included.
        emin: Exponent of the smallest normal number, 2^emin.
        emax: Exponent of the largest finite numbers.
        max_finite: The largest finite number.
        has_inf: Whether there is an infinity. Without one, what overflows becomes nan.
        dtype: The numpy dtype of this format.
    """

    name: str
    precision: int
    emin: int
    emax: int
    max_finite: float
    has_inf: bool
    dtype: np.dtype[Any]

    @property
    def unit_roundoff(self) -> float:
        """u = 2^-p, the largest relative error of one rounding to a normal number."""
        return math.ldexp(1.0, -self.precision)

    @property
    def smallest_normal(self) -> float:
        """2^emin."""
        return math.ldexp(1.0, self.emin)

    @property
    def smallest_subnormal(self) -> float:
        """2^(emin - p + 1), which is also the distance between neighbours everywhere below 2^(emin + 1)."""
        return math.ldexp(1.0, self.emin - self.precision + 1)

    @property
    def exact_overflow(self) -> int:
        """Where overflow begins, exactly: half an ulp of the top binade above ``max_finite``."""
        return int(self.max_finite) + (1 << (self.emax - self.precision))

    @property
    def overflow(self) -> float:
        """``exact_overflow`` as a float: 65520 for float16. For float64 it is inf: no finite float64 overflows it."""
        try:
            return float(self.exact_overflow)
        except OverflowError:
            return math.inf

    @property
    def overflow_is_even(self) -> bool:
        """Whether a value exactly at ``overflow`` stays finite, because ``max_finite`` has the even significand.

        So it is in float8_e4m3fn, whose all-ones significand means nan: 464 rounds to 448. In the IEEE formats the
        largest significand is odd, and ``overflow`` itself overflows.
        """
        return int(self.max_finite) >> (self.emax - self.precision + 1) & 1 == 0

    @property
    def overflowed(self) -> float:
        """What a positive value past ``overflow`` becomes: inf, or nan where there is no infinity."""
        return math.inf if self.has_inf else math.nan

    def overflows(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """Whether each value, taken as exact, rounds past ``max_finite``. Infinities do, nan does not. Exact.

        Args:
            values: Any shape.
        """
        magnitudes = np.abs(values)
        past = magnitudes > self.overflow if self.overflow_is_even else magnitudes >= self.overflow
        return np.asarray(past, dtype=np.bool_)


FLOAT64 = Format("float64", 53, -1022, 1023, 2.0**1023 * (2 - 2.0**-52), True, np.dtype(np.float64))
FLOAT32 = Format("float32", 24, -126, 127, 2.0**127 * (2 - 2.0**-23), True, np.dtype(np.float32))
FLOAT16 = Format("float16", 11, -14, 15, 65504.0, True, np.dtype(np.float16))
BFLOAT16 = Format("bfloat16", 8, -126, 127, 2.0**127 * (2 - 2.0**-7), True, np.dtype(ml_dtypes.bfloat16))
FLOAT8_E4M3FN = Format("float8_e4m3fn", 4, -6, 8, 448.0, False, np.dtype(ml_dtypes.float8_e4m3fn))
FLOAT8_E5M2 = Format("float8_e5m2", 3, -14, 15, 57344.0, True, np.dtype(ml_dtypes.float8_e5m2))

FORMATS: Mapping[str, Format] = MappingProxyType(
    {fmt.name: fmt for fmt in (FLOAT64, FLOAT32, FLOAT16, BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2)}
)
"""Every format by its name, the widest first."""


def format_named(name: str) -> Format:
    """The format that PyTorch calls ``name``, without the ``torch.`` in front.

    Raises:
        ValueError: If there is none. The message has the nearest names.
    """
    if name in FORMATS:
        return FORMATS[name]
    near = difflib.get_close_matches(name, FORMATS, n=3) or list(FORMATS)
    raise ValueError(f"no floating-point format is named {name!r}; nearest: {', '.join(near)}")


def accumulate(fmt: Format) -> Format:
    """The format that sums of ``fmt`` are to be accumulated in: float64 for float64, float32 for everything narrower.

    This is PyTorch's own choice on accelerators (``at::acc_type``). On the CPU, PyTorch also accumulates some float32
    sums in float64; that is more than is asked for here.
    """
    return FLOAT64 if fmt.precision > FLOAT32.precision else FLOAT32
