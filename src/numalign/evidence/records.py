"""The records of a run: frozen, versioned, plain data.

A run is self-contained: the plan carries its cases as source text, so that a stored run can be shown, judged again or
turned into reproducers on a machine that has neither torch nor this version's catalogue.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Literal

import msgspec

Direction = Literal["forward", "backward"]
Arm = Literal["stock", "repaired"]
Stress = Literal["sum", "square", "exponential", "divisor"]

SCHEMA_VERSION = 2
"""Raised by every change to the records below that an older reader would misunderstand."""


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all records: immutable, keyword-only, strict about unknown fields."""


class Case(Record, frozen=True, kw_only=True):
    """An operator and how to make its inputs for a size. Holds no tensors: source text that rebuilds them.

    The text is what the worker runs and what the reproducer prints, so the two cannot differ. It sees ``torch``, ``F``,
    ``math`` and the size ``n``; floating tensors are made in float64 and then rounded to the dtype under test.

    Attributes:
        operator: The operator under test, as users call it: ``nll_loss2d``.
        name: Tells the cases of one operator apart; the case's id is ``operator/name``.
        family: The catalogue file that holds it.
        why: One sentence: what the inputs are made to show.
        inputs: Statements that bind the input tensors, and any plain values ``call`` needs.
        call: An expression in those names: the operator under test.
        reference: An expression in the same names whose float64 value is the right answer. Empty: ``call`` in float64.
        magnitude: An expression for sum |x_i| of each output, float64. Empty: |reference|, right for terms of one sign.
        grad: Names of the inputs to differentiate. Empty: the operator has no backward direction.
        grad_output: An expression in the names and ``output`` for the gradient that flows in.
        forward: Whether the forward direction is a test of its own.
        sizes: The ladder of sizes, ascending; ``wide_sizes`` is the float32 ladder where it differs.
        dtypes: Dtypes the case is meant for.
        unit: What ``n`` counts.
        exact: Every term and every partial sum up to 2^p is representable, so that a right operator errs by the last
            rounding only.
        stress: What the inputs push to its limit, which names the fault when the answer is not finite.
    """

    operator: str
    name: str
    family: str
    why: str
    inputs: str
    call: str
    reference: str = ""
    magnitude: str = ""
    grad: tuple[str, ...] = ()
    grad_output: str = "torch.ones_like(output)"
    forward: bool = True
    sizes: tuple[int, ...] = (16, 256, 1024, 4096, 16384, 65536)
    wide_sizes: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ("float16", "bfloat16", "float32")
    unit: str = "elements"
    exact: bool = False
    stress: Stress = "sum"

    def __post_init__(self) -> None:
        """Refuse random values outside ``inputs``: the operator and its reference would draw different ones."""
        for field in ("call", "reference", "magnitude", "grad_output"):
            if "rand" in getattr(self, field):
                raise ValueError(
                    f"case {self.id}: {field} draws random values; make them in inputs and name them there"
                )

    @property
    def id(self) -> str:
        """``operator/name``."""
        return f"{self.operator}/{self.name}"

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions that the case tests."""
        forward: tuple[Direction, ...] = ("forward",) if self.forward else ()
        backward: tuple[Direction, ...] = ("backward",) if self.grad else ()
        return forward + backward

    def ladder(self, dtype: str) -> tuple[int, ...]:
        """The sizes to run in ``dtype``, ascending."""
        return self.wide_sizes if dtype == "float32" and self.wide_sizes else self.sizes


class Track(Record, frozen=True, kw_only=True):
    """A case in one dtype, on one device, in one direction: the ladder of cells that one verdict is about."""

    case: str
    dtype: str
    device: str
    direction: Direction

    @property
    def operator(self) -> str:
        """The operator under test."""
        return self.case.partition("/")[0]

    def cell(self, n: int, arm: Arm = "stock") -> Cell:
        """The cell of this track at size ``n``."""
        return Cell(case=self.case, dtype=self.dtype, device=self.device, direction=self.direction, n=n, arm=arm)


class Cell(Record, frozen=True, kw_only=True):
    """The unit that is run: case x dtype x device x direction x size, as PyTorch is (stock) or under ``repair()``."""

    case: str
    dtype: str
    device: str
    direction: Direction
    n: int
    arm: Arm = "stock"

    @property
    def track(self) -> Track:
        """The track that this cell belongs to."""
        return Track(case=self.case, dtype=self.dtype, device=self.device, direction=self.direction)

    @property
    def id(self) -> str:
        """A key that is unique in a run, sorts by track, and can be read."""
        return f"{self.case}|{self.dtype}|{self.device}|{self.direction}|{self.arm}|{self.n}"


class Outcome(str, Enum):
    """How a cell ended. Only ``ran`` has numbers to judge."""

    RAN = "ran"
    UNSUPPORTED = "unsupported"
    FALLBACK = "fallback"
    RAISED = "raised"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out-of-memory"


class TensorFacts(Record, frozen=True, kw_only=True):
    """Where a tensor lay and what it was made of: part of the proof that the operator ran on the device."""

    name: str
    dtype: str
    device: str
    shape: tuple[int, ...]


class Result(Record, frozen=True, kw_only=True):
    """One output, or one gradient, against its float64 reference.

    Errors are in ulp of the dtype under test, over the entries whose observed value is finite; ``excess`` is
    the largest ratio of an error to what float32 accumulation and one rounding would allow. The values are those of the
    worst entry, kept as text because JSON has neither inf nor nan. ``misplaced`` counts entries whose right value is inf,
    nan or too large for the format, and that are not what it rounds to.
    """

    tensor: TensorFacts
    digest: str
    error_ulp: float
    excess: float
    worst: int
    observed: str
    expected: str
    rounded: str
    format_limited: int
    misplaced: int
    infinite: int
    nan: int
    nonzero_expected: int
    flushed: int

    @property
    def all_zero(self) -> bool:
        """Every entry that must not be zero is zero."""
        return self.nonzero_expected > 0 and self.flushed == self.nonzero_expected

    @property
    def observed_value(self) -> float:
        """The observed value of the worst entry."""
        return float(self.observed)

    @property
    def entries(self) -> int:
        """The number of entries of the tensor."""
        return math.prod(self.tensor.shape)


class Observation(Record, frozen=True, kw_only=True):
    """What one cell gave, or how it died.

    Attributes:
        cell: What was run.
        outcome: How it ended.
        results: The outputs or gradients, measured.
        inputs: Where the operator's inputs lay.
        between: Backward only: where the output lay, and the gradient that flowed into it.
        operators: What the dispatcher saw run.
        returned: Dtype and device of every tensor that those returned, scalars too: ``float16 on cpu``.
        detail: Why there are no numbers, in words.
        seconds: How long it took.
    """

    cell: Cell
    outcome: Outcome
    results: tuple[Result, ...] = ()
    inputs: tuple[TensorFacts, ...] = ()
    between: tuple[TensorFacts, ...] = ()
    operators: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()
    detail: str = ""
    seconds: float = 0.0


class Environment(Record, frozen=True, kw_only=True):
    """The machine and the versions a run was made with."""

    numalign: str
    torch: str
    python: str
    platform: str
    processor: str
    cores: int
    threads: int
    devices: tuple[str, ...]


class Plan(Record, frozen=True, kw_only=True):
    """Everything that decides what a run does. Two runs of equal plans on one machine store equal observations."""

    environment: Environment
    cases: tuple[Case, ...]
    tracks: tuple[Track, ...]
    max_size: int
    repaired: bool
    seed: int
    timeout: float
    threads: int
    imports: tuple[str, ...] = ()

    def case(self, case_id: str) -> Case:
        """The case with this id."""
        return next(case for case in self.cases if case.id == case_id)


class Finding(Record, frozen=True, kw_only=True):
    """A fault proved by observations, with a code and a reproducer that confirmed it in a fresh process.

    ``rung`` is the smallest failing size of the ladder: where a symptom is checked, because it shows clearly there.
    """

    id: str
    code: str
    track: Track
    first_failing_n: int
    last_passing_n: int | None
    rung: int
    observed: str
    expected: str
    error_ulp: float | None
    summary: str
    reproducer: str
    reproducer_output: str
    confirmed: bool
    repaired: bool | None = None
    draft: str = ""
