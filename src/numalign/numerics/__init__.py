"""Number formats, ulp, correct rounding, exact sums and error bounds: what a result is judged by.

A leaf: numpy and ml_dtypes only, no torch and nothing else of numalign. Values of every format travel as float64, which
holds all of them exactly. Nothing here has a threshold of its own; verdicts are drawn elsewhere.
"""

from numalign.numerics.bounds import (
    allowed_error,
    blocked,
    flushed,
    format_limit,
    gamma,
    gamma_probabilistic,
    growth_slope,
    pairwise,
    sequential,
    stagnation_length,
)
from numalign.numerics.formats import (
    BFLOAT16,
    FLOAT8_E4M3FN,
    FLOAT8_E5M2,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FORMATS,
    Format,
    accumulate,
    format_named,
)
from numalign.numerics.rounding import round_array, round_exact
from numalign.numerics.sums import exact_dot, exact_sum, rounded_sum
from numalign.numerics.ulp import error_in_ulp, ulp

__all__ = [
    "BFLOAT16",
    "FLOAT8_E4M3FN",
    "FLOAT8_E5M2",
    "FLOAT16",
    "FLOAT32",
    "FLOAT64",
    "FORMATS",
    "Format",
    "accumulate",
    "allowed_error",
    "blocked",
    "error_in_ulp",
    "exact_dot",
    "exact_sum",
    "flushed",
    "format_limit",
    "format_named",
    "gamma",
    "gamma_probabilistic",
    "growth_slope",
    "pairwise",
    "round_array",
    "round_exact",
    "rounded_sum",
    "sequential",
    "stagnation_length",
    "ulp",
]
