"""Azure LLM inference traces of 2023 and 2024: ``TIMESTAMP,ContextTokens,GeneratedTokens``.

Source: Azure/AzurePublicDataset, ``AzureLLMInferenceDataset2023.md`` and ``2024.md``. Dates have seven digits of
a second; nothing is said of shared prefixes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.simulate.traces import table

if TYPE_CHECKING:
    from kvplan.simulate.trace import Trace
    from kvplan.simulate.traces import Reading
    from kvplan.simulate.traces.lines import Source


def read(source: Source, reading: Reading) -> Trace:
    """The trace."""
    return table.read(source, reading, format="azure")
