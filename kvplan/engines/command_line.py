"""An engine's own command line: what starts it, and which of its words mean something to kvplan.

Each engine describes its command line once, as a `Grammar` in ``kvplan/engines/<engine>/command.py``. Flags that
matter are the `Option`s it has anyway; the grammar adds the other spellings it accepts, the flags that kvplan has
no use for (so that their values are not taken for something else), and its environment variables. `read_words`
then turns the words of a command line into settings. Nothing is run, and no variable of this machine is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from kvplan.engines.long_dashes import meant
from kvplan.engines.model_changes import ModelChanges, Quantization, factor_rule
from kvplan.engines.options import Option
from kvplan.errors import InputError, KvplanError, printable

if TYPE_CHECKING:
    from kvplan.spec.model import ModelSpec

_LONGEST = 60
"""Characters of a word that a message repeats."""
_TRUE = ("1", "true", "on", "yes", "enabled")
_FALSE = ("0", "false", "off", "no", "disabled")


class Word(str):
    """One word of a command line."""

    missing: str = ""
    """Why a part of it is not known: ``$TP is not set here``. Empty: all of it is."""
    end: str = ""
    """What follows the last part that is not known."""

    def __new__(cls, text: str, missing: str = "", end: str = "") -> Word:
        word = super().__new__(cls, text)
        word.missing = missing
        word.end = end
        return word


class Reading:
    """What the words of one command line amount to."""

    def __init__(self) -> None:
        self.model: str = ""
        self.settings: dict[str, Any] = {}
        self.typed: dict[str, str] = {}
        """setting -> the words that set it."""
        self.problems: dict[str, KvplanError] = {}
        """setting -> why its value cannot be read; no matter where something else sets it."""
        self.ignored: list[str] = []
        self.unknown: list[str] = []
        self.strange: dict[str, str] = {}  # flag that no table has -> how `unknown` shows it
        self.other: dict[str, Word] = {}
        """Flag -> value, for flags that are no setting: an engine's `Grammar.settle` looks at some of them."""
        self.lists: dict[str, tuple[Word, ...]] = {}  # the words of flags that take several
        self.repeated: dict[str, list[Word]] = {}
        """The same with every value of a flag."""
        self.warnings: list[str] = []
        self.changes: ModelChanges | None = None
        """What is changed of the model itself."""
        self.quantization: Quantization | None = None
        self.assumed = ""  # a warning for whoever takes the weights from `quantization`
        self.nodes = 1  # machines that such a command is started on

    def set(self, setting: str, value: Any, typed: str) -> None:
        """A setting; the last one of a name counts, as it does for the engines."""
        self.problems.pop(setting, None)
        self.settings[setting] = value
        self.typed[setting] = typed

    def unset(self, setting: str) -> None:
        for where in (self.settings, self.typed, self.problems):
            where.pop(setting, None)

    def fail(self, setting: str, error: KvplanError) -> None:
        self.unset(setting)
        self.problems[setting] = error

    def move(self, old: str, new: str) -> None:
        """Let what was given for one setting count for another."""
        tables: tuple[dict[str, Any], ...] = (self.settings, self.typed, self.problems)
        for table in tables:
            if old in table:
                table[new] = table.pop(old)

    def note(self, flag: str, value: Word) -> None:
        """A flag that is no setting, with its value."""
        self.other[flag] = value
        self.repeated.setdefault(flag, []).append(value)

    def use(self, *flags: str) -> Word | None:
        """The value of a flag that is no setting of its own, which then no longer counts as ignored."""
        for flag in flags:
            if flag in self.other:
                self.ignored = [n for n in self.ignored if n.replace("_", "-") != flag.replace("_", "-")]
                return self.other[flag]
        return None


def pick(options: Sequence[Option], *settings: str) -> tuple[Option, ...]:
    """The options of some settings, out of tables of several engines."""
    return tuple(option for option in options if option.setting in settings)


def _leave(reading: Reading) -> None:
    """Nothing to settle."""


def words(text: str) -> frozenset[str]:
    """The flags of a table: names in a block of text, two dashes left out where a flag has them."""
    return frozenset(name if name.startswith("-") else f"--{name}" for name in text.split())


class Grammar(NamedTuple):
    """The command line of one engine."""

    engine: str
    """Its name in kvplan."""
    programs: Mapping[str, tuple[str, ...]]
    """Name of a program -> its subcommands that start the engine; empty: it needs none."""
    modules: tuple[str, ...] = ()
    """What ``python -m`` starts it with."""
    images: tuple[str, ...] = ()
    """Ends of the names of container images whose entry point is the engine, so that arguments are its flags."""
    version_images: tuple[str, ...] = ()
    """Ends of the names of images whose tag is the engine's version."""
    options: tuple[Option, ...] = ()
    aliases: Mapping[str, str] = {}
    """Flags of this engine alone -> the setting of the `Option` that reads them."""
    model: tuple[str, ...] = ()
    positional: bool = False
    """Whether the first bare word is the model."""
    switches: frozenset[str] = frozenset()
    values: frozenset[str] = frozenset()
    several: frozenset[str] = frozenset()
    """Flags that take every word up to the next flag."""
    maybe: frozenset[str] = frozenset()
    """Flags that may have a value."""
    bare: Mapping[str, str] = {}
    """Setting -> its value where the flag stands alone."""
    unmodelled: frozenset[str] = frozenset()
    """Ignored flags that change the memory: they are warned about."""
    not_values: Mapping[tuple[str, str], str] = {}
    """(setting, text) -> what this value means, where kvplan has no number for it."""
    environment: Mapping[str, str] = {}
    """Variable -> the flag it stands for."""
    variables: tuple[str, ...] = ()
    """How the engine's variables start: those that are no setting are listed as ignored."""
    config: tuple[str, ...] = ()
    """Flags that name a YAML file with further flags."""
    config_wins: bool = False
    """Whether such a file counts over the flags beside it."""
    abbreviates: bool = False
    """Whether a flag may be cut short, as Python's argparse allows."""
    inverts: bool = False
    """Whether ``--disable-x`` is another way to write ``--no-enable-x``."""
    complete: str = ""
    """The release from which on, up to the newest known, the tables have every flag; empty: they may lack some."""
    settle: Callable[[Reading], None] = _leave
    """The engine's last word: settings that several flags make together."""
    longest: Callable[[ModelChanges, ModelSpec, str, int], tuple[int, str]] = factor_rule
    """(changes, the model, the engine's version, tokens asked for or 0) -> (its longest context, a warning)."""


class _Entry(NamedTuple):
    kind: str
    """``option``, ``negative``, ``model``, ``switch``, ``value``, ``several``, ``maybe``."""
    option: Option | None = None


def flag_table(grammar: Grammar) -> dict[str, _Entry]:
    """Every flag of an engine. A setting wins over a flag that is ignored."""
    table: dict[str, _Entry] = {}
    for kind, names in (
        ("switch", grammar.switches), ("value", grammar.values), ("several", grammar.several), ("maybe", grammar.maybe),
        ("value", grammar.unmodelled),
    ):  # fmt: skip
        for name in names:
            table.setdefault(name, _Entry(kind))
    for name in (*grammar.switches, *grammar.maybe):
        if name.startswith("--"):
            table.setdefault(_negative(name), _Entry("switch"))
    by_setting: dict[str, Option] = {}
    named: dict[str, Option] = {}
    for option in grammar.options:
        by_setting.setdefault(option.setting, option)
        named.update(dict.fromkeys(option.flags, option))
    for flag, setting in grammar.aliases.items():
        if setting in by_setting:
            named[flag] = by_setting[setting]
    for flag, option in named.items():
        if option.is_switch and flag.startswith("--"):
            table[_negative(flag)] = _Entry("negative", option)
    table.update({flag: _Entry("option", option) for flag, option in named.items()})
    table.update(dict.fromkeys(grammar.model, _Entry("model")))
    table.update(dict.fromkeys(grammar.config, _Entry("value")))
    return table


def _negative(flag: str) -> str:
    """``--x`` -> ``--no-x``, and back."""
    return f"--{flag[5:]}" if flag.startswith("--no-") else f"--no-{flag[2:]}"


def _inverse(flag: str) -> str:
    """``--enable-x`` -> ``--disable-x``, and back; empty for other flags."""
    for prefix, other in (("--enable-", "--disable-"), ("--disable-", "--enable-")):
        if flag.startswith(prefix):
            return other + flag[len(prefix) :]
    return ""


def read_words(grammar: Grammar, words: Sequence[Word], environment: Mapping[str, Word] | None = None) -> Reading:
    """The settings in the words after the program's name; variables of the environment count less than flags.

    A value that cannot be read is kept in `Reading.problems`. The model is looked at by the caller.

    Raises:
        InputError: the model stands in a variable that nobody sets.
    """
    reader = _Reader(grammar)
    reader.environment(environment or {})
    reader.words(words)
    grammar.settle(reader.reading)
    return reader.reading


class _Reader:
    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.table = flag_table(grammar)
        self.reading = Reading()

    def environment(self, environment: Mapping[str, Word]) -> None:
        for name, value in environment.items():
            flag = self.grammar.environment.get(name)
            if flag is not None:
                self._take(flag, self.table[flag], value, name)
            elif name.startswith(self.grammar.variables):
                self.reading.ignored.append(name)

    def words(self, words: Sequence[Word]) -> None:
        at, model_seen = 0, False
        words = [self._plain_dashes(word) for word in words]
        while at < len(words):
            word = words[at]
            at += 1
            if word == "--":
                continue
            if not _is_flag(word):
                if word.missing and (model_seen or self.reading.model or not self.grammar.positional):
                    self._open_variable(word)
                elif self.grammar.positional and not model_seen:
                    self._model(word, "the model")
                    model_seen = True
                else:
                    self.reading.unknown.append(printable(word, _LONGEST))
                continue
            at = self._flag(word, words, at)

    def _plain_dashes(self, word: Word) -> Word:
        if not (flag := meant(word, lambda name: self._find(name)[1] is not None)):
            return word
        said = f"{printable(word, _LONGEST)} has a long dash in place of hyphens: read as {printable(flag, _LONGEST)}"
        self.reading.warnings.append(said)
        return Word(flag, word.missing, word.end)

    def _flag(self, word: Word, words: Sequence[Word], at: int) -> int:
        """Read the flag `word`, and what belongs to it from `words[at]` on; returns where to go on."""
        name, equals, rest = word.partition("=")
        flag, entry = self._find(name)
        value = Word(rest, word.missing, word.end) if equals else None
        if word.missing and not equals:
            self._open_variable(word)
            return at
        if entry is None:
            if value is None and at < len(words) and not _is_flag(words[at]):
                value, at = words[at], at + 1
            self.reading.strange[flag] = printable(f"{name} {value}" if value is not None else name, _LONGEST)
            self.reading.unknown.append(self.reading.strange[flag])
            self.reading.note(flag, value or Word(""))
            return at
        if flag == "-O" and value is None and name != flag:  # vLLM: -O3
            value = Word(name[2:])
        if entry.kind == "several":
            start = at
            if value is None:
                while at < len(words) and not _is_flag(words[at]):
                    at += 1
            self.reading.lists[flag] = tuple(words[start:at]) if value is None else (value,)
        elif self._wants_value(entry) and value is None and at < len(words) and self._is_value(entry, words[at]):
            value, at = words[at], at + 1
        self._take(flag, entry, value, name)
        return at

    def _find(self, name: str) -> tuple[str, _Entry | None]:
        """(the flag as tables spell it, its entry)."""
        flag = name.replace("_", "-") if name.startswith("--") else name
        if flag in self.table:
            return flag, self.table[flag]
        inverse = _inverse(flag) if self.grammar.inverts else ""
        if inverse in self.table:
            return inverse, self.table.get(_negative(inverse), _Entry("switch"))
        whole = flag.partition(".")[0]
        if "." in flag and whole in self.table:  # vLLM: --json-flag.key VALUE
            return flag, _Entry("value")
        if flag.startswith("-O") and "-O" in self.table:  # vLLM: -O3
            return "-O", _Entry("switch")
        if self.grammar.abbreviates and flag.startswith("--") and len(flag) > 3:
            long = [known for known in self.table if known.startswith(flag)]
            if len({self.table[known].option or known for known in long}) == 1:
                return long[0], self.table[long[0]]
        return flag, None

    @staticmethod
    def _wants_value(entry: _Entry) -> bool:
        if entry.option is not None and entry.kind == "option":
            return not entry.option.is_switch
        return entry.kind in ("model", "value", "maybe")

    def _is_value(self, entry: _Entry, word: Word) -> bool:
        """Whether the next word belongs to the flag before it."""
        if entry.kind == "maybe" or (entry.option is not None and entry.option.setting in self.grammar.bare):
            return word.lower() in (*_TRUE, *_FALSE, "auto")
        return not _is_flag(word)

    def _take(self, flag: str, entry: _Entry, value: Word | None, name: str) -> None:
        """One flag (or one variable, called `name`) with its value, if it has one."""
        reading, option = self.reading, entry.option
        shown = printable(f"{name} {value}" if value is not None and self._wants_value(entry) else name, _LONGEST)
        if entry.kind == "model":
            self._model(value if value is not None else Word(""), name)
            reading.note(flag, value or Word(""))
        elif option is None:
            reading.note(flag, value or Word(""))
            reading.ignored.append(name)
            if (
                not self.grammar.unmodelled.isdisjoint((flag, flag.partition(".")[0]))
                and (value or "").lower() not in _FALSE
            ):
                reading.warnings.append(f"{shown} changes what the memory holds, and is not modelled")
        elif option.is_switch:
            on = (entry.kind == "option") == (value is None or value.lower() not in _FALSE)
            if on:
                reading.set(option.setting, option.kind == "true", shown)
            else:
                reading.unset(option.setting)
        else:
            self._value(option, value, name, shown)

    def _value(self, option: Option, value: Word | None, name: str, shown: str) -> None:
        reading, setting = self.reading, option.setting
        if value is None and setting in self.grammar.bare:
            value = Word(self.grammar.bare[setting])
        if value is None:
            reading.fail(setting, InputError("needs a value", where=name, hint=f"{name} {option.metavar or 'VALUE'}"))
        elif value.missing:
            reading.fail(
                setting, _unset(value.missing, name, f"write its value there, or give kvplan {option.flags[0]}")
            )
        elif (setting, value.strip()) in self.grammar.not_values:
            reading.unset(setting)
            reading.warnings.append(f"{shown}: {self.grammar.not_values[setting, value.strip()]}")
        else:
            try:
                reading.set(setting, option._replace(flags=(name,)).read(value), shown)
            except KvplanError as error:
                reading.fail(setting, error)

    def _model(self, word: Word, where: str) -> None:
        if word.missing and not word.end.rpartition("/")[2]:  # a folder may be unknown, the last part may not
            raise _unset(word.missing, where, "write the model's name in its place")
        self.reading.model = word.strip()

    def _open_variable(self, word: Word) -> None:
        self.reading.unknown.append(printable(word, _LONGEST))
        self.reading.warnings.append(f"{word.missing}: flags in it are not read")


def _is_flag(word: str) -> bool:
    """Whether a word is a flag; ``-1`` and ``-`` are values."""
    return len(word) > 1 and word[0] == "-" and not word[1:2].isdigit() and not word.startswith("-.")


def _unset(why: str, where: str, hint: str) -> InputError:
    return InputError(why, where=printable(where, _LONGEST), hint=hint)


MODULES = ("vllm.command", "sglang.command", "tensorrt_llm.command", "llama_cpp.command",
           "ollama_command", "lmstudio_command")  # fmt: skip
"""Where the grammars are; each module has a ``GRAMMAR``."""


def grammars() -> list[Grammar]:
    """The command lines of all engines that have one."""
    return [import_module(f"kvplan.engines.{module}").GRAMMAR for module in MODULES]
