"""KV connectors that turn the hybrid cache manager off, so that windowed layers hold every token.

Source: vLLM 0.11.0 to 0.33.0 ``vllm/config/vllm.py`` (0.11: ``vllm/config/__init__.py``), which releases up to 0.21 do
for every connector, and since then for those without ``SupportsHMA``
(``vllm/distributed/kv_transfer/kv_connector/v1/``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.engines.base import Settings
    from kvplan.engines.vllm.versions import Rules, Version

BY_CONNECTOR: Version = (0, 22, 0)
"""From here the connector decides."""
EVENTS_ALLOWED: Version = (0, 20, 0)
"""From here ``--kv-events-config`` leaves the manager on."""
HYBRID: dict[str, Version] = {
    "DecodeBenchConnector": (0, 21, 0), "ExampleHiddenStatesConnector": (0, 22, 0), "MooncakeConnector": (0, 20, 0),
    "MooncakeStoreConnector": (0, 22, 0), "MultiConnector": (0, 21, 0), "NixlConnector": (0, 18, 0),
    "NixlPullConnector": (0, 24, 0), "NixlPushConnector": (0, 24, 0), "OffloadingConnector": (0, 21, 0),
    "SimpleCPUOffloadConnector": (0, 19, 0), "HiSparseConnector": (0, 30, 0), "MoRIIOConnector": (0, 30, 0),
    "UMBPStoreConnector": (0, 33, 0),
}  # fmt: skip
"""Connector -> the first release in which it supports the manager (``SupportsHMA``)."""
OFFLOADING = {"native": "OffloadingConnector", "lmcache": "LMCacheMPConnector"}
"""What ``--kv-offloading-backend`` stands for; neither of LMCache's supports the manager."""
_FLAG = "--kv-transfer-config"


def turned_off_by(settings: Settings, rules: Rules) -> str:
    """What turns the hybrid manager off, as somebody would call it; empty: nothing does.

    Raises:
        InputError: ``kv_transfer_config`` is no object.
    """
    extra = settings.extra
    if extra.get("kv_events_config") is not None and rules.version < EVENTS_ALLOWED:
        return "--kv-events-config"
    names = _connectors(extra)
    if names and rules.version < BY_CONNECTOR:
        return f"a KV connector ({names[0]})"
    other = [name for name in names if rules.version < HYBRID.get(name, (1 << 16, 0, 0))]
    return f"the KV connector {other[0]}" if other else ""


def _connectors(extra: dict[str, Any]) -> list[str]:
    """Names of the connectors, those inside of a ``MultiConnector`` after it."""
    if extra.get("kv_offloading_size"):
        return [OFFLOADING.get(str(extra.get("kv_offloading_backend") or "native"), "")]
    config = extra.get("kv_transfer_config")
    if config is None:
        return []
    found = _object(config)
    name = found.get("kv_connector")
    names = [str(name)] if name else []
    inside = found.get("kv_connector_extra_config")
    children = inside.get("connectors") if name == "MultiConnector" and isinstance(inside, dict) else ()
    for child in children if isinstance(children, list) else ():
        names += [str(child.get("kv_connector"))] if isinstance(child, dict) else []
    return names


def _object(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        import json  # only where there is something to read

        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, dict):
        raise InputError("not a JSON object", where=_FLAG, hint='for example \'{"kv_connector": "NixlConnector"}\'')
    return value
