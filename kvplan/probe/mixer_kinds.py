"""Layers of the rarer kinds for the proof that a cache changes no result, and which layer stands for which kind.

Recurrences with their convolution and shifted tokens, convolutions alone, encoder rows, caches of earlier layers, and
compressed latent attention. Gates and norms of single models are left out: they keep nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import TYPE_CHECKING, Any, cast

from kvplan.probe import extras
from kvplan.probe.mixers import WIDTH, LatentMixer, Mixer, PagedRows, SoftmaxMixer, attend, rotate, whole

if TYPE_CHECKING:
    from kvplan.spec.kind import CacheKind, State, Stream

_CHANNELS = 256
"""Of a state at most: channels do not meet."""


class Columns:
    """The last inputs of a causal convolution, exactly as many as the planner counts."""

    def __init__(self, columns: int, like: Any) -> None:
        self.kept = like.new_zeros((columns, like.shape[-1]))

    def step(self, row: Any, weights: Any) -> Any:
        """The output at `row` ``[channels]``, which is kept for the next ones; `weights` ``[kernel, channels]``."""
        seen = extras.torch().cat((self.kept, row[None]))
        self.kept = seen[1:]
        return (seen * weights).sum(0)


def convolved(x: Any, weights: Any) -> Any:
    """All outputs of the causal convolution of ``[tokens, channels]`` with ``[kernel, channels]``.

    Products and a sum: torch's own convolution rounds to 19 bits on some cards.
    """
    padded = extras.torch().nn.functional.pad(x, (0, 0, len(weights) - 1, 0))
    return (padded.unfold(0, len(weights), 1) * weights.T).sum(-1)


class RecurrentMixer(Mixer):
    """A recurrence with a decaying outer-product state, against its quadratic form.

    ``S_t = a_t S_(t-1) + k_t v_t``, ``y_t = q_t S_t`` is ``y_t = sum over s <= t of (a_(s+1) ... a_t)(q_t k_s) v_s``.
    Source: Mamba-2 (arXiv 2405.21060), section 3: the two forms of state space duality. The state's shape is the
    planner's. Before it comes the kind's convolution, over what enters the state; tokens that are shifted (RWKV, arXiv
    2404.05892) are mixed with the one before.
    """

    def __init__(self, kind: Any, states: dict[str, State], draw: Callable[..., Any]) -> None:
        state, conv = states["recurrent"], states.get("conv")
        self.channels, self.columns = min(state.channels, _CHANNELS), state.columns
        self.shifts = states["shift"].columns if "shift" in states else 0
        self.conv = conv.columns if conv is not None else 0
        weights = {
            "q": draw(WIDTH, self.columns), "k": draw(WIDTH, self.columns), "v": draw(WIDTH, self.channels),
            "a": draw(WIDTH, 1),
        }  # fmt: skip
        weights |= {f"shift{i}": draw(2, WIDTH) for i in range(self.shifts)}
        if conv is not None:
            weights["conv"] = draw(kind.conv_kernel, self.channels)
        super().__init__(weights)

    def _parts(self, x: Any) -> tuple[Any, Any, Any, Any]:
        w = self.weights
        return x @ w["q"], x @ w["k"], x @ w["v"], (x @ w["a"]).sigmoid()[:, 0]

    def recompute(self, x: Any) -> Any:
        torch = extras.torch()
        for i in range(self.shifts):
            x = convolved(x, self.weights[f"shift{i}"])
        q, k, v, a = self._parts(x)
        if "conv" in self.weights:
            v = convolved(v, self.weights["conv"])
        logs = a.log().cumsum(0)
        decay = (logs[:, None] - logs[None, :]).tril()
        weights = (q @ k.T) * decay.exp() * torch.ones_like(decay).tril()
        return weights @ v

    def decode(self, x: Any, block_size: int) -> Any:
        torch = extras.torch()
        state = x.new_zeros((self.columns, self.channels))
        before = [Columns(1, x) for _ in range(self.shifts)]
        inputs = Columns(self.conv, x.new_zeros((1, self.channels)))
        found = []
        for row in x:
            for i, kept in enumerate(before):
                row = kept.step(row, self.weights[f"shift{i}"])
            q, k, v, a = (part[0] for part in self._parts(row[None]))
            if "conv" in self.weights:
                v = inputs.step(v, self.weights["conv"])
            state = a * state + torch.outer(k, v)
            found.append(q @ state)
        return torch.stack(found)


class ConvMixer(Mixer):
    """A causal convolution alone, whose last inputs are kept."""

    def __init__(self, kind: Any, state: State, draw: Callable[..., Any]) -> None:
        self.columns, channels = state.columns, min(state.channels, _CHANNELS)
        super().__init__({"in": draw(WIDTH, channels), "conv": draw(kind.conv_kernel, channels)})

    def recompute(self, x: Any) -> Any:
        return convolved(x @ self.weights["in"], self.weights["conv"])

    def decode(self, x: Any, block_size: int) -> Any:
        rows = x @ self.weights["in"]
        kept = Columns(self.columns, rows)
        return extras.torch().stack([kept.step(row, self.weights["conv"]) for row in rows])


class CrossMixer(Mixer):
    """Attention over the output of an encoder, whose K and V are kept once for the sequence."""

    def __init__(self, kind: Any, draw: Callable[..., Any]) -> None:
        self.key, self.value = kind.streams()[:2]
        self.query_heads, self.positions = int(kind.query_heads), int(kind.encoder_tokens)
        super().__init__(
            {
                "q": draw(WIDTH, self.query_heads * self.key.head_dim),
                "k": draw(WIDTH, self.key.heads * self.key.head_dim),
                "v": draw(WIDTH, self.value.heads * self.value.head_dim), "encoder": draw(self.positions, WIDTH),
            }
        )  # fmt: skip

    def scores_bytes(self, tokens: int) -> int:
        """Of all `tokens` against all positions."""
        return 3 * 8 * self.query_heads * tokens * self.positions

    def _kv(self, rows: Any) -> tuple[Any, Any]:
        w = self.weights
        return (rows @ w["k"]).unflatten(-1, (self.key.heads, -1)), (rows @ w["v"]).unflatten(
            -1, (self.value.heads, -1)
        )

    def _q(self, x: Any) -> Any:
        return (x @ self.weights["q"]).unflatten(-1, (self.query_heads, -1))

    def recompute(self, x: Any) -> Any:
        return whole(self._q(x), *self._kv(self.weights["encoder"]), None)

    def decode(self, x: Any, block_size: int) -> Any:
        keys, values = (PagedRows(s, len(x), block_size, x) for s in (self.key, self.value))
        for row in self.weights["encoder"]:
            k, v = self._kv(row[None])
            keys.append(k[0])
            values.append(v[0])
        return extras.torch().cat([attend(self._q(row[None]), keys.rows(), values.rows()) for row in x])


class SharedMixer(SoftmaxMixer):
    """Attention over the cache of an earlier layer: K and V come from what that layer saw, queries from its own."""

    def __init__(self, kind: Any, draw: Callable[..., Any]) -> None:
        super().__init__(kind, draw, kind.kv_streams(window=kind.window))
        self.weights["later"] = draw(WIDTH, WIDTH)

    def _qkv(self, x: Any, positions: Any) -> tuple[Any, Any, Any]:
        _, k, v = super()._qkv(x, positions)
        q, _, _ = super()._qkv(x @ self.weights["later"], positions)
        return q, k, v


class CompressedMixer(Mixer):
    """A window of recent rows and one entry for `ratio` tokens, each K and V at once, under one softmax.

    An entry is the sum of its tokens' rows weighted by a softmax over their gates; the running sums of the tokens
    whose entry is not yet complete are kept beside the cache. Source: DeepSeek-V4 configuration
    (``compress_ratios``), as `kvplan.cache.compressed` counts it; entries do not overlap here.
    """

    def __init__(self, kind: Any, draw: Callable[..., Any]) -> None:
        streams = {s.name: s for s in kind.streams()}
        self.recent: Stream = streams["window"]
        self.entries: Stream | None = streams.get("compressed")
        self.query_heads, self.dim, self.window = int(kind.query_heads), int(kind.head_dim), int(kind.window)
        self.ratio = int(kind.ratio or 1)
        weights = {"q": draw(WIDTH, self.query_heads * self.dim), "row": draw(WIDTH, self.dim)}
        if self.entries is not None:
            weights |= {"packed": draw(WIDTH, self.dim), "gate": draw(WIDTH, 1)}
        super().__init__(weights)

    def proof_tokens(self, quick: bool) -> int:
        """Past the window and over several entries, the last one not complete."""
        return max(super().proof_tokens(quick), self.window * 3 // 2, 3 * self.ratio) + self.ratio // 2

    def _rows(self, x: Any, positions: Any) -> tuple[Any, Any]:
        q = rotate((x @ self.weights["q"]).unflatten(-1, (self.query_heads, -1)), positions)
        return q, rotate((x @ self.weights["row"])[:, None], positions)

    def recompute(self, x: Any) -> Any:
        torch = extras.torch()
        at = torch.arange(len(x), device=x.device)
        q, rows = self._rows(x, at)
        seen = (at[:, None] >= at[None, :]) & (at[:, None] - at[None, :] < self.window)
        ratio = self.ratio
        if self.entries is not None and (count := len(x) // ratio):
            packed, gate = (x[: count * ratio] @ self.weights[n] for n in ("packed", "gate"))
            weights = gate.unflatten(0, (count, ratio)).softmax(1)
            rows = torch.cat(((packed.unflatten(0, (count, ratio)) * weights).sum(1)[:, None], rows))
            done = (torch.arange(count, device=x.device) + 1) * ratio
            seen = torch.cat((at[:, None] + 1 >= done[None, :], seen), 1)
        return whole(q, rows, rows, seen)

    def decode(self, x: Any, block_size: int) -> Any:
        torch = extras.torch()
        recent = PagedRows(self.recent, len(x), block_size, x)
        packed = PagedRows(self.entries, len(x), block_size, x) if self.entries is not None else None
        total, weight, found = x.new_zeros(self.dim), x.new_zeros(1), []
        for i in range(len(x)):
            q, row = self._rows(x[i : i + 1], torch.tensor([i], device=x.device))
            recent.append(row[0])
            rows = [recent.rows()]
            if packed is not None:
                gate = (x[i] @ self.weights["gate"]).exp()
                total, weight = total + gate * (x[i] @ self.weights["packed"]), weight + gate
                if (i + 1) % self.ratio == 0:
                    packed.append((total / weight)[None])
                    total, weight = x.new_zeros(self.dim), x.new_zeros(1)
                rows.append(packed.rows())
            joined = torch.cat(rows)
            found.append(attend(q, joined, joined))
        return torch.cat(found)


def build_mixer(kind: CacheKind, seed: int, device: Any) -> Mixer | None:
    """A runnable layer of this kind with the model's heads; None where it keeps nothing, or is not modelled here."""
    torch = extras.torch()
    generator = torch.Generator(device="cpu").manual_seed(seed)

    def draw(rows: int, columns: int) -> Any:
        drawn = torch.randn((rows, columns), generator=generator, dtype=torch.float64)
        return (drawn / sqrt(rows)).to(device)

    own = {"mla": LatentMixer, "compressed": CompressedMixer, "cross": CrossMixer, "shared": SharedMixer}
    if (made := own.get(kind.kind)) is not None:
        return cast("Any", made)(kind, draw)  # type: ignore[no-any-return]
    streams = kind.streams()
    if len(streams) >= 2 and [s.name for s in streams[:2]] == ["k", "v"] and streams[0].fixed_entries is None:
        return SoftmaxMixer(kind, draw)
    states = {s.name: s for s in kind.states()}
    if "recurrent" in states:
        return RecurrentMixer(kind, states, draw)
    return ConvMixer(kind, states["conv"], draw) if "conv" in states else None
