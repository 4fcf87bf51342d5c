"""Parquet through pyarrow, where it is installed: a row group a block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from kvplan.errors import InputError
from kvplan.render.rows import CELLS

BINARY = True
"""No text: it goes into files alone."""


def stream(file: BinaryIO, names: Sequence[str], types: Sequence[str], head: Mapping[str, Any]) -> ParquetRows:
    """Rows as they come."""
    return ParquetRows(file, names, types)


class ParquetRows:
    """Writes blocks of columns into a Parquet file.

    Args:
        file: open for writing.
        names: of the columns.
        types: of each, ``int``, ``float``, ``bool`` or ``text``.

    Raises:
        InputError: pyarrow is not installed.
    """

    cells = CELLS
    """Of a block, which becomes a row group."""

    def __init__(self, file: BinaryIO, names: Sequence[str], types: Sequence[str]) -> None:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            raise InputError(
                "Parquet needs pyarrow, which is not installed", where="--format parquet",
                hint="pip install 'kvcache-plan[parquet]', or type --format csv",
            ) from None  # fmt: skip
        kinds = {"int": pyarrow.int64(), "float": pyarrow.float64(), "bool": pyarrow.bool_(), "text": pyarrow.string()}
        self._arrow = pyarrow
        self._schema = pyarrow.schema([(n, kinds[t]) for n, t in zip(names, types, strict=True)])
        self._writer = parquet.ParquetWriter(file, self._schema)

    def write(self, shape: Sequence[int], columns: Sequence[tuple[Any, Any]]) -> None:
        """One block: (values, missing) for each name."""
        arrays = [self._array(shape, *column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        self._writer.write_table(self._arrow.Table.from_arrays(arrays, schema=self._schema))

    def _array(self, shape: Sequence[int], values: Any, missing: Any, kind: Any) -> Any:
        import numpy

        if missing is True or values is None:
            return self._arrow.nulls(int(numpy.prod(shape, dtype=int)), kind)
        flat = numpy.broadcast_to(values, shape).ravel()
        mask = None if missing is False else numpy.broadcast_to(missing, shape).ravel()
        return self._arrow.array(flat, mask=mask).cast(kind)

    def close(self) -> None:
        """Write what stands at the end of the file."""
        self._writer.close()
