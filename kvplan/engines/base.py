"""What an engine is to kvplan: its defaults, its budget rule, and how it turns bytes into requests.

Two questions are kept apart. *How many bytes are left for the cache?* is modelled: every `Term`
carries a basis and a low and high bound. *How many blocks, tokens and requests do these bytes
hold?* is integer arithmetic and exact.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Self

from kvplan.cache.bytes import KvFormats
from kvplan.errors import InputError, UnsupportedError
from kvplan.spec.gpu import GpuSpec
from kvplan.spec.model import ModelSpec
from kvplan.spec.shown import Shown

Basis = Literal["exact", "modelled", "measured"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Settings(Shown):
    """Every resolved setting of a deployment. None: the engine has no such setting, or it needs a GPU."""

    engine: str
    engine_version: str
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    enable_expert_parallel: bool = False
    gpus: int = 1
    """GPUs of the whole deployment; those beyond tp x pp x dp idle."""
    max_model_len: int = 0
    """Longest request in tokens; `kvplan.planning.settings.FIT` while it is being fitted to the memory."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float = 1.0
    block_size: int = 1
    """Tokens per cache block."""
    kv_cache_dtype: str = "auto"
    weights: str = "auto"
    kv_cache_memory_bytes: int | None = None
    """Per GPU; replaces the modelled budget."""
    num_gpu_blocks_override: int | None = None
    enforce_eager: bool = False
    enable_prefix_caching: bool = True
    mamba_ssm_cache_dtype: str = "auto"
    concurrency: int = 1
    """Running requests of the whole deployment."""
    prompt_tokens: int = 1024
    output_tokens: int = 256
    shared_prefix_tokens: int = 0
    allow_long_max_model_len: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    """Settings that only this engine has, by the names in its `Engine.settings`."""
    defaults: dict[str, str] = field(default_factory=dict)
    """setting -> where its value comes from, for every setting the user did not give."""

    @property
    def request_tokens(self) -> int:
        """Prompt and output of one request of the workload."""
        return self.prompt_tokens + self.output_tokens

    @property
    def world_size(self) -> int:
        """GPUs that hold the model: tp x pp x dp."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def concurrency_per_replica(self) -> int:
        """Requests of the most loaded data-parallel replica."""
        return -(-self.concurrency // self.data_parallel_size)


ARRAY_SETTINGS = frozenset(
    {
        "max_model_len", "concurrency", "prompt_tokens", "output_tokens", "shared_prefix_tokens",
        "kv_cache_memory_bytes", "gpu_memory_utilization",
    }
)  # fmt: skip
"""Sizes and workload: the settings that some engines compute for a whole grid at once (`Engine.array_settings`)."""


class Term(NamedTuple):
    """One line of the memory waterfall of a rank."""

    name: str
    part: str
    """Which sum it belongs to: ``weights``, ``activation``, ``cuda_graph`` or ``runtime``."""
    bytes: int
    low_bytes: int
    high_bytes: int
    basis: Basis
    source: str


class Stage(NamedTuple):
    """What one pipeline stage's most loaded rank holds."""

    number: int
    spec: ModelSpec
    """The model as this rank sees it: its layers only, heads and widths divided."""
    first: bool
    last: bool
    weights_bytes: int
    whole: ModelSpec | None = None
    """All layers as such a rank would hold them: some engines lay out the cache for the whole model first.
    None: `spec` is the whole model."""
    first_layer: int = 0
    """Index of the stage's first layer in the model."""


class Speculation(NamedTuple):
    """Speculative decoding, as far as it changes the cache."""

    method: str
    tokens: int | None
    """Draft tokens per step; None: as many as there are draft layers."""
    model: Any
    """The draft's model: a name, a path or a `ModelSpec`; None: the model's own draft layers, or none."""
    caches: bool
    """Whether the draft has layers that cache."""
    shares_ends: bool = False
    """Whether another checkpoint uses the model's embedding and head, where they are of one shape."""


class Pool(NamedTuple):
    """The cache of one replica in the engine's own terms."""

    block_size: int | None
    num_blocks: int | None
    kv_tokens: int | None
    """Tokens the pool physically holds for one sequence's growth; None: groups share no measure."""
    engine_reported_tokens: int | None
    max_concurrency: float
    """Requests of max_model_len, as the engine computes it."""
    max_single_request_tokens: int
    starts: bool
    """Whether one request of max_model_len holds as the engine checks it at start."""
    used_bytes: tuple[int, ...]
    """Per stage: bytes the pool allocates out of what it was given."""
    max_num_seqs_allowed: int | None = None
    """The most running sequences that the engine starts with; None: the pool sets no such limit."""
    refusal: str = ""
    """Why it does not start, where that is not the size of one request."""
    state_slots: int = 0
    """Slots for states that lie beside the tokens, where the engine has such."""


class CachePool(NamedTuple):
    """One cache as a local engine lays it out (and often prints it)."""

    kind: str
    """``full``, ``sliding``, ``recurrent``, ``index``, ..."""
    cells: int | None
    """Token slots per layer, streams included."""
    blocks: int | None
    bytes: int
    k_bytes: int
    v_bytes: int


STATE_KINDS = frozenset({"recurrent", "recurrent outside the cache", "compressor"})
"""Kinds of `CachePool` that do not grow with the tokens."""


class Allocation(NamedTuple):
    """What an engine lays out when it starts, in its own terms, whatever the workload."""

    bytes: int
    """All pools, and `state_bytes`."""
    pools: tuple[CachePool, ...]
    """Caches of tokens; what a sequence keeps whatever its length is in `states`."""
    state_bytes: int
    """All states together."""
    compute_buffer_bytes: int | None
    peak_bytes: int | None
    """The most that exists at once while the cache grows; None: it does not grow."""
    states: tuple[CachePool, ...] = ()
    """Recurrent, convolution and compressor states: `cells` counts slots, `k_bytes` the convolution's part and
    `v_bytes` the matrix."""

    @classmethod
    def of(cls, laid: Sequence[CachePool], compute_bytes: int | None = None, peak_bytes: int | None = None) -> Self:
        """All that is laid out, caches and states told apart by their kind."""
        pools = tuple(pool for pool in laid if pool.kind not in STATE_KINDS)
        states = tuple(pool for pool in laid if pool.kind in STATE_KINDS)
        size = sum(pool.bytes for pool in states)
        return cls(sum(pool.bytes for pool in pools) + size, pools, size, compute_bytes, peak_bytes, states)


class Change(NamedTuple):
    """A rule that came with a release of an engine."""

    since: str
    what: str
    source: str


PLAIN_KINDS = frozenset({"full", "sliding", "chunked", "shared", "none"})
"""Kinds of attention over K and V, and of layers that hold nothing: what every engine here knows."""


class Engine:
    """One serving engine. Subclasses say what differs; one module each."""

    name: str
    version: str
    summary: str
    versions: ClassVar[tuple[str, ...]] = ()
    """Releases whose source was read, oldest first; empty: the one version."""
    policies: ClassVar[tuple[tuple[str, str], ...]] = ()  # (what it is about, what the engine does)
    known_kinds: frozenset[str] | None = frozenset()
    """Kinds of `kvplan.cache.KINDS` of which it is known what the engine makes of them, be it that it refuses them;
    layers of all others are refused. None: any kind, since nothing but its streams and states counts."""
    settings: frozenset[str] = frozenset()
    """Names of the engine's own settings, beyond layout and workload."""
    highest_utilization: float = 1.0  # the largest share of the device that advice will propose
    pages_cover_states: bool = False  # a page is as large as a state, so that a smaller format may save nothing
    sequences_flag: str = "--max-num-seqs"  # what limits the running sequences
    sequence_needs: str = "every running sequence needs a block of its own"
    """Why memory limits them, where states are kept."""
    least_fitted_tokens: int = 1  # the shortest length that ``--max-model-len -1`` fits to the memory
    fills_budget: bool = True  # the cache takes what the budget leaves; if not, what its settings lay out
    splits_tensors: bool = True  # tensor parallelism exists; if not, advice deals whole layers over more GPUs
    lays_out_pool: bool = True  # a pool is laid out at start; if not, it starts wherever one longest request holds
    runs_on: frozenset[str] | None = None
    """Vendors it has a backend or a maintained plug-in for, by its own list of supported hardware; None: all."""
    only_on: frozenset[str] | None = None  # vendors on whose devices alone it starts; None: on others too
    least_capability: float = 0.0  # NVIDIA's compute capability below which it does not start
    alike_by_generation: bool = False
    """Whether, settings chosen, it sees no more of a device than link, vendor and generation, by which `fit` groups."""
    unpacks_fp8: ClassVar[Mapping[str, float]] = {}
    """Stored in fp8 (``weights``, ``cache``, ``latent``) -> NVIDIA capability from which kernels unpack it."""
    array_settings: frozenset[str] = frozenset()
    """Settings that `budget_bytes`, `request_bytes`, `pool`, `requests_at`, `holds` and `shared_prefix_tokens`
    take as NumPy arrays too, whose shapes broadcast; nothing else depends on them, except on ``max_model_len``
    (`length_key`)."""
    warnings: tuple[str, ...] = ()  # what to tell whoever chose this version
    smaller_kv_formats: tuple[str, ...] = ()  # what advice tries where the cache does not fit, mildest first
    smaller_weights: tuple[str, ...] = ("fp8", "awq")  # the same where the weights bind

    def __init__(self, version: str | None = None) -> None:
        """The engine at a version; engines that know one version refuse others.

        Raises:
            InputError: a version whose rules are not known.
        """
        if version and version != self.version:
            hint = f"{self.name}@{self.version} is; leave the version out for it"
            raise InputError(f"{self.name} {version} is not known", where="--engine", hint=hint)

    def takes(self, gpu: GpuSpec) -> bool:
        """Whether it has a backend for a device."""
        listed = self.runs_on is None or gpu.vendor in self.runs_on or gpu.vendor == "custom"
        return listed and self.capability_of(gpu) >= self.least_capability

    @staticmethod
    def capability_of(gpu: GpuSpec) -> float:
        """NVIDIA's compute capability; above all of them where a device has none."""
        return float(gpu.compute_capability or 99) if gpu.vendor == "nvidia" else 99.0

    def changes(self) -> list[Change]:
        """What changed between releases, oldest first."""
        return []

    def defaults(self, model: ModelSpec, gpu: GpuSpec | None, given: dict[str, Any]) -> dict[str, tuple[Any, str]]:
        """Values of settings that the user left open: name -> (value, where the default comes from)."""
        raise NotImplementedError

    def longest_context(self, model: ModelSpec) -> int | None:
        """The longest context that the engine derives from the model's configuration; None: it states none."""
        return model.max_position_embeddings

    def default_context(self, model: ModelSpec) -> int | None:
        """``max_model_len`` where nobody gives one, and where ``-1`` starts from."""
        return self.longest_context(model)

    def check_kinds(self, model: ModelSpec) -> None:
        """Refuse layers of which nobody looked up what the engine makes of them.

        Raises:
            UnsupportedError: a kind that is not among `known_kinds`.
        """
        if self.known_kinds is None:
            return
        odd = sorted({m.kind for _, m in model.mixers(drafts=True)} - self.known_kinds)
        if odd:
            what = f"{model.id}: {', '.join(odd)} caches of {self.name} are not modelled"
            raise UnsupportedError(what, where=f"--engine {self.name}", hint="type --engine generic")

    def check(self, model: ModelSpec, settings: Settings, gpu: GpuSpec | None) -> list[str]:
        """Refuse what no budget makes legal; returns warnings.

        Raises:
            UnsupportedError: the engine would not start, whatever the memory.
        """
        return []

    def speculation(self, settings: Settings) -> Speculation | None:
        """Speculative decoding of a deployment; None: off, or nothing that this engine has."""
        return None

    def served_dtype(self, model: ModelSpec, settings: Settings) -> str:
        """The dtype of unquantised weights and of the cache in service: 16 bits also for fp32 checkpoints."""
        return "bf16" if model.dtype == "fp32" else model.dtype

    def own_draft_layers(self, model: ModelSpec) -> tuple[str, ...]:
        """Block names of the model's own draft layers.

        Raises:
            UnsupportedError: it has none.
        """
        return model.draft_layers

    def sharing_layouts(self, settings: Settings, ranks: int) -> list[tuple[str, dict[str, Any]]]:
        """(flags, changed settings) of layouts of the same GPUs in which `ranks` of them hold caches of their own."""
        return []

    def length_flag(self, settings: Settings, length: int) -> tuple[str, str, dict[str, Any]]:
        """(flag, value, changed settings) that make requests of `length` tokens the longest."""
        return "--max-model-len", str(length), {"max_model_len": length}

    def smaller_caches(self, settings: Settings) -> list[tuple[str, str, dict[str, Any]]]:
        """(flag, value, changed settings) of each way to store the cache smaller, mildest first."""
        return [("--kv-cache-dtype", name, {"kv_cache_dtype": name}) for name in self.smaller_kv_formats]

    def typed(self, settings: Settings, pool: Pool) -> Settings:
        """The same deployment in settings for which the engine's own command line has words."""
        return settings

    def split_layers(self, num_layers: int, settings: Settings) -> list[int]:
        """Layers per pipeline stage (there are `settings.pipeline_parallel_size`)."""
        raise NotImplementedError

    def expert_tensor_ranks(self, settings: Settings) -> int:
        """Ranks over which routed experts are cut where they are not dealt whole."""
        return settings.tensor_parallel_size

    def vocab_rows(self, vocab_size: int, tp: int) -> int:
        """Rows of the embedding that one rank holds."""
        return -(-vocab_size // tp)

    def kv_formats(self, model: ModelSpec, settings: Settings) -> KvFormats:
        """Storage of the cache under these settings."""
        raise NotImplementedError

    def budget_bytes(self, total_bytes: int, settings: Settings) -> int:
        """Bytes of a GPU that the engine lets itself use."""
        raise NotImplementedError

    def terms(self, stage: Stage, model: ModelSpec, settings: Settings, gpu: GpuSpec) -> list[Term]:
        """What the budget pays for besides the weights, on one rank."""
        return []

    def request_bytes(self, stage: Stage, settings: Settings, tokens: int) -> int:
        """Bytes reserved on one rank of `stage` for a request of `tokens`, pages included."""
        raise NotImplementedError

    def start_bytes(self, stage: Stage, settings: Settings) -> int:
        """Bytes the engine wants to see before it starts: one request of max_model_len as it checks it."""
        return self.request_bytes(stage, settings, settings.max_model_len)

    def start_words(self, settings: Settings) -> str:
        """What needs `start_bytes`, with its verb, where that is more than `request_bytes` of one longest request."""
        return f"one request of {settings.max_model_len:,} tokens (with what the engine sets aside) needs"

    def pool(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]) -> Pool:
        """The pool that `kv_bytes` (one figure a stage) give."""
        raise NotImplementedError

    def requests_at(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...], tokens: int) -> int:
        """Requests of `tokens` tokens that run at once in one replica."""
        raise NotImplementedError

    def held_at(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...], tokens: int) -> int:
        """Those that the cache holds, whatever `requests_at` makes of the engine's own limit of running requests."""
        return self.requests_at(stages, settings, kv_bytes, tokens)

    def holds(self, stages: tuple[Stage, ...], settings: Settings, kv_bytes: tuple[int, ...]) -> bool:
        """Whether the workload (concurrency x (prompt + output), prefix shared) fits one replica."""
        raise NotImplementedError

    def length_key(self, stages: tuple[Stage, ...], settings: Settings) -> Hashable:
        """What else `max_model_len` decides here besides `terms` and defaults: equal for lengths that one array holds.

        As the length grows it changes, if at all, without ever coming back to a value that it left.
        """
        return None

    def allocation(self, model: ModelSpec, settings: Settings) -> Allocation | None:
        """What the engine lays out at start; None where the pool is all there is to say."""
        return None

    def shared_prefix_tokens(self, model: ModelSpec, settings: Settings) -> int:
        """Tokens of the common prefix that requests really share (whole blocks, where blocks are)."""
        raise NotImplementedError
