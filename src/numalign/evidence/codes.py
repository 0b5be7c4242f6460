"""The fault codes: what each means, what it does to a training run, and what to do about it."""

from __future__ import annotations

from typing import NamedTuple


class Code(NamedTuple):
    """One fault code.

    Attributes:
        code: ``NA`` and three digits; the first digit is the kind of fault.
        title: A few words, fit for a table.
        cause: What the operator does wrong.
        consequence: What a user sees.
        remedy: For the user now, and for whoever maintains the operator.
        example: A line of PyTorch, or a short story, that shows it.
    """

    code: str
    title: str
    cause: str
    consequence: str
    remedy: str
    example: str


_CODES = (
    Code(
        "NA101",
        "overflow in the sum",
        "Partial sums are kept in a dtype whose range is narrower than the accumulate type's, so the running sum "
        "passes the largest finite value (65504 in float16) although the answer itself fits.",
        "The result is inf, or nan once it meets another inf, from one size on; below it everything looks right.",
        "Now: numalign.repair() where the operator is repaired, else float32 inputs. In the operator: accumulate "
        "in float32 from the first addition to the last, across threads and work groups too, and round once at "
        "the end.",
        "F.nll_loss(logp, target) with float16 logp of 181 x 181 pixels: the sum of the losses passes 65504, the "
        "mean is 3.5.",
    ),
    Code(
        "NA102",
        "overflow in the count, weight sum or divisor",
        "The number of terms, the sum of the weights or the divisor of a mean is kept in a dtype that cannot hold it.",
        "The result is nan (inf / inf) or zero (finite / inf), and a backward that divides by the same number "
        "returns zeros.",
        "Now: numalign.repair() where the operator is repaired, else float32 inputs. In the operator: keep "
        "counts, weights and divisors in the accumulate type; a backward that gets the rounded one can sum the "
        "weights again.",
        "F.nll_loss(logp, target) with float16 logp of 256 x 256 pixels: total_weight is 65536, which is inf in "
        "float16.",
    ),
    Code(
        "NA103",
        "overflow in a square or an exponential",
        "A square, power or exponential is formed at the scale of the input and overflows, although the answer, a"
        " root or a logarithm of it, fits.",
        "inf for inputs that are far from the largest finite value; the gradient, divided by that inf, is zero.",
        "Now: scale the input down and the result up. In the operator: divide by the largest magnitude before "
        "squaring, subtract the maximum before the exponential, or compute in a type with a wider exponent.",
        "torch.linalg.norm(torch.tensor([1e20, 1.0, 1.0])) is inf in float32; the norm is 1e20.",
    ),
    Code(
        "NA201",
        "the accumulator saturates",
        "The running sum has the significand of the storage dtype: once it is 2^p times a term, adding the term "
        "changes nothing (2048 ones in float16, 256 in bfloat16, 16777216 in float32).",
        "The result stops growing with the number of terms; a gradient summed this way is too small by any factor.",
        "Now: numalign.repair() where the operator is repaired, else float32 inputs, or fewer terms a sum. In the"
        " operator: accumulate in float32, in float64 or pairwise where terms are float32, and round once.",
        "torch.zeros(1, dtype=torch.half).index_add(0, torch.zeros(5000, dtype=torch.long), torch.ones(5000, "
        "dtype=torch.half))",
    ),
    Code(
        "NA202",
        "the error grows with the number of terms",
        "Each addition rounds to fewer bits than the accumulate type has, so that errors add up.",
        "Results that drift with batch size, sequence length or image size.",
        "As for NA201.",
        "A sum of n terms that is off by a number of ulp which doubles whenever n does.",
    ),
    Code(
        "NA203",
        "wrong value",
        "The result is further from the right one than roundings can explain, at the smallest size already; or the right "
        "result is inf or nan, or rounds to inf, and something else came out.",
        "A wrong factor or sign, a nan that is swallowed, a nan or zero where inf is right.",
        "Not a matter of precision: look for a plain mistake in the operator, or in the case that tests it.",
        "A mean that divides by n - 1.",
    ),
    Code(
        "NA301",
        "gradient all zero",
        "Every entry of the gradient is zero though its right value can be represented: usually it was divided by"
        " a count or a norm that had overflowed to inf.",
        "Training stands still without any nan to warn of it. A loss that looks right says nothing about this.",
        "Now: numalign.repair() where the operator is repaired, else float32 inputs. In the operator: form the "
        "factor in the accumulate type, multiply by grad_output, round last.",
        "The gradient of F.nll_loss(logp, target) with float16 logp of 256 x 256 pixels.",
    ),
    Code(
        "NA302",
        "gradient partly flushed",
        "Some entries of the gradient are zero though their right value can be represented: a factor was rounded "
        "to the storage dtype before the multiplication that would have brought it back into range, or subnormals"
        " are flushed.",
        "Rare classes and small weights stop learning.",
        "Now: a larger loss scale. In the operator: divide late; fold all factors in the accumulate type, round once.",
        "A float16 gradient whose 1 / n was rounded before it met the loss scale.",
    ),
    Code(
        "NA401",
        "repeats differ",
        "The order of the additions is not fixed, as with atomic additions.",
        "Two runs of one program give different bits.",
        "torch.use_deterministic_algorithms(True) where the operator heeds it. In the operator: combine partial "
        "sums in a fixed order.",
        "scatter_add on a GPU.",
    ),
    Code(
        "NA402",
        "the number of threads changes the bits",
        "The sum is split by the number of threads.",
        "Results differ between machines of one kind.",
        "Fix the number of threads. In the operator: split by a fixed block size.",
        "A sum over 2^20 elements with one and with two threads.",
    ),
    Code(
        "NA403",
        "the batch changes the bits",
        "The order of the additions inside one sample depends on how many samples there are.",
        "One prompt answers differently when others are served beside it.",
        "In the operator: let the split depend on the reduced axis alone.",
        "A matrix product that picks its kernel by the number of rows.",
    ),
    Code(
        "NA404",
        "the layout changes the bits",
        "Contiguous and strided inputs take kernels that add in different orders, or in different types.",
        "channels_last changes results.",
        "In the operator: one accumulate type and one order for all layouts.",
        "A pooling whose channels_last kernel accumulates in float16.",
    ),
    Code(
        "NA501",
        "the process crashed",
        "The operator ended its process: a segmentation fault, an abort, a call of exit, whatever the status.",
        "Nothing was measured at this size.",
        "The stored last words name the signal and the Python frame; report it with the reproducer of the case.",
        "An index that is not checked before it is followed.",
    ),
    Code(
        "NA502",
        "device assert",
        "A check on the device failed and poisoned the device context.",
        "Nothing was measured at this size.",
        "Run again with the backend's synchronous mode to see the line.",
        "A target out of range on a GPU.",
    ),
    Code(
        "NA503",
        "hang",
        "The cell did not end within its time limit and was killed.",
        "Nothing was measured at this size.",
        "Raise --timeout if the size is meant to take long.",
        "A loop that waits for a flag nobody sets.",
    ),
    Code(
        "NA504",
        "out of memory",
        "An allocation failed, or the system killed the process for its memory.",
        "Nothing was measured at this size.",
        "Lower --max-size or --jobs.",
        "A full float32 copy of the logits.",
    ),
    Code(
        "NA505",
        "out of bounds",
        "The operator read or wrote outside its tensors.",
        "Wrong values, or a crash, or neither.",
        "Report it with the reproducer.",
        "A negative target that is no ignore_index.",
    ),
    Code(
        "NA901",
        "format limit",
        "The right answer itself does not fit the output dtype.",
        "inf, or zero, is the correctly rounded result. Not a fault.",
        "A wider output dtype, or a mean in place of a sum.",
        "The sum of 100000 ones in float16.",
    ),
    Code(
        "NA902",
        "dtype not supported",
        "The operator says that it has no kernel for this dtype.",
        "Nothing was measured; nothing is claimed.",
        "None needed, unless the dtype is meant to work.",
        "\"avg_pool3d\" not implemented for 'Half'",
    ),
    Code(
        "NA903",
        "not tested",
        "The cell raised, so that nothing was measured.",
        "Nothing is claimed about this cell; the scan is incomplete and exits with 3.",
        "The stored message says what was raised.",
        "A case whose inputs do not suit a backend.",
    ),
    Code(
        "NA904",
        "ran elsewhere",
        "Data left the device under test, in a tensor or as a number, so that the result says nothing about the device.",
        "Nothing is claimed about this cell; the scan is incomplete and exits with 3.",
        "The stored message names the operator inside that left. Switch the backend's CPU fallback off, or do without it.",
        "An MPS operator that falls back to the CPU.",
    ),
)

CODES: dict[str, Code] = {code.code: code for code in _CODES}
"""Every code by its name, in order."""
