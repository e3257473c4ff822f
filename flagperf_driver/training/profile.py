"""Where a device's time goes in a step: what a profiler saw, by kernel and kind, as one small record."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, NamedTuple, Protocol

KERNELS = 10
"""The number of kernels in the record, those with the most time."""
LONGEST_NAME = 120


class Activity(NamedTuple):
    """A kernel or a copy; ``begin`` and ``end`` are nanoseconds of any clock."""

    name: str
    begin: int
    end: int
    own: int
    """Nanoseconds without those of activities within it."""
    bytes: int = 0
    """The bytes that a copy moves."""


@dataclass
class Recording:
    """What a profiler saw."""

    activities: list[Activity] = field(default_factory=list)
    launches: int = 0
    """Calls of the host that start a kernel, or a graph of kernels."""
    waits: list[int] = field(default_factory=list)
    """Nanoseconds of each call in which the host waits for the device."""
    graph_breaks: int | None = None
    """The places where the compiler split the model into graphs; None without a compiler."""

    @property
    def size(self) -> int:
        return len(self.activities) + self.launches + len(self.waits)


@dataclass(frozen=True)
class StepBytes:
    """The bytes of a device's memory that one step reads and writes."""

    least: float
    """What no program avoids: weights, gradients, optimizer states, and what a forward pass keeps for the backward."""
    operations: float | None
    """What the operations read and write, one after the other; None for compiled steps."""
    gradients: float
    """Those of the whole model's gradients, which ranks exchange."""


class Profiler(Protocol):
    """Records a device's activities; a vendor's hook may return its own."""

    def start(self) -> None:
        """Start a new recording."""

    def stop(self) -> Recording:
        """End the recording and return it; the device has done all its work."""


# -- kinds of kernels --------------------------------------------------------------------------------------

MATRIX, FP32_MATRIX = "matrix product", "fp32 matrix product"
ATTENTION, CONVOLUTION = "attention", "convolution"
LAYOUT, POINTWISE, REDUCTION, NORMALIZATION = "layout copy", "pointwise", "reduction", "normalization"
OPTIMIZER, HOST_COPY, COLLECTIVE, OTHER = "optimizer", "host copy", "collective", "other"
EXCHANGE = "all-to-all"
"""The exchange of a mixture's tokens between the ranks that have its experts."""
MATH = "math"
"""The backend of attention that computes the softmax in a kernel of its own."""

_COPIES = "to_copy|copy|clone|transpose|view|permute|unsafe_view|cat|stack|constant_pad_nd|slice|expand|unsqueeze|t"
KINDS = [
    # Generated kernels: templates (tem), pointwise (poi) and reductions (red, per); their names list fused operators.
    (ATTENTION, r"^triton_tem_\w*(attention|sdpa)|^triton_(red|per)_\w*?_(safe_|masked_)?(?<!log_)softmax(?!_online)"),
    (CONVOLUTION, r"^triton_tem_\w*convolution"),
    (MATRIX, r"^triton_tem_"),
    (NORMALIZATION, r"^triton_\w*(layer_norm|batch_norm|group_norm|rms_norm|var_mean)"),
    (LAYOUT, rf"^triton_poi_fused_+(({_COPIES})_+)+\d+$"),
    (OPTIMIZER, r"^triton_\w*(adam|foreach)"),
    (REDUCTION, r"^triton_(red|per|split_scan)_"),
    (POINTWISE, r"^triton_"),
    # Kernels of frameworks and of the libraries that they call; copies; operators of the host.
    (POINTWISE, r"CompiledFxGraph"),
    (EXCHANGE, r"[Ss]end_?[Rr]ecv|[Aa]ll_?[Tt]o_?[Aa]ll"),
    (COLLECTIVE, r"[nrxh]ccl|all_?reduce|all_?gather|reduce_?scatter|c10d::|gloo:|symm_mem"),
    (HOST_COPY, r"Memcpy (HtoD|DtoH)|Memcpy.*(Pinned|Pageable)"),
    (LAYOUT, r"Memcpy|nchwToNhwc|nhwcToNchw|tensorTransformGeneric|transpose_?(kernel|readWrite)|batched_transpose"),
    (OPTIMIZER, r"multi_tensor_apply|Fused(Optimizer|Adam|Sgd)|_fused_(adam|sgd)|adamw?_|\blamb|_foreach_|Optimizer\."),
    (
        ATTENTION,
        r"flash|fmha|sdpa|scaled_dot_product|[Aa]ttention|dot_do_o|convert_dq"
        r"|softmax_warp_(for|back)ward<.*, false, \w+>|(?<!Log)SoftMax(For|Back)wardEpilogue|aten::_(safe_)?softmax",
    ),
    (
        NORMALIZATION,
        r"(layer|batch|group|rms|instance)_?norm|LayerNorm|RowwiseMoments|GammaBeta|GradInput|bn_[fb]w|::bn",
    ),
    (CONVOLUTION, r"conv(olution|olve|[123]d|_)|fprop|dgrad|wgrad|winograd|depthwise|im2col|col2im|implicit_gemm"),
    (FP32_MATRIX, r"tf32|s1688gemm|[^h]sgemm|simt_s?gemm|gemm_f32f32"),
    (
        MATRIX,
        r"gemm|gemv|nvjet|cutlass|cublas|splitK|wgmma|xmma"
        r"|aten::(mm|addmm|bmm|baddbmm|matmul|linear|mkldnn_linear|addbmm|dot|mv|_scaled_mm|_grouped_mm)$",
    ),
    (LAYOUT, r"direct_copy|copy_kernel|CatArray|aten::(copy_|clone|contiguous|cat|stack|_to_copy|constant_pad_nd)$"),
    (REDUCTION, r"reduce|softmax|SoftMax|nll_loss|cross_entropy|[Nn]orm|sum|mean|scan"),
    (
        POINTWISE,
        r"elementwise|pointwise|dropout|Memset|fill|Functor"
        r"|aten::(add|sub|mul|div|gelu|relu|silu|tanh|sigmoid|exp|pow|r?sqrt|where|zero|masked|neg|threshold|clamp)",
    ),
]
"""The first pattern that is found in a kernel's name gives its kind."""
BACKENDS = [
    ("cudnn", r"cudnn"),
    ("flex", r"flex_attention"),
    ("flash", r"[Ff]lash"),
    ("efficient", r"fmha|efficient|MemEff|Attention(Backward)?Kernel"),
    (MATH, r"[Ss]oft_?[Mm]ax|_math"),
]
"""The same for the backend of attention."""


def _finder(table: Iterable[tuple[str, str]]) -> Callable[[str], str]:
    patterns = [(found, re.compile(pattern)) for found, pattern in table]
    return lambda name: next((found for found, pattern in patterns if pattern.search(name)), OTHER)


kind_of = _finder(KINDS)
backend_of = _finder(BACKENDS)


# -- the record --------------------------------------------------------------------------------------------


def record(recording: Recording, steps: int) -> dict[str, Any]:
    """Return the recording of several steps as a record: seconds, calls and bytes of one step."""
    kinds: dict[str, int] = defaultdict(int)
    backends: dict[str, int] = defaultdict(int)
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    own: dict[tuple[str, str], int] = defaultdict(int)
    calls: Counter[tuple[str, str]] = Counter()
    known: dict[str, str] = {}
    copied = 0
    for activity in recording.activities:
        name = activity.name
        kind = known.get(name) or known.setdefault(name, kind_of(name))
        kinds[kind] += activity.own
        spans[kind].append((activity.begin, activity.end))
        own[name, kind] += activity.own
        calls[name, kind] += 1
        copied += activity.bytes if kind == HOST_COPY else 0
        if kind == ATTENTION:
            backends[backend_of(name)] += activity.own
    busy = _covered(span for of_kind in spans.values() for span in of_kind)
    exposed = {
        kind: busy - _covered(span for other, of_kind in spans.items() if other != kind for span in of_kind)
        for kind in (HOST_COPY, COLLECTIVE, EXCHANGE)
        if kind in spans
    }

    def per_step(values: dict[str, int]) -> dict[str, float]:
        return {name: value / 1e9 / steps for name, value in sorted(values.items(), key=lambda item: -item[1])}

    return {
        "steps": steps,
        "busy_time": busy / 1e9 / steps,
        "kinds": per_step(kinds),
        "exposed": per_step(exposed),
        "attention": per_step(backends),
        "kernels": [
            {"name": _short(name), "kind": kind, "time": time_ / 1e9 / steps, "calls": calls[name, kind] / steps}
            for (name, kind), time_ in sorted(own.items(), key=lambda item: -item[1])[:KERNELS]
        ],
        "calls": sum(calls.values()) / steps,
        "launches": recording.launches / steps,
        "waits": len(recording.waits) / steps,
        "wait_time": sum(recording.waits) / 1e9 / steps,
        "host_bytes": copied / steps,
        "graph_breaks": recording.graph_breaks,
    }


def _short(name: str) -> str:
    """Return a kernel's name without its type and without the namespaces that all names have."""
    name = re.sub(r"^void |at::native::|at::cuda::|c10::|\(anonymous namespace\)::", "", name)
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 3] + "..."


def _covered(spans: Iterable[tuple[int, int]]) -> int:
    """Return the length of the union of the spans."""
    total = until = 0
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, until))
        until = max(until, end)
    return total
