"""How many bytes of a GPU vLLM spends on other things than the cache, by version.

``available = ceil(total x utilisation) - weights - activation - outside torch - graphs``. The terms
follow from the structure of the model and from what the profiling run of that version does; the
weights themselves are the planner's. What no version number decides (which sampler was importable,
whether the compile cache was warm, how far an estimate of graphs is off) is in the bounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.engines.base import Settings, Stage, Term
from kvplan.engines.vllm import budget_activation as activation
from kvplan.engines.vllm import budget_outside as outside
from kvplan.engines.vllm import budget_versions, speculation
from kvplan.engines.vllm import budget_weights as loaded
from kvplan.engines.vllm.budget_sparse import loaded_term, sparse_workspace
from kvplan.engines.vllm.runner import runner as which_runner
from kvplan.units import GIB, MIB

if TYPE_CHECKING:
    from kvplan.spec.gpu import GpuSpec
    from kvplan.spec.model import ModelSpec

SETTINGS = frozenset(
    {
        "flashinfer_sampler", "model_runner", "compile_cache", "language_model_only", "skip_mm_profiling",
        "max_cudagraph_capture_size", "enable_lora", "max_loras", "max_lora_rank",
    }
)  # fmt: skip
"""Engine settings (in `Settings.extra`) that the budget reads; all may be absent."""

MARGIN_BYTES = 128 * MIB
"""Added to the upper bound of the peak: small tensors that no rule counts."""
V2_KEPT_QUARTERS = 17
"""The V2 runner keeps, per sequence and vocabulary element, an int32 count and two bits: 4.25 bytes."""


def terms(stage: Stage, model: ModelSpec, settings: Settings, gpu: GpuSpec, block_size: int) -> list[Term]:
    """Every term of one rank besides the weights of the checkpoint.

    Args:
        block_size: tokens of a block of attention as it is laid out.
    """
    draft = speculation.of(settings)
    ahead = speculation.tokens_ahead(draft, len(model.draft_layers)) if draft else 0
    runner = which_runner(model, settings, budget_versions.version_of(settings))
    rows, _ = activation.rows_and_tokens(settings)
    path = budget_versions.sampler(settings, gpu, runner, rows)
    found = [
        loaded.rope_term(stage, model, settings),
        loaded.padding_term(stage, model, settings, gpu),
        loaded.encoder_left_out(stage, model, settings),
        loaded.lora_term(stage, model, settings),
        loaded_term(stage, model, settings, bool(draft)),
        activation_term(stage, model, settings, gpu, runner, path, bool(draft), block_size),
        kept_term(stage, model, settings, gpu, runner, path),
        fragments_term(stage, model, settings),
        outside.graph_term(stage, settings, gpu, runner, ahead),
        outside.outside_term(settings, gpu),
    ]
    return [term for term in found if term is not None]


def activation_term(
    stage: Stage, model: ModelSpec, settings: Settings, gpu: GpuSpec, runner: int, path: budget_versions.Sampler,
    drafts: bool, block_size: int,
) -> Term:  # fmt: skip
    """The peak of the profiling run: the largest of sampler, forward pass, encoder and compilation."""
    sampler = activation.sampler_peak(stage, model, settings, path, drafts)
    workspace = _workspace(stage, model, settings, gpu)
    sparse = sparse_workspace(stage, settings, gpu)
    more = workspace.beside + sparse.transient + (0 if workspace_kept(settings) else workspace.shared)
    forward = _plus(activation.forward_peak(stage, model, settings, block_size), more)
    encoder, held = activation.encoder_peaks(stage, model, settings)
    sampler, forward = _plus(sampler, held if sampler.bytes else 0), _plus(forward, held)
    compiling = activation.compile_peak(stage, model, settings, vocab_rows(model, settings))
    parts = (sampler, forward, encoder, compiling)
    widest = max(parts, key=lambda p: p.bytes)
    cublas = activation.cublas_bytes(gpu)
    low, high = max(p.low for p in parts), max(p.high for p in parts)
    source = f"the {widest.name} is the peak; {_inputs(model, settings, runner, path, widest is sampler)}"
    size, least, most = cublas + widest.bytes, cublas + low * 9 // 10, cublas + high + MARGIN_BYTES
    return Term("activation peak", "activation", size, least, most, "modelled", source)


def _inputs(model: ModelSpec, settings: Settings, runner: int, path: budget_versions.Sampler, said: bool) -> str:
    """What the peak was reckoned from, each thing once.

    Args:
        said: the sampler's path has been named.
    """
    rows, batched = activation.rows_and_tokens(settings)
    parts = [] if f"V{runner} runner" in path.path else [f"V{runner} runner"]
    parts += [] if said else [f"sampler path: {path.path}"]
    limit = settings.max_num_seqs or 0
    what = "max_num_seqs" if rows == limit else f"max_num_seqs {limit:,}"
    figures = f"{rows:,} rows ({what}), max_num_batched_tokens {batched:,}, vocabulary {model.vocab_size:,}"
    return "; ".join([", ".join(parts), figures] if parts else [figures])


def kept_term(
    stage: Stage, model: ModelSpec, settings: Settings, gpu: GpuSpec, runner: int, path: budget_versions.Sampler
) -> Term:
    """Buffers that the profile leaves behind: sampler states, rows of logits, the experts' workspace."""
    what, size = [], 0
    if stage.last and runner == 2:
        size += V2_KEPT_QUARTERS * (settings.max_num_seqs or 0) * model.vocab_size // 4
        what.append(f"4.25 B x {settings.max_num_seqs or 0:,} sequences x {model.vocab_size:,} tokens (V2 runner)")
    if stage.last and path.kept_rows:
        size += 4 * path.kept_rows * model.vocab_size
        what.append(f"{path.kept_rows} rows of fp32 logits")
    if workspace_kept(settings):
        experts = _workspace(stage, model, settings, gpu).shared
        sparse = sparse_workspace(stage, settings, gpu).workspace
        workspace = max(experts, sparse)
        size += workspace
        if workspace:
            whose = "the experts" if experts >= sparse else "sparse attention"
            what.append(f"workspace of {whose} {workspace / GIB:.2f} GiB")
    source = "; ".join(what) or "none in this version"
    return Term("buffers kept", "activation", size, size * 9 // 10, size * 11 // 10, "modelled", source)


def fragments_term(stage: Stage, model: ModelSpec, settings: Settings) -> Term | None:
    """0.27 to 0.30 count a freed block of which a small part is in use again as consumed; None: other versions.

    After a cold start that block is the copy of the embedding (0.31 releases it: ``_scoped_allocator_max_split``
    around the profile).
    """
    version = budget_versions.version_of(settings)
    if not budget_versions.CONSUMED_FROM_DEVICE <= version < budget_versions.FRAGMENTS_RELEASED:
        return None
    compiling = activation.compile_peak(stage, model, settings, vocab_rows(model, settings))
    source = "a block freed after a cold compilation and partly used again; 0 with a warm compile cache"
    return Term("allocator fragments", "activation", compiling.bytes, 0, compiling.high, "modelled", source)


def _workspace(stage: Stage, model: ModelSpec, settings: Settings, gpu: GpuSpec) -> activation.Workspace:
    return activation.expert_workspace(stage, model, settings, gpu, loaded.expert_format(model, settings))


def workspace_kept(settings: Settings) -> bool:
    """Whether the experts' workspace outlives the profile, and so adds to whatever is the peak."""
    return budget_versions.version_of(settings) >= budget_versions.EXPERT_WORKSPACE_KEPT


def vocab_rows(model: ModelSpec, settings: Settings) -> int:
    """Rows of the embedding on one rank, padding to 64 included."""
    return -(-(-(-model.vocab_size // 64) * 64) // settings.tensor_parallel_size)


def _plus(peak: activation.Peak, more: int) -> activation.Peak:
    """A peak with something else alive beside it."""
    return activation.Peak(peak.name, peak.bytes + more, peak.low, peak.high + more)
