"""Paged memory at work: physical block tables, waste against contiguous caches, a prefix stored once, copy on write.

Real tensors are written through real tables, so that sharing and copying are seen in the data: what a sequence reads
back is compared with what was written for it, element by element. Source of the scheme: PagedAttention (arXiv
2309.06180), sections 4.2 to 4.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.probe import extras
from kvplan.probe.receipt import Row, row
from kvplan.units import MIB, human_bytes

if TYPE_CHECKING:
    from kvplan.probe.layout import LayerCache, RankLayout
    from kvplan.probe.session import Session


class BlockPool:
    """Blocks of one layer in one tensor, with a count of the tables that name each.

    Args:
        blocks: how many there are.
        block_size: tokens of a block.
        width: elements of one token's entry.
    """

    def __init__(self, blocks: int, block_size: int, width: int, device: Any) -> None:
        torch = extras.torch()
        self.data = torch.zeros((blocks, block_size, width), dtype=torch.int16, device=device)
        self.block_size = block_size
        self.users = [0] * blocks
        self.copies = 0
        """Blocks copied because a sequence wrote into one that others read too."""
        # Freed blocks come back in another order than they were taken, as in a server that has run for a while.
        self.free = [(7 * i + 3) % blocks for i in range(blocks)] if blocks % 7 else list(range(blocks))

    @property
    def used(self) -> int:
        """Blocks that some table names."""
        return sum(count > 0 for count in self.users)

    def take(self) -> int:
        """A free block."""
        block = self.free.pop()
        self.users[block] = 1
        return block

    def drop(self, table: list[int]) -> None:
        """Give up every block of a table; those that nobody else names are free again."""
        for block in table:
            self.users[block] -= 1
            if not self.users[block]:
                self.free.append(block)
        table.clear()

    def share(self, table: list[int]) -> list[int]:
        """A second table over the same blocks."""
        for block in table:
            self.users[block] += 1
        return list(table)

    def write(self, table: list[int], start: int, entries: Any) -> None:
        """Write entries from token `start` on; blocks that others read too are copied first."""
        token, size = start, self.block_size
        end = start + len(entries)
        while token < end:
            place, offset = divmod(token, size)
            if place == len(table):
                table.append(self.take())
            elif self.users[table[place]] > 1:
                mine = self.take()
                self.data[mine] = self.data[table[place]]
                self.users[table[place]] -= 1
                table[place] = mine
                self.copies += 1
            count = min(size - offset, end - token)
            self.data[table[place], offset : offset + count] = entries[token - start : token - start + count]
            token += count

    def read(self, table: list[int], tokens: int) -> Any:
        """The first `tokens` entries of a sequence, gathered by its table."""
        return self.data[table].flatten(0, 1)[:tokens]


class Workload(NamedTuple):
    """The sequences of the demonstration, in tokens."""

    sequences: int
    longest: int
    """What a contiguous cache has to reserve for each."""
    prefix: int
    """Prompt that all have in common: not a multiple of the block size, so that its last block is shared half full."""
    own: tuple[int, ...]
    """Tokens of each beyond the prefix."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each sequence."""
        return tuple(self.prefix + own for own in self.own)


def workload(block_size: int) -> Workload:
    """Four sequences of unlike lengths with a common prefix of three and a half blocks."""
    prefix = 3 * block_size + block_size // 2
    own = (block_size // 2 + 1, 2 * block_size, 1, block_size + block_size // 4)
    return Workload(4, 12 * block_size, prefix, own)


def measure(session: Session) -> list[Row]:
    """The demonstration on one layer of the model that keeps every token, counted for all layers alike."""
    layer = _plain_layer(session.layout)
    if layer is None:
        note = "no layer of this model keeps an entry for every token"
        return [row("blocks", "block tables", predicted=None, measured=None, unit="bytes", note=note)]
    session.say("blocks")
    size, entry = session.layout.block_size, layer.entry_bytes
    work = workload(size)
    width = -(-entry // 2)  # int16 elements
    blocks = sum(-(-length // size) for length in work.lengths) + work.sequences + 5
    if blocks * size * width * 2 > min(session.limits.max_bytes, 256 * MIB):
        note = f"{human_bytes(blocks * size * width * 2)} of one layer are more than the demonstration takes"
        session.lack(f"blocks: {note}")
        return [row("blocks", "block tables", predicted=None, measured=None, unit="bytes", note=note)]
    scale = session.layout.alike(layer)
    torch = extras.torch()
    torch.manual_seed(session.seed)
    texts = [
        torch.randint(-30000, 30000, (length, width), dtype=torch.int16, device=session.device.torch_device)
        for length in work.lengths
    ]
    for text in texts[1:]:
        text[: work.prefix] = texts[0][: work.prefix]
    rows = _contiguous(session, work, layer, scale)
    separate = BlockPool(blocks, size, width, session.device.torch_device)
    tables: list[list[int]] = []
    for text in texts:
        tables.append([])
        separate.write(tables[-1], 0, text)
    exhibit = {"block_size": size, "lengths": list(work.lengths), "prefix": work.prefix, "separate": tables}
    rows += _paged(separate, tables, texts, work, layer, session.layout, scale)
    shared = BlockPool(blocks, size, width, session.device.torch_device)
    rows += _shared(shared, separate, texts, work, layer, session.layout, scale, exhibit)
    session.exhibits["blocks"] = exhibit
    return rows


def _plain_layer(layout: RankLayout) -> LayerCache | None:
    """The first layer that keeps an entry for every token."""
    return next(
        (x for x in layout.layers if x.streams and all(
            s.window is None and s.ratio == 1 and s.fixed_entries is None for s in x.streams)), None,
    )  # fmt: skip


def _contiguous(session: Session, work: Workload, layer: LayerCache, scale: int) -> list[Row]:
    """A cache that reserves the longest length for every sequence."""
    torch = extras.torch()
    entry = layer.entry_bytes
    cache = torch.empty((work.sequences, work.longest, entry), dtype=torch.uint8, device=session.device.torch_device)
    held = cache.untyped_storage().nbytes()
    used = sum(work.lengths) * entry
    return [
        row(
            "blocks", "contiguous: reserved", predicted=work.sequences * work.longest * entry * scale,
            measured=held * scale, unit="bytes", tolerance=0.0,
            note=f"{work.sequences} sequences of up to {work.longest:,} tokens, {scale} layers",
        ),
        row(
            "blocks", "contiguous: waste", predicted=1 - sum(work.lengths) / (work.sequences * work.longest),
            measured=1 - used / held, unit="ratio", tolerance=1e-9, note="reserved and not used",
        ),
    ]  # fmt: skip


def _planned_blocks(layout: RankLayout, layer: LayerCache, tokens: int) -> int:
    """Pages that the planner counts for a sequence."""
    return layer.streams[0].blocks(tokens, layout.block_size)


def _paged(
    pool: BlockPool, tables: list[list[int]], texts: list[Any], work: Workload, layer: LayerCache, layout: RankLayout,
    scale: int,
) -> list[Row]:  # fmt: skip
    page = layer.page_bytes(layout.block_size) * scale
    predicted = sum(_planned_blocks(layout, layer, n) for n in work.lengths)
    used = sum(work.lengths) * layer.entry_bytes * scale
    return [
        row(
            "blocks", "paged: held", predicted=predicted * page, measured=pool.used * page, unit="bytes", tolerance=0.0,
            note=f"{pool.used} blocks of {layout.block_size} tokens, nothing shared",
        ),
        row(
            "blocks", "paged: waste", predicted=1 - used / (predicted * page), measured=1 - used / (pool.used * page),
            unit="ratio", tolerance=1e-9, note="the last block of each sequence, partly filled",
        ),
        _same("paged: elements read wrong", pool, tables, texts),
    ]  # fmt: skip


def _shared(
    pool: BlockPool, separate: BlockPool, texts: list[Any], work: Workload, layer: LayerCache, layout: RankLayout,
    scale: int, exhibit: dict[str, Any],
) -> list[Row]:  # fmt: skip
    """The prefix once, the others pointing to it; then each goes its own way."""
    page = layer.page_bytes(layout.block_size) * scale
    first: list[int] = []
    pool.write(first, 0, texts[0][: work.prefix])
    tables = [first, *(pool.share(first) for _ in texts[1:])]
    exhibit["shared"] = [list(table) for table in tables]
    whole, once = work.prefix // layout.block_size, pool.used
    rows = [
        row(
            "blocks", "prefix: held", predicted=_planned_blocks(layout, layer, work.prefix) * page,
            measured=once * page, unit="bytes", tolerance=0.0,
            note=f"{work.prefix:,} tokens stored once for {work.sequences} sequences",
        )
    ]  # fmt: skip
    for table, text in zip(tables, texts, strict=True):
        pool.write(table, work.prefix, text[work.prefix :])
    exhibit["diverged"] = [list(table) for table in tables]
    saved = (work.sequences - 1) * whole
    rows += [
        row(
            "blocks", "prefix: saved", predicted=saved * page, measured=(separate.used - pool.used) * page,
            unit="bytes", tolerance=0.0, note="whole blocks of the prefix, once for each further sequence",
        ),
        row(
            "blocks", "copy on write: blocks copied",
            predicted=(work.sequences - 1) * (work.prefix % layout.block_size > 0), measured=pool.copies, unit="count",
            tolerance=0.0, note="the half-full last block, for each sequence that diverges but the last to do so",
        ),
        _same("shared: elements read wrong", pool, tables, texts),
    ]  # fmt: skip
    for table in tables:
        pool.drop(table)
    rows.append(
        row(
            "blocks", "after the last sequence: blocks held", predicted=0, measured=pool.used, unit="count",
            tolerance=0.0, note="",
        )
    )  # fmt: skip
    return rows


def _same(name: str, pool: BlockPool, tables: list[list[int]], texts: list[Any]) -> Row:
    """Elements that a sequence reads differently from what was written for it."""
    wrong = sum(int((pool.read(t, len(x)) != x).sum()) for t, x in zip(tables, texts, strict=True))
    return row("blocks", name, predicted=0, measured=wrong, unit="count", tolerance=0.0, note="by block table")
