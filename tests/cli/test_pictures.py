"""Pages and pictures of the verbs: whole, alone, and looked at by a browser where there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from .conftest import Run, one_line_error

XHTML, SVG = "{http://www.w3.org/1999/xhtml}", "{http://www.w3.org/2000/svg}"
PLAN = ("plan", "llama-3.1-8b", "--gpu", "h100-sxm", "--concurrency", "32", "--prompt-tokens", "8K")
VERBS: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("plan", (*PLAN, "--shared-prefix-tokens", "4K"), 6),
    ("plan, too little memory", ("plan", "llama-3.1-70b", "--gpu", "h100-sxm"), 5),
    ("plan, no GPU", ("plan", "deepseek-v3"), 1),
    ("plan, stages", ("plan", "gemma-3-27b", "--gpu", "h100-sxm", "-pp", "2", "-tp", "2"), 5),
    ("plan, llama.cpp", ("plan", "qwen3-8b", "--gpu", "rtx-4090", "--engine", "llama.cpp", "-c", "8K"), 5),
    ("plan, engines", ("plan", "qwen3-8b", "--gpu", "h100-sxm", "--engine", "all"), 2),
    ("explain", ("explain", "gemma-3-27b"), 3),
    ("compare", ("compare", "llama-3.1-8b", "qwen3-32b", "--gpu", "h200-sxm"), 6),
    ("sweep, lines", ("sweep", "llama-3.1-8b", "--gpu", "h100-sxm", "--vary", "concurrency=1..64*2"), 2),
    ("sweep, map", ("sweep", "llama-3.1-8b", "--vary", "tp=1,2,3", "--vary", "kv-cache-dtype=default,fp8"), 1),
    ("fit", ("fit", "llama-3.1-8b", "--gpu", "h100-sxm,l4,rtx-4090", "--concurrency", "20"), 1),
    ("sweep, bars", ("sweep", "llama-3.1-8b", "--gpu", "h100-sxm", "--vary", "engine=vllm,generic"), 4),
)
"""(what, command line, pictures)."""


@pytest.fixture(params=VERBS, ids=lambda v: v[0])
def verb(request: pytest.FixtureRequest) -> tuple[str, tuple[str, ...], int]:
    found: tuple[str, tuple[str, ...], int] = request.param
    return found


def test_a_page_has_its_pictures_and_their_numbers(run: Run, verb: tuple[str, tuple[str, ...], int]) -> None:
    _, words, pictures = verb
    done = run(*words, "--format", "html")
    assert done.status in (0, 1), done.err
    root = ET.fromstring(done.out)
    figures = list(root.iter(f"{XHTML}figure"))
    assert len(figures) == pictures
    assert set(re.findall(r"\w+://[^\s\"<]+", done.out)) <= {
        "http://www.w3.org/1999/xhtml", "http://www.w3.org/2000/svg", *re.findall(r"https?://[^\s\"<]+", text_of(root)),
    }  # fmt: skip
    for figure in figures:
        assert list(figure.iter(f"{XHTML}td"))
    assert root.find(f".//{XHTML}h1") is not None
    assert run(*words, "--format", "html").out == done.out


def text_of(root: ET.Element) -> str:
    return " ".join(root.itertext())


def test_a_picture_file_is_one_svg(run: Run, verb: tuple[str, tuple[str, ...], int]) -> None:
    _, words, pictures = verb
    done = run(*words, "--format", "svg")
    assert done.status in (0, 1), done.err
    root = ET.fromstring(done.out.encode())
    assert root.tag == f"{SVG}svg"
    assert len(root.findall(f"{SVG}g")) == pictures


def test_every_labelled_number_of_a_plan_is_in_a_table(run: Run) -> None:
    root = ET.fromstring(run(*PLAN, "--shared-prefix-tokens", "4K", "--format", "html").out)
    for figure in root.iter(f"{XHTML}figure"):
        picture = figure.find(f"{SVG}svg")
        assert picture is not None
        cells = " ".join("".join(cell.itertext()) for cell in figure.iter(f"{XHTML}td"))
        classes = ("halo", "in")
        labels = [e.text or "" for e in picture.iter(f"{SVG}text") if e.get("class", "").split()[-1:] and
                  set(e.get("class", "").split()) & set(classes)]  # fmt: skip
        assert labels
        for label in labels:
            for number in re.findall(r"[\d,]*\d(?:\.\d+)?", label):
                assert number in cells, (label, number)


def test_the_figures_of_the_page_are_those_of_the_plan(run: Run) -> None:
    import json

    plan = json.loads(run(*PLAN, "--json").out)
    page = text_of(ET.fromstring(run(*PLAN, "--format", "html").out))
    assert f"{plan['decode']['tokens_per_second']:,.0f}" in page
    assert f"ridge: {plan['decode']['ridge_batch']}" in page
    assert f"{plan['capacity']['kv_tokens']:,}" in page


def test_files_are_whole_and_their_names_say_the_format(run: Run, tmp_path: Path) -> None:
    page, picture = tmp_path / "plan.html", tmp_path / "plan.svg"
    assert run(*PLAN, "-o", str(page)).status == 0
    assert run(*PLAN, "-o", str(picture)).status == 0
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert picture.read_text().startswith("<?xml")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plan.html", "plan.svg"]
    before = page.read_bytes()
    assert run("plan", "no-such-model", "-o", str(page)).status == 2
    assert page.read_bytes() == before


def test_what_has_no_picture_says_so(run: Run) -> None:
    message, hint = one_line_error(run("gpus", "list", "--format", "svg"))
    assert "unknown output format 'svg'" in message
    assert "html" in hint
    words = ("sweep", "llama-3.1-8b", "--vary", "concurrency=1..1000", "--vary", "max-model-len=1..1000")
    message, hint = one_line_error(run(*words, "--format", "html"))
    assert "1,000,000 plans are too many for a picture" in message
    assert "csv" in hint


def test_warnings_are_on_the_page(run: Run) -> None:
    done = run("plan", "falcon-7b", "--engine", "generic", "--max-model-len", "32768", "--format", "html", "-q")
    assert "maximum of 2,048" in done.out


def test_a_terminal_sees_a_plot(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    plan = run(*PLAN, "--format", "table").out
    assert "Tokens per second against batch" in plan
    assert "ridge: " in plan
    assert max(len(line) for line in plan.splitlines() if not line.startswith("  vllm serve")) <= 80
    assert "KV cache against context" in run("explain", "gemma-3-27b", "--format", "table").out
    assert "against batch" not in run(*PLAN, "--format", "text").out


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: pages are parsed, not looked at")
_MEASURE = (
    "<script>document.title = [document.documentElement.scrollWidth, innerWidth, "
    "[...document.querySelectorAll('figure svg')].map(e => Math.round(e.getBoundingClientRect().height)).join(' '), "
    "getComputedStyle(document.body).backgroundColor].join('|')</script>"
)


def chromium(page: Path, *options: str) -> str:
    """What headless Chromium prints; its profile lies beside the page."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
        f"--user-data-dir={page.parent / 'profile'}", *options, page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


@browser
@pytest.mark.parametrize(("size", "dark"), [("500,900", False), ("1400,900", True)])
def test_a_browser_lays_the_page_out(run: Run, tmp_path: Path, size: str, dark: bool) -> None:
    page = tmp_path / "page.html"
    done = run(*PLAN, "--shared-prefix-tokens", "4K", "--format", "html")
    assert "<script" not in done.out
    probe = re.sub(r"<meta http-equiv[^>]*>", "", done.out).replace("</body>", f"{_MEASURE}</body>")
    page.write_text(probe, encoding="utf-8")
    seen = chromium(page, f"--window-size={size}", f"--blink-settings=preferredColorScheme={0 if dark else 1}",
                    "--dump-dom")  # fmt: skip
    found = re.search(r"<title>([^<]*)</title>", seen)
    assert found is not None
    wide, window, heights, ground = found[1].split("|")
    assert int(wide) <= int(window)
    assert len(heights.split()) == 6
    assert all(40 < int(h) < 700 for h in heights.split())
    assert ground == ("rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)")


@browser
def test_a_browser_takes_and_prints_the_page_as_it_is(run: Run, tmp_path: Path) -> None:
    page, shot, print_ = tmp_path / "page.html", tmp_path / "shot.png", tmp_path / "page.pdf"
    run(*PLAN, "-o", str(page))
    chromium(page, "--window-size=1400,1200", f"--screenshot={shot}")
    assert shot.read_bytes().startswith(b"\x89PNG")
    assert shot.stat().st_size > 30_000  # not an empty sheet
    chromium(page, "--no-pdf-header-footer", f"--print-to-pdf={print_}")
    assert print_.read_bytes().startswith(b"%PDF")
    if shutil.which("pdftotext"):
        said = subprocess.run(["pdftotext", str(print_), "-"], capture_output=True, text=True, check=True).stdout
        said = " ".join(said.split())
        assert "this workload: " in said
        assert "would need more memory" in said
        assert said.count("The numbers") == 5
        assert "131,072" in said  # folded tables are open in print


@browser
def test_a_browser_draws_the_svg_file(run: Run, tmp_path: Path) -> None:
    picture, shot = tmp_path / "plan.svg", tmp_path / "shot.png"
    run(*PLAN, "-o", str(picture))
    chromium(picture, "--window-size=700,1200", f"--screenshot={shot}")
    assert shot.stat().st_size > 30_000
