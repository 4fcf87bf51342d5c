"""Small runnable layers of each kind, for correctness: the same result with a cache and without.

Weights are random and the hidden width is small; heads and head sizes are the model's own. Every class offers
`recompute` (all outputs from all inputs, no cache), `decode` (token by token, with the entries or the state that the
planner counts), and one step of each at a given length, for counting work.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import TYPE_CHECKING, Any, cast

from kvplan.probe import extras

if TYPE_CHECKING:
    from kvplan.spec.kind import CacheKind, Stream

WIDTH = 96
"""Hidden size of the random layers: the cache does not depend on it."""


class Mixer:
    """One layer on one device, in one precision."""

    def __init__(self, weights: dict[str, Any]) -> None:
        self.weights = weights

    def to(self, dtype: Any) -> Mixer:
        """The same layer in another precision."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.weights = {name: value.to(dtype) for name, value in self.weights.items()}
        return other

    @property
    def num_bytes(self) -> int:
        """Of its weights as they are drawn, in float64, and of a copy in the precision that runs."""
        return sum(2 * 8 * weight.numel() for weight in self.weights.values())

    def scores_bytes(self, tokens: int) -> int:
        """Of all `tokens` against all of them in float64: scores, their softmax and what is masked."""
        return 3 * 8 * int(getattr(self, "query_heads", getattr(self, "heads", 1))) * tokens * tokens

    def inputs(self, tokens: int, seed: int) -> Any:
        """Hidden states ``[tokens, WIDTH]``, the same whatever the precision."""
        torch = extras.torch()
        some = next(iter(self.weights.values()))
        generator = torch.Generator(device="cpu").manual_seed(seed)
        drawn = torch.randn((tokens, WIDTH), generator=generator, dtype=torch.float64)
        return drawn.to(device=some.device, dtype=some.dtype)

    def proof_tokens(self, quick: bool) -> int:
        """Steps that are compared."""
        return 40 if quick else 96

    def recompute(self, x: Any) -> Any:
        """All outputs, everything computed from `x` at once."""
        raise NotImplementedError

    def decode(self, x: Any, block_size: int) -> Any:
        """The same outputs, one token at a time."""
        raise NotImplementedError

    def cached_step(self, tokens: int) -> Callable[[], Any]:
        """Attention of one new token over `tokens` cached ones, ready to run."""
        raise NotImplementedError

    def uncached_step(self, tokens: int) -> Callable[[], Any]:
        """The same token without a cache: attention of all `tokens` over all of them, ready to run."""
        raise NotImplementedError


class PagedRows:
    """Entries of one stream behind a block table; with a window, in a ring of exactly that many entries."""

    def __init__(self, stream: Stream, tokens: int, block_size: int, like: Any) -> None:
        torch = extras.torch()
        self.limit = int(stream.entries(tokens))
        """Entries that the planner counts for a sequence of `tokens`: the room there is."""
        self.block_size = block_size
        self.window, self.chunked = stream.window, stream.chunked
        blocks = -(-self.limit // block_size)
        self.table = [(i * 5 + 2) % blocks for i in range(blocks)] if blocks % 5 else list(range(blocks))
        self.data = torch.full(
            (blocks, block_size, stream.heads, stream.head_dim), float("nan"), dtype=like.dtype, device=like.device
        )
        self.count = 0

    def append(self, entry: Any) -> None:
        """Store the entry of the next token; a full ring forgets its oldest."""
        place = self.count % self.limit if self.window else self.count
        block, slot = divmod(place, self.block_size)
        self.data[self.table[block], slot] = entry
        self.count += 1

    def rows(self) -> Any:
        """``[entries, heads, head_dim]`` that the newest token may read, in any order."""
        held = min(self.count, self.limit)
        found = self.data[self.table].flatten(0, 1)
        if self.chunked and self.window:
            start = (self.count - 1) // self.window * self.window
            return found[[i % self.limit for i in range(start, self.count)]]
        return found[:held]


def rotate(rows: Any, positions: Any) -> Any:
    """Rotary positions on ``[tokens, heads, d]``. Source: RoFormer (arXiv 2104.09864), section 3.2.2."""
    torch = extras.torch()
    half = rows.shape[-1] // 2
    if not half:
        return rows
    steps = torch.arange(half, device=rows.device, dtype=rows.dtype)
    angles = positions.to(rows.dtype)[:, None, None] * 10000.0 ** (-steps / half)
    first, second, rest = rows[..., :half], rows[..., half : 2 * half], rows[..., 2 * half :]
    turned = (first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos(), rest)
    return torch.cat(turned, -1)


def attend(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """Grouped-query attention: ``[n, heads, d]`` over ``[m, kv_heads, d]``; `mask` ``[n, m]`` is True where seen.

    Written out, for decoding; `whole` is torch's, so that the two test each other.
    """
    torch = extras.torch()
    kv_heads, queries = k.shape[1], len(q)
    folded = q.unflatten(1, (kv_heads, -1)).permute(1, 2, 0, 3).flatten(1, 2)  # kv heads, group x n, d
    scores = torch.matmul(folded, k.permute(1, 2, 0)) / sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.unflatten(1, (-1, queries)).masked_fill(~mask, float("-inf")).flatten(1, 2)
    out = torch.matmul(scores.softmax(-1), v.permute(1, 0, 2))
    return out.unflatten(1, (-1, queries)).permute(2, 0, 1, 3).flatten(1)


def whole(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """The same by torch's own attention, which folds query heads onto KV heads itself."""
    attention = extras.torch().nn.functional.scaled_dot_product_attention
    heads_first = (x.transpose(0, 1)[None] for x in (q, k, v))
    found = attention(*heads_first, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    return found[0].transpose(0, 1).flatten(1)


class SoftmaxMixer(Mixer):
    """Full, sliding or chunked attention over K and V."""

    def __init__(self, kind: CacheKind, draw: Callable[..., Any], streams: tuple[Stream, ...] | None = None) -> None:
        self.key, self.value = (streams or kind.streams())[:2]
        self.window = cast("int | None", getattr(kind, "window", None))
        """Of the layer, as its config has it: what recomputation sees. The ring holds what the streams say."""
        self.chunked = kind.kind == "chunked"
        self.query_heads = int(cast("Any", kind).query_heads)
        super().__init__(
            {
                "q": draw(WIDTH, self.query_heads * self.key.head_dim),
                "k": draw(WIDTH, self.key.heads * self.key.head_dim),
                "v": draw(WIDTH, self.value.heads * self.value.head_dim),
            }
        )

    def proof_tokens(self, quick: bool) -> int:
        """Past the window, half as long again."""
        least = super().proof_tokens(quick)
        return max(least, self.window * 3 // 2) if self.window else least

    def _qkv(self, x: Any, positions: Any) -> tuple[Any, Any, Any]:
        w = self.weights
        q = rotate((x @ w["q"]).unflatten(-1, (self.query_heads, -1)), positions)
        k = rotate((x @ w["k"]).unflatten(-1, (self.key.heads, -1)), positions)
        return q, k, (x @ w["v"]).unflatten(-1, (self.value.heads, -1))

    def _mask(self, tokens: int, device: Any) -> Any:
        torch = extras.torch()
        at = torch.arange(tokens, device=device)
        seen = at[:, None] >= at[None, :]
        if self.window and self.chunked:
            return seen & (at[:, None] // self.window == at[None, :] // self.window)
        return seen & (at[:, None] - at[None, :] < self.window) if self.window else seen

    def recompute(self, x: Any) -> Any:
        positions = extras.torch().arange(len(x), device=x.device)
        return whole(*self._qkv(x, positions), self._mask(len(x), x.device))

    def decode(self, x: Any, block_size: int) -> Any:
        torch = extras.torch()
        keys = PagedRows(self.key, len(x), block_size, x)
        values = PagedRows(self.value, len(x), block_size, x)
        found = []
        for i in range(len(x)):
            q, k, v = self._qkv(x[i : i + 1], torch.tensor([i], device=x.device))
            keys.append(k[0])
            values.append(v[0])
            found.append(attend(q, keys.rows(), values.rows()))
        return torch.cat(found)

    def cached_step(self, tokens: int) -> Callable[[], Any]:
        q, k, v = self._qkv(self.inputs(tokens, 3), extras.torch().arange(tokens, device=self.weights["q"].device))
        return lambda: attend(q[-1:], k, v)

    def uncached_step(self, tokens: int) -> Callable[[], Any]:
        x = self.inputs(tokens, 3)
        q, k, v = self._qkv(x, extras.torch().arange(tokens, device=x.device))
        mask = self._mask(tokens, x.device)
        return lambda: attend(q, k, v, mask)


class LatentMixer(Mixer):
    """Latent attention: decode works on the stored row, recomputation on keys and values rebuilt from it.

    Source: DeepSeek-V2 paper (arXiv 2405.04434), section 2.1.2.
    """

    def __init__(self, kind: Any, draw: Callable[..., Any]) -> None:
        self.stream = kind.streams()[0]
        self.heads, self.rank, self.rope = kind.query_heads, kind.kv_lora_rank, kind.qk_rope_head_dim
        self.nope, self.dim_v = kind.qk_nope_head_dim, kind.v_head_dim
        super().__init__(
            {
                "q": draw(WIDTH, self.heads * (self.nope + self.rope)), "row": draw(WIDTH, self.rank + self.rope),
                "up_k": draw(self.rank, self.heads * self.nope), "up_v": draw(self.rank, self.heads * self.dim_v),
            }
        )  # fmt: skip

    def _project(self, x: Any, positions: Any) -> tuple[Any, Any, Any]:
        """Queries without and with positions, and the latent row."""
        torch = extras.torch()
        q = (x @ self.weights["q"]).unflatten(-1, (self.heads, -1))
        row = (x @ self.weights["row"]).unsqueeze(1)
        row = torch.cat((row[..., : self.rank], rotate(row[..., self.rank :], positions)), -1)
        return q[..., : self.nope], rotate(q[..., self.nope :], positions), row

    def _scale(self) -> float:
        return 1 / sqrt(self.nope + self.rope)

    def recompute(self, x: Any) -> Any:
        torch = extras.torch()
        nope, rope, row = self._project(x, torch.arange(len(x), device=x.device))
        latent = row[:, 0, : self.rank]
        k = torch.cat(
            ((latent @ self.weights["up_k"]).unflatten(-1, (self.heads, -1)),
             row[..., self.rank :].expand(-1, self.heads, -1)), -1,
        )  # fmt: skip
        v = (latent @ self.weights["up_v"]).unflatten(-1, (self.heads, -1))
        mask = torch.ones((len(x), len(x)), dtype=torch.bool, device=x.device).tril()
        return whole(torch.cat((nope, rope), -1), k, v, mask)

    def _absorbed(self, nope: Any, rope: Any, rows: Any) -> Any:
        """Attention of one token over ``[entries, rank + rope]`` (weights of K and V around it)."""
        torch = extras.torch()
        up_k = self.weights["up_k"].unflatten(-1, (self.heads, -1))
        inner = torch.cat((torch.einsum("hn,rhn->hr", nope[0], up_k), rope[0]), -1)
        out = self._core(inner, rows)
        return torch.einsum("hr,rhv->hv", out, self.weights["up_v"].unflatten(-1, (self.heads, -1))).flatten()[None]

    def _core(self, inner: Any, rows: Any) -> Any:
        scores = inner @ rows.T * self._scale()
        return scores.softmax(-1) @ rows[:, : self.rank]

    def decode(self, x: Any, block_size: int) -> Any:
        torch = extras.torch()
        cache = PagedRows(self.stream, len(x), block_size, x)
        found = []
        for i in range(len(x)):
            nope, rope, row = self._project(x[i : i + 1], torch.tensor([i], device=x.device))
            cache.append(row[0])
            found.append(self._absorbed(nope, rope, cache.rows()[:, 0]))
        return torch.cat(found)

    def cached_step(self, tokens: int) -> Callable[[], Any]:
        torch = extras.torch()
        x = self.inputs(tokens, 3)
        rows = self._project(x, torch.arange(tokens, device=x.device))[2][:, 0].contiguous()
        inner = rows.new_ones((self.heads, self.rank + self.rope))
        return lambda: self._core(inner, rows)

    def uncached_step(self, tokens: int) -> Callable[[], Any]:
        x = self.inputs(tokens, 3)
        inner = x.new_ones((tokens * self.heads, self.rank + self.rope))
        rows = x.new_ones((tokens, self.rank + self.rope))
        return lambda: self._core(inner, rows)
