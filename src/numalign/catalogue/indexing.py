"""Indexing: many terms that meet in one destination, forward (scatters) and backward (gathers).

Stressed: the running sum that the destination itself is, and the count of a mean. Every index is 0, so that n
ones must give n: float16 comes to a halt at 2048, bfloat16 at 256, float32 at 16777216, which is why its
ladders reach 20 million.
"""

from __future__ import annotations

from numalign.evidence.records import Case

_ONES = """\
x = torch.ones(n)
index = torch.zeros(n, dtype=torch.int64)
"""

_ONE_SOURCE = """\
x = torch.ones(1)
index = torch.zeros(n, dtype=torch.int64)
"""

_ROWS = """\
x = torch.ones(n, 4)
index = torch.zeros(n, dtype=torch.int64)
"""

_UNEVEN = """\
x = 1 + torch.rand(n)
index = torch.zeros(n, dtype=torch.int64)
"""

_TOTAL = "x.sum(0, keepdim=True)"

_SIZES = (16, 256, 1024, 5000, 20000, 60000)

_WIDE_SIZES = (16, 65536, 1048576, 16777216, 18000000, 20000000)

CASES: tuple[Case, ...] = (
    Case(
        operator="index_add",
        name="one-destination",
        family="indexing",
        why="n ones added to one entry give n, in float32 too, where stock stops at 16777216 (pytorch#124783).",
        inputs=_ONES,
        call="x.new_zeros(1).index_add(0, index, x)",
        reference=_TOTAL,
        sizes=_SIZES,
        wide_sizes=_WIDE_SIZES,
        exact=True,
    ),
    Case(
        operator="index_add",
        name="rows",
        family="indexing",
        why="n rows of ones added to one row, through the kernel for more than one dimension.",
        inputs=_ROWS,
        call="x.new_zeros(1, 4).index_add(0, index, x)",
        reference=_TOTAL,
        sizes=_SIZES,
        unit="rows",
        exact=True,
    ),
    Case(
        operator="scatter_add",
        name="one-destination",
        family="indexing",
        why="n ones added to one entry give n, in float32 too, where stock stops at 16777216 (pytorch#124783).",
        inputs=_ONES,
        call="x.new_zeros(1).scatter_add(0, index, x)",
        reference=_TOTAL,
        sizes=_SIZES,
        wide_sizes=_WIDE_SIZES,
        exact=True,
    ),
    Case(
        operator="scatter_add",
        name="rows",
        family="indexing",
        why="Message passing: n messages of four features to one node, by an index expanded over the features.",
        inputs=_ROWS + "index = index[:, None].expand(n, 4)\n",
        call="x.new_zeros(1, 4).scatter_add(0, index, x)",
        reference=_TOTAL,
        sizes=_SIZES,
        unit="rows",
        exact=True,
    ),
    Case(
        operator="scatter_reduce",
        name="sum",
        family="indexing",
        why="n ones reduced into one entry give n.",
        inputs=_ONES,
        call='x.new_zeros(1).scatter_reduce(0, index, x, "sum")',
        reference=_TOTAL,
        sizes=_SIZES,
        exact=True,
    ),
    Case(
        operator="scatter_reduce",
        name="mean",
        family="indexing",
        why="Terms of about 1.5; both the sum and the count are kept in the dtype, and halt at different values.",
        inputs=_UNEVEN,
        call='x.new_zeros(1).scatter_reduce(0, index, x, "mean", include_self=False)',
        reference="x.mean(0, keepdim=True)",
        grad=("x",),
        sizes=_SIZES,
    ),
    Case(
        operator="scatter_reduce",
        name="amax-ties",
        family="indexing",
        why="n equal maxima share the gradient, 1 / n each; their number is summed in the dtype.",
        inputs=_ONES,
        call='x.new_zeros(1).scatter_reduce(0, index, x, "amax", include_self=False)',
        reference="x.amax(0, keepdim=True)",
        grad=("x",),
        forward=False,
        sizes=_SIZES,
    ),
    Case(
        operator="index_reduce",
        name="uneven-mean",
        family="indexing",
        why="Terms of about 1.5; both the sum and the count are kept in the dtype, and halt at different values.",
        inputs=_UNEVEN,
        call='x.new_zeros(1).index_reduce(0, index, x, "mean", include_self=False)',
        reference="x.mean(0, keepdim=True)",
        sizes=_SIZES,
    ),
    Case(
        operator="index_reduce",
        name="mean",
        family="indexing",
        why="The mean of n rows of ones is 1; sum and count are kept in the dtype (pytorch#139242).",
        inputs=_ROWS,
        call='x.new_zeros(1, 4).index_reduce(0, index, x, "mean", include_self=False)',
        reference="x.mean(0, keepdim=True)",
        sizes=_SIZES,
        unit="rows",
        exact=True,
    ),
    Case(
        operator="index_put",
        name="accumulate",
        family="indexing",
        why="n ones put on one entry with accumulate=True give n (torch-xpu-ops#1751).",
        inputs=_ONES,
        call="x.new_zeros(1).index_put((index,), x, accumulate=True)",
        reference=_TOTAL,
        sizes=_SIZES,
        exact=True,
    ),
    Case(
        operator="put",
        name="accumulate",
        family="indexing",
        why="n ones put on one entry with accumulate=True give n.",
        inputs=_ONES,
        call="x.new_zeros(1).put(index, x, accumulate=True)",
        reference=_TOTAL,
        sizes=_SIZES,
        exact=True,
    ),
    Case(
        operator="gather",
        name="one-source",
        family="indexing",
        why="One entry gathered n times receives n gradients of 1.",
        inputs=_ONE_SOURCE,
        call="x.gather(0, index)",
        reference="x.expand(index.shape)",
        grad=("x",),
        forward=False,
        sizes=_SIZES,
        wide_sizes=_WIDE_SIZES,
        exact=True,
    ),
    Case(
        operator="index_select",
        name="one-source",
        family="indexing",
        why="One entry selected n times receives n gradients of 1.",
        inputs=_ONE_SOURCE,
        call="x.index_select(0, index)",
        reference="x.expand(index.shape)",
        grad=("x",),
        forward=False,
        sizes=_SIZES,
        exact=True,
    ),
    Case(
        operator="take",
        name="one-source",
        family="indexing",
        why="One entry taken n times receives n gradients of 1.",
        inputs=_ONE_SOURCE,
        call="x.take(index)",
        reference="x.expand(index.shape)",
        grad=("x",),
        forward=False,
        sizes=_SIZES,
        exact=True,
    ),
    Case(
        operator="index",
        name="one-source",
        family="indexing",
        why="One row indexed n times, x[index], receives n gradients of 1.",
        inputs="x = torch.ones(1, 4)\nindex = torch.zeros(n, dtype=torch.int64)\n",
        call="x[index]",
        reference="x.expand(len(index), 4)",
        grad=("x",),
        forward=False,
        sizes=_SIZES,
        unit="rows",
        exact=True,
    ),
    Case(
        operator="repeat_interleave",
        name="one-source",
        family="indexing",
        why="One entry repeated n times receives n gradients of 1.",
        inputs="x = torch.ones(1)\nrepeats = torch.tensor([n])\n",
        call="x.repeat_interleave(repeats)",
        reference="x.expand(int(repeats))",
        grad=("x",),
        forward=False,
        sizes=_SIZES,
        exact=True,
    ),
    Case(
        operator="bincount",
        name="weights",
        family="indexing",
        why="n weights of 1 in one bin give n.",
        inputs="x = torch.zeros(n, dtype=torch.int64)\nweights = torch.ones(n)\n",
        call="torch.bincount(x, weights)",
        reference="weights.sum(0, keepdim=True)",
        sizes=(16, 65536, 1048576),
        wide_sizes=_WIDE_SIZES,
        dtypes=("float32",),
        exact=True,
    ),
    Case(
        operator="histc",
        name="one-bin",
        family="indexing",
        why="n entries fall into one bin, whose count, n, is kept in the dtype of the entries.",
        inputs="x = torch.zeros(n)\n",
        call="torch.histc(x, bins=1, min=-1, max=1)",
        reference="torch.ones_like(x).sum(0, keepdim=True)",
        sizes=_SIZES,
        exact=True,
    ),
    Case(
        operator="Tensor.unfold",
        name="overlapping",
        family="indexing",
        why="n windows of n entries share the middle one, which receives a gradient of 1 from each.",
        inputs="x = torch.ones(2 * n - 1)\nlength = n\nmiddle = torch.eye(n).flip(1)\n",
        call="x.unfold(0, length, 1)",
        reference="x[torch.arange(length, device=x.device)[:, None] + torch.arange(length, device=x.device)]",
        grad=("x",),
        grad_output="middle",
        forward=False,
        sizes=(16, 256, 1024, 2500, 3000),
        unit="windows",
        exact=True,
    ),
    Case(
        operator="sparse_coo_tensor",
        name="coalesce",
        family="indexing",
        why="n values of 1 with one index coalesce to n.",
        inputs=_ONES + "index = index[None]\n",
        call="torch.sparse_coo_tensor(index, x, (1,)).coalesce().values()",
        reference=_TOTAL,
        sizes=_SIZES,
        exact=True,
    ),
    Case(
        operator="sparse_coo_tensor",
        name="to-dense",
        family="indexing",
        why="n values of 1 with one index become n in the dense tensor.",
        inputs=_ONES + "index = index[None]\n",
        call="torch.sparse_coo_tensor(index, x, (1,)).to_dense()",
        reference=_TOTAL,
        sizes=_SIZES,
        exact=True,
    ),
)
