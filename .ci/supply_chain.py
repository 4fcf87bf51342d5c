"""What an installed kvplan brings with it: its licences, known vulnerabilities, and a list of its parts (SBOM).

    python .ci/supply_chain.py PYTHON [SBOM.json]

PYTHON is the interpreter of an environment in which kvplan alone is installed. Run it with the interpreter of the
environment that has the tools of ``.ci/tools.txt``. Exit status 1: a licence that is not known to be fine, a
vulnerability, or a package that is missing from the list of parts.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

FINE = {"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MPL-2.0", "PSF-2.0", "Zlib"}
"""Licences under which a package may be required by one under Apache-2.0."""
CLASSIFIERS = {
    "Apache Software License": "Apache-2.0", "BSD License": "BSD-3-Clause", "ISC License (ISCL)": "ISC",
    "MIT License": "MIT", "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}  # fmt: skip
"""Names of classifiers -> SPDX identifiers."""
INSTALLERS = {"pip", "setuptools", "wheel"}
"""In every environment, and no part of kvplan."""
TOOLS = Path(sys.executable).parent


def output(*words: str, statuses: tuple[int, ...] = (0,)) -> str:
    """What a tool prints; an error of its own ends the check."""
    done = subprocess.run([str(TOOLS / words[0]), *words[1:]], capture_output=True, text=True, check=False)
    if done.returncode not in statuses:
        sys.exit(f"{words[0]}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def licences(python: str) -> list[str]:
    """The packages of an environment whose licence is not known to be fine."""
    wrong = []
    for package in json.loads(output("pip-licenses", "--python", python, "--format", "json", "--from", "mixed")):
        named = CLASSIFIERS.get(package["License"], package["License"])
        choices = [re.split(r"\s+AND\s+", choice.strip(" ()")) for choice in re.split(r"\s+OR\s+", named)]
        print(f"  {package['Name']} {package['Version']}: {named}")
        if not any(set(choice) <= FINE for choice in choices):
            wrong.append(f"{package['Name']} {package['Version']}: licence {named!r} is not known to be fine")
    return wrong


def vulnerabilities(python: str) -> list[str]:
    """What is known against the packages of an environment; says so where the data base cannot be reached."""
    words = [str(TOOLS / "pip"), "--python", python, "freeze", "--exclude", "kvcache-plan"]
    frozen = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    wanted = Path(python).parents[1] / "audited.txt"
    wanted.write_text(frozen, encoding="utf-8")
    words = [str(TOOLS / "pip-audit"), "--requirement", str(wanted), "--no-deps", "--disable-pip", "--format", "json"]
    done = subprocess.run([*words, "--timeout", "20"], capture_output=True, text=True, check=False)
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except ValueError:
        print(f"  NOT AUDITED, the data base is not reachable: {(done.stderr.strip().splitlines() or ['?'])[-1][:200]}")
        return []
    skipped = [package for package in packages if "skip_reason" in package]
    if skipped:
        print(f"  NOT AUDITED, the data base does not answer for: {', '.join(p['name'] for p in skipped)}")
    print(f"  {len(packages) - len(skipped)} packages audited")
    return [
        f"{package['name']} {package['version']}: {found['id']}, fixed in {', '.join(found['fix_versions']) or 'none'}"
        for package in packages
        for found in package.get("vulns", ())
    ]


def parts(python: str, target: Path) -> list[str]:
    """Write the list of parts (CycloneDX); the packages that are missing from it."""
    root = Path(__file__).parents[1]
    words = ["environment", "--pyproject", str(root / "pyproject.toml"), "--output-reproducible", "--validate"]
    output("cyclonedx-py", *words, "--of", "JSON", "-o", str(target), python)
    listed = {part["name"].lower() for part in json.loads(target.read_text(encoding="utf-8"))["components"]}
    print(f"  {len(listed - INSTALLERS)} parts in {target}")
    there = subprocess.run(
        [str(TOOLS / "pip"), "--python", python, "list", "--format", "json"], capture_output=True, text=True, check=True
    )
    names = {package["name"].lower() for package in json.loads(there.stdout)} - INSTALLERS - {"kvcache-plan"}
    return [f"{name} is missing from {target}" for name in sorted(names - listed)]


def main(python: str, target: str = "sbom.json") -> int:
    """Check all three; exit status 1 where something is wrong."""
    print("licences")
    wrong = licences(python)
    print("known vulnerabilities")
    wrong += vulnerabilities(python)
    print("parts")
    wrong += parts(python, Path(target))
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
