"""Programs that start another program: which of the words after them are theirs."""

from __future__ import annotations

from typing import NamedTuple


class Wrapper(NamedTuple):
    """How one program is called."""

    values: frozenset[str] = frozenset()
    """Its options that take the next word."""
    operands: int = 0
    """Words of its own before the command."""
    subcommands: tuple[str, ...] = ()
    """The first operand has to be one of these; empty: there is none."""


def _of(values: str = "", operands: int = 0, subcommands: str = "") -> Wrapper:
    return Wrapper(frozenset(values.split()), operands, tuple(subcommands.split()))


_UV = (
    "--with --with-requirements --with-editable -p --python --project --directory --extra --group --env-file --index "
    "--index-url --extra-index-url --find-links --from --prerelease --torch-backend --cache-dir --package -m --module"
)
_MPI = (
    "-n -np -c -x -H --host --hostfile --machinefile -hostfile --map-by --bind-to --mca -mca --rank-by -N --npernode "
    "-wdir --wdir -env -genv --tag-output-file"
)
_SLURM = (
    "-A -C -c -D -e -G -J -N -n -o -p -q -t -w -x --account --chdir --constraint --container-image --container-mounts "
    "--container-name --container-workdir --cpus-per-task --error --exclude --export --gpus --gpus-per-node "
    "--gpus-per-task --gres --job-name --mem --mpi --nodelist --nodes --ntasks --ntasks-per-node --output --partition "
    "--qos --reservation --time"
)

WRAPPERS: dict[str, Wrapper] = {
    "exec": _of("-a"), "command": _of(), "builtin": _of(), "nohup": _of(), "setsid": _of(), "time": _of("-f -o"),
    "sudo": _of("-u -g -h -p -C -r -t -T -D -R --user --group --host --prompt --chdir"), "doas": _of("-u -C"),
    "nice": _of("-n --adjustment"), "ionice": _of("-c -n -t --class --classdata"), "chrt": _of("", 1),
    "taskset": _of("", 1), "stdbuf": _of("-i -o -e"), "timeout": _of("-k -s --kill-after --signal", 1),
    "numactl": _of("-N -m -C -i -p -P --cpunodebind --membind --physcpubind --interleave --preferred"),
    "tini": _of("-p -e"), "dumb-init": _of("-r --rewrite"), "catatonit": _of(), "gosu": _of("", 1),
    "su-exec": _of("", 1), "setpriv": _of(), "unbuffer": _of(), "catchsegv": _of(), "chroot": _of("", 1),
    "uv": _of(_UV, 1, "run"), "uvx": _of(_UV), "poetry": _of("-C --directory -P --project", 1, "run"),
    "pipenv": _of("", 1, "run"), "pixi": _of("-e --environment", 1, "run"), "hatch": _of("-e --env", 1, "run"),
    "conda": _of("-n --name -p --prefix", 1, "run"), "mamba": _of("-n --name -p --prefix", 1, "run"),
    "micromamba": _of("-n --name -p --prefix", 1, "run"),
    "mpirun": _of(_MPI), "mpiexec": _of(_MPI), "srun": _of(_SLURM), "trtllm-llmapi-launch": _of(),
    "nsys": _of("-o -t -w -d -y --output --trace --delay --duration", 1, "profile launch"),
    "systemd-run": _of("-p -u -E -M --property --unit --setenv --machine --slice"), "xargs": _of("-I -n -P -d -a"),
    "opentelemetry-instrument": _of(), "ddtrace-run": _of(), "watchmedo": _of(), "strace": _of("-e -o -p -s"),
}  # fmt: skip
"""Program -> how it is called, for those whose last words are a command."""

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ash", "ksh", "/bin/sh"})
"""Programs whose ``-c`` takes a script."""

CONTAINERS = frozenset({"docker", "podman", "nerdctl"})

_SWITCHES = """
    -d --detach -i --interactive -t --tty --rm --init --privileged --read-only --no-healthcheck --oom-kill-disable -P
    --publish-all -q --quiet --sig-proxy --disable-content-trust --replace --help --no-hosts --no-hostname --tls
"""
CONTAINER_SWITCHES = frozenset(_SWITCHES.split())
"""Options of ``docker run`` without a value; all others have one."""


def past_options(words: list[str], wrapper: Wrapper) -> list[str]:
    """The command that `words`, which follow the wrapper's name, end with; empty where there is none."""
    operands = wrapper.operands
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            at += 1
            return words[at + operands :] if operands and not wrapper.subcommands else words[at:]
        if word.startswith("-") and len(word) > 1:
            at += 1 + (word in wrapper.values)
        elif "=" in word and "/" not in word.partition("=")[0] and word.partition("=")[0].isidentifier():
            at += 1  # sudo NAME=VALUE command
        elif operands:
            if wrapper.subcommands and word not in wrapper.subcommands:
                return []
            operands -= 1
            at += 1
        else:
            return words[at:]
    return []
