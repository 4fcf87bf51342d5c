"""What a command line or a manifest says, as settings of a plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.errors import KvplanError

if TYPE_CHECKING:
    from kvplan.engines.model_changes import ModelChanges, Quantization
    from kvplan.spec.model import ModelSpec

SAME: tuple[tuple[str, ...], ...] = (
    ("max_model_len", "ctx_size", "num_ctx"),
    ("kv_cache_dtype", "cache_type_k", "cache_type_v"),
    ("parallel", "num_parallel"),
    ("gpu_memory_utilization", "kv_cache_memory_bytes"),
    ("enable_prefix_caching", "force_prefix_caching"),
)
"""Settings that say the same thing in several ways: one of them from kvplan's flags replaces the others. K and V
types do not replace each other."""


LINE = "command line"
"""The source of a pasted line."""


def at_source(error: KvplanError, source: str) -> KvplanError:
    """The same error, which also says in which file it is."""
    if source != LINE and not (error.where or "").startswith(source):
        error.where = f"{source}: {error.where}" if error.where else source
    return error


class Command(NamedTuple):
    """One start of an engine."""

    engine: str
    """``name`` or ``name@version``."""
    model: str
    """What `kvplan.sources.find_model` takes."""
    source: str
    """``command line``, or the file and what was picked in it."""
    settings: dict[str, Any]
    typed: dict[str, str]
    """setting -> the words that set it."""
    problems: dict[str, KvplanError]
    """setting -> why its value is not known. It is raised unless something else sets it."""
    ignored: tuple[str, ...]
    unknown: tuple[str, ...]
    warnings: tuple[str, ...]
    quantization: Quantization | None = None
    assumed: str = ""
    """A warning for whoever takes the weights from `quantization`."""

    gpu: str = ""
    """The accelerator, as the source calls it; empty: it does not say."""
    changes: ModelChanges | None = None
    """What it changes of the model itself."""

    def under(self, given: Mapping[str, Any], accepted: Collection[str] | None = None) -> tuple[dict[str, Any], Report]:
        """The settings of the command with those of kvplan's own flags over them, and what became of them.

        Args:
            given: settings from kvplan's own flags.
            accepted: the settings that the engine takes, where that is not the engine of the command.

        Raises:
            KvplanError: a setting whose value the command does not say, and that `given` does not set.
        """
        replaced = set(given)
        for names in SAME:
            for name in names:
                if name in given:
                    replaced |= {n for n in names if not (name.startswith("cache_type") and n.startswith("cache_type"))}
        dropped = set() if accepted is None else {name for name in self.settings if name not in accepted}
        for name, error in self.problems.items():
            if name not in replaced and (accepted is None or name in accepted):
                raise at_source(error, self.source)
        kept = {n: v for n, v in self.settings.items() if n not in replaced and n not in dropped}
        overridden = [self.typed.get(name, name) for name in (*self.settings, *self.problems) if name in replaced]
        ignored = [*self.ignored, *(self.typed.get(name, name) for name in sorted(dropped - replaced))]
        return {**kept, **given}, Report(
            self.engine, self.source, kept, tuple(ignored), self.unknown, tuple(overridden)
        )

    def meets(
        self, model: ModelSpec, settings: dict[str, Any], report: Report, engine: str
    ) -> tuple[ModelSpec, dict[str, Any], Report, list[str]]:
        """(the model as the command changes it, settings and report with its weights, warnings).

        Args:
            settings: those of `under`.
            engine: the engine that is planned for, ``name`` or ``name@version``.

        Raises:
            KvplanError: the engine would not start so.
        """
        model, said = self._changed(model, settings, engine)
        taken: dict[str, Any] = {}
        if self.changes is not None:
            taken["max_position_embeddings"] = model.max_position_embeddings
            taken |= {"rope": "{} x {:g}".format(*self.changes.rope)} if self.changes.rope else {}
        asked = self.quantization
        if asked is not None and "weights" in settings:
            report = report._replace(overridden=(*report.overridden, asked.words))
        elif asked is not None:
            found, warning = self._weights(model, asked)
            if found:
                settings = {**settings, "weights": found}
                taken["weights"] = found
            else:
                report = report._replace(ignored=(*report.ignored, asked.words))
            said += [warning] if warning else []
        return model, settings, report._replace(settings={**report.settings, **taken}), said

    def _weights(self, model: ModelSpec, asked: Quantization) -> tuple[str, str]:
        """(the weight format that a flag makes of the model's, a warning); both may be empty."""
        own = model.checkpoint
        if own is not None and not asked.always and (own.roles or own.overrides or not own.stored):
            return "", ""
        if asked.format:
            return asked.format, self.assumed
        return "", f"{asked.words}: which weights that makes is not known; add --weights FORMAT"

    def _changed(self, model: ModelSpec, settings: dict[str, Any], engine: str) -> tuple[ModelSpec, list[str]]:
        """(the model with the replaced keys of its configuration, warnings)."""
        changes = self.changes
        if changes is None:
            return model, []
        from kvplan.engines import get_engine
        from kvplan.engines.command_line import grammars

        name = self.engine.partition("@")[0]
        own = engine.partition("@")[0] == name
        grammar = next(g for g in grammars() if g.engine == name)
        asked = max(settings.get("max_model_len", 0), settings.get("ctx_size") or 0) if own else 0
        if settings.get("allow_long_max_model_len") and name == "vllm":
            asked = 0
        try:
            length, warning = grammar.longest(changes, model, get_engine(engine if own else name).version, asked)
        except KvplanError as error:
            raise at_source(error, self.source) from None
        rope, stated = model.rope, changes.length or model.stated_positions or model.max_position_embeddings
        if changes.rope is not None:
            kind, factor, original = changes.rope
            said = {"factor": factor, "original_max_position_embeddings": original}
            if changes.legacy:  # the rule of an old release gave the length: no other multiplies it again
                said, stated = {}, length
            rope = {"type": kind, **{k: v for k, v in said.items() if v}} if kind not in ("default", "mrope") else None
        changed = replace(
            model,
            rope=rope,
            max_position_embeddings=length or None,
            stated_positions=stated if stated != length else None,
        )
        return changed, [warning] if warning else []


class Report(NamedTuple):
    """What a plan says about the command it was made from."""

    engine: str
    source: str
    settings: dict[str, Any]
    """What was taken from it."""
    ignored: tuple[str, ...]
    """Flags without a bearing on the plan."""
    unknown: tuple[str, ...]
    overridden: tuple[str, ...]
    """Words of it that kvplan's own flags replaced."""

    def warnings(self) -> list[str]:
        """What to tell the user besides."""
        found = []
        if self.unknown:
            found.append(f"{self.source}: unknown to {self.engine} as far as kvplan knows: {', '.join(self.unknown)}")
        if self.overridden:
            found.append(f"{self.source}: replaced by kvplan's own flags: {', '.join(self.overridden)}")
        return found

    def note(self) -> str:
        """What was taken from the command, in a line."""
        taken = ", ".join(f"{name} {value}" for name, value in self.settings.items()) or "no settings"
        ignored = f"; ignored: {', '.join(self.ignored)} (a line to paste lacks them)" if self.ignored else ""
        return f"{self.source}: {self.engine} with {taken}{ignored}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the plan's inputs."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in self._asdict().items()}
