"""Every output of one result, held against the schema that its readers publish, or against such a reader."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft4Validator, Draft202012Validator

from kvplan.check.baseline import diff
from kvplan.check.metrics import shown
from kvplan.check.result import failed
from kvplan.render import check_github, check_gitlab, check_junit, check_sarif, markdown, text
from kvplan.render.check_common import headline
from kvplan.render.check_report import check_report, diff_report

from .conftest import Write, result

DATA = Path(__file__).parent.parent / "data" / "schemas"
PUBLISHED = Path(__file__).parent.parent.parent / "docs" / "schemas"
XS = "{http://www.w3.org/2001/XMLSchema}"
MIXED = """
workloads: {chat: {concurrency: 4}, rag: {prompt-tokens: 16K}}
rules:
  - verdict.fits == true
  - {rule: capacity.max_concurrency >= 500, level: warn}
deployments:
  "odd, name: 100% <&> ::x": {model: llama-3.1-8b, gpu: h100-sxm, workloads: [chat, rag]}
  b:
    model: llama-3.1-8b
    gpu: h100-sxm
    rules: [capacity.max_concurrency >= 8, kv.bytes_per_token >= baseline, decode.tokens_per_second >= 1e6]
"""
FINE = "rules: [verdict.fits == true]\ndeployments: {a: {model: llama-3.1-8b, gpu: h100-sxm}}\n"
NOTHING = "deployments: {a: {model: llama-3.1-8b, gpu: h100-sxm}}\n"


@pytest.fixture(params=["mixed", "fine", "nothing", "locked", "strict"])
def found(request: pytest.FixtureRequest, write: Write) -> dict[str, Any]:
    """A result of each sort."""
    write({"fine": FINE, "nothing": NOTHING}.get(request.param, MIXED))
    plain = result()
    if request.param == "locked":
        entry = {
            "name": "b",
            "deployments": 1,
            "file": "kvplan.yaml",
            "line": 9,
            "column": 3,
            "message": "b: <changed>",
        }
        plain = {**plain, "lock": [entry]}
    return {**plain, "strict": request.param == "strict"}


@pytest.fixture
def mixed(write: Write) -> dict[str, Any]:
    write(MIXED)
    return result()


def test_sarif_is_what_the_standard_says(found: dict[str, Any]) -> None:
    schema = json.loads((DATA / "sarif-schema-2.1.0.json").read_text())
    log = json.loads(check_sarif.draw(found, "services/llm"))
    assert not list(Draft4Validator(schema).iter_errors(log))
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert rules == sorted(set(rules))
    for item in run["results"]:
        assert rules[item["ruleIndex"]] == item["ruleId"]
        uri = item["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert uri == "services/llm/kvplan.yaml"


def test_gitlab_is_what_gitlab_validates(found: dict[str, Any]) -> None:
    schema = json.loads((DATA / "gitlab-codeclimate.json").read_text())
    items = json.loads(check_gitlab.draw(found))
    assert isinstance(items, list)
    for item in items:
        Draft202012Validator(schema).validate(item)
        assert item["severity"] in ("info", "minor", "major", "critical", "blocker")
    assert len({item["fingerprint"] for item in items}) == len(items)


def declared(schema: ET.Element) -> dict[str, tuple[set[str], set[str], set[str]]]:
    """Element -> (attributes, those it must have, elements in it), as the XSD has them."""
    table = {}
    for element in schema.findall(f"{XS}element"):
        attributes = element.findall(f".//{XS}attribute")
        table[element.get("name", "")] = (
            {a.get("name", "") for a in attributes},
            {a.get("name", "") for a in attributes if a.get("use") == "required"},
            {e.get("ref", "") for e in element.findall(f".//{XS}element")},
        )
    return table


def test_junit_is_what_jenkins_declares(found: dict[str, Any]) -> None:
    table = declared(ET.parse(DATA / "junit-10.xsd").getroot())
    root = ET.fromstring(check_junit.draw(found).encode())
    assert root.tag == "testsuites"
    for element in root.iter():
        attributes, required, inner = table[element.tag]
        assert required <= set(element.attrib) <= attributes
        assert {child.tag for child in element} <= inner
    for suite in root:
        cases = suite.findall("testcase")
        assert int(suite.get("tests", "")) == len(cases) > 0
        assert int(suite.get("failures", "")) == len(suite.findall("testcase/failure"))
        assert int(suite.get("skipped", "")) == len(suite.findall("testcase/skipped"))
    assert int(root.get("tests", "")) == len(root.findall("testsuite/testcase"))
    assert int(root.get("failures", "")) == len(root.findall("testsuite/testcase/failure"))


def test_junit_validates_against_the_xsd_itself(found: dict[str, Any]) -> None:
    xmlschema = pytest.importorskip("xmlschema")
    schema, text = xmlschema.XMLSchema(str(DATA / "junit-10.xsd")), check_junit.draw(found)
    assert list(schema.iter_errors(text)) == []
    assert list(schema.iter_errors(text.replace("<testcase", "<case").replace("</testcase", "</case")))


def test_junit_is_read_by_a_consumer(mixed: dict[str, Any]) -> None:
    junitparser = pytest.importorskip("junitparser")
    suites = list(junitparser.JUnitXml.fromstring(check_junit.draw(mixed).encode()))
    assert [suite.name for suite in suites] == ["odd, name: 100% <&> ::x", "b"]
    assert [suite.failures for suite in suites] == [0, 2]


def test_warnings_pass_in_junit_unless_strict(mixed: dict[str, Any]) -> None:
    plain = ET.fromstring(check_junit.draw(mixed).encode())
    strict = ET.fromstring(check_junit.draw({**mixed, "strict": True}).encode())
    assert (int(plain.get("failures", "")), int(strict.get("failures", ""))) == (2, 5)
    said = [case.findtext("system-out") or "" for case in plain.iter("testcase") if "(warning)" in case.get("name", "")]
    assert len(said) == 3
    assert all("below the limit" in text for text in said)


def test_a_case_passes_where_nothing_is_promised(write: Write) -> None:
    write(NOTHING)
    root = ET.fromstring(check_junit.draw(result()).encode())
    assert (root.get("tests"), root.get("failures")) == ("1", "0")


COMMAND = re.compile(r"::(error|warning|notice) ((?:[a-z]+=[^,:]*,?)+)::(.*)")


def test_annotations_stand_on_the_line_of_the_rule(mixed: dict[str, Any]) -> None:
    lines = check_github.draw(mixed, "sub").splitlines()
    file = Path("kvplan.yaml").read_text().splitlines()
    kinds = []
    for line in lines:
        match = COMMAND.fullmatch(line)
        assert match, line
        kinds.append(match.group(1))
        said = dict(part.split("=", 1) for part in match.group(2).split(","))
        assert said["file"] == "sub/kvplan.yaml"
        rule = said["title"].replace("%3A", ":").replace("%2C", ",").replace("%25", "%")
        at = file[int(said["line"]) - 1][int(said["col"]) - 1 :]
        assert at.startswith(rule)
        assert "\n" not in match.group(3)
    assert kinds == ["warning", "warning", "error", "error"]
    assert "100%25 <&> ::x" in lines[0]


def test_without_a_broken_rule_there_is_a_notice(write: Write) -> None:
    write(FINE)
    assert check_github.draw(result()) == "::notice title=kvplan check::1 deployment, 1 rule, none broken\n"


def test_json_is_what_is_published(found: dict[str, Any]) -> None:
    schema = json.loads((PUBLISHED / "kvplan.check-1.json").read_text())
    Draft202012Validator.check_schema(schema)
    assert not [(list(e.absolute_path), e.message) for e in Draft202012Validator(schema).iter_errors(found)]


def test_a_comparison_is_what_is_published(mixed: dict[str, Any]) -> None:
    schema = json.loads((PUBLISHED / "kvplan.diff-1.json").read_text())
    other = {**mixed, "deployments": mixed["deployments"][1:]}
    for pair in ((mixed, other), (other, mixed), (mixed, mixed)):
        found = diff(*pair)
        assert not [(list(e.absolute_path), e.message) for e in Draft202012Validator(schema).iter_errors(found)]
        drawn = text.draw(diff_report(found, ("a.json", "b.json"), shown))
        assert drawn.startswith("kvplan diff: ")


def test_lines_are_one_a_finding_and_rows_hold_the_values(mixed: dict[str, Any]) -> None:
    drawn = text.draw(check_report(mixed, shown))
    lines = drawn.splitlines()
    assert lines[0].startswith("kvplan check: 2 deployments, 7 rules, 2 broken, 2 warnings, 1 without a baseline")
    said = [line for line in lines if re.match(r"kvplan\.yaml:\d+:\d+: (error|warning): ", line)]
    assert len(said) == 4
    assert sum("`--max-model-len " in line for line in said) >= 1
    assert sum(line.strip().startswith("BROKEN") for line in lines) == 2
    assert markdown.draw(check_report(mixed, shown)).startswith("## kvplan check: ")


def test_a_thousand_deployments_are_summed_up(mixed: dict[str, Any]) -> None:
    item = mixed["deployments"][1]
    held = [{**f, "pass": True, "status": "held"} for f in item["findings"]]
    many = {**mixed, "deployments": [{**item, "name": f"d{i}", "findings": held} for i in range(1000)]}
    drawn = text.draw(check_report(many, shown))
    assert len(drawn.splitlines()) < 10
    assert headline(many).startswith("1,000 deployments, 5,000 rules, none broken")


def test_warnings_of_plans_are_in_reports_and_lock_cases_are_told_apart(write: Write) -> None:
    write("""
        rules: [verdict.fits == true]
        deployments: {a: {model: llama-3.1-8b, gpu: mi210, max-model-len: 4K}}
    """)
    plain = result()
    plain["lock"] = [
        {"name": "a", "deployments": 1, "file": "kvplan.yaml", "line": 3, "column": 15, "message": f"a: the {what} x"}
        for what in ("model", "gpu")
    ]
    log = json.loads(check_sarif.draw(plain))
    (notice, *_) = log["runs"][0]["invocations"][0]["toolExecutionNotifications"]
    assert "is not measured" in notice["message"]["text"]
    root = ET.fromstring(check_junit.draw(plain))
    assert "is not measured" in (root.findtext("testsuite/system-out") or "")
    cases = [c for c in root.iter("testcase") if c.find("failure") is not None]
    assert len({(c.get("classname"), c.get("name")) for c in cases}) == 2
    assert cases[0].findtext("failure") == "kvplan.yaml:3:15"


# ---- flags that the engine does not have ----

FLAGGED = """
deployments:
  a:
    command: vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 8192 --no-such-flag 3 --nor-this-zz
    gpu: h100-sxm
    rules: [verdict.fits == true]
"""


def test_an_unknown_flag_is_a_warning_where_the_deployment_stands(write: Write) -> None:
    write(FLAGGED)
    plain = result()
    assert plain["deployments"][0]["unknown_flags"] == ["--no-such-flag 3", "--nor-this-zz"]
    assert plain["summary"]["warnings"] == 2
    assert not failed(plain)
    sarif = json.loads(check_sarif.draw(plain))
    assert not list(Draft4Validator(json.loads((DATA / "sarif-schema-2.1.0.json").read_text())).iter_errors(sarif))
    assert sarif["runs"][0]["results"][0]["ruleId"] == "engine flags"
    assert len({found["fingerprint"] for found in json.loads(check_gitlab.draw(plain))}) == 2
    assert check_github.draw(plain).startswith(
        "::warning file=kvplan.yaml,line=4,col=1,title=engine flags%3A --no-such-flag::"
    )
    assert "2 warnings" in headline(plain)
    assert ET.fromstring(check_junit.draw(plain)).get("failures") == "0"
    assert not list(
        Draft202012Validator(json.loads((PUBLISHED / "kvplan.check-1.json").read_text())).iter_errors(plain)
    )
    strict = {**plain, "strict": True}
    assert failed(strict)
    assert ET.fromstring(check_junit.draw(strict)).get("failures") == "2"


def test_the_headline_has_the_counts_of_json_and_junit(mixed: dict[str, Any]) -> None:
    """A rule that comes to the same under two workloads is one line of the table and two cases."""
    counts, cases = mixed["summary"], ET.fromstring(check_junit.draw(mixed))
    assert (cases.get("tests"), cases.get("failures")) == (str(counts["rules"]), str(counts["errors"]))
    assert headline(mixed).endswith(f"under each workload {counts['rules']} rules and {counts['errors']} broken")


@pytest.mark.parametrize("name", ["check", "diff"])
def test_keys_may_be_added(name: str) -> None:
    def closed(schema: Any) -> bool:
        if isinstance(schema, dict):
            return schema.get("additionalProperties") is False or any(map(closed, schema.values()))
        return isinstance(schema, list) and any(map(closed, schema))

    assert not closed(json.loads((PUBLISHED / f"kvplan.{name}-1.json").read_text()))
