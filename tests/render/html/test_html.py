"""A page is well-formed, stands alone, and has everything of the document in text."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from kvplan.render import html, svg
from kvplan.render.grid import Document, Title, clean
from kvplan.render.svg import Picture

VOID = {"meta"}
XHTML, SVG = "{http://www.w3.org/1999/xhtml}", "{http://www.w3.org/2000/svg}"


class Tags(HTMLParser):
    """Checks that tags open and close in order, and gathers text and attributes, as a browser reads them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.names: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert not self.stack

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def page(document: Document, pictures: dict[str, Picture]) -> str:
    return html.draw([*document, *pictures.values()], foot="the foot")


def test_a_page_is_well_formed_for_both_parsers(page: str) -> None:
    assert page.startswith("<!DOCTYPE html>\n<html")
    Tags(page)
    root = ET.fromstring(page)
    assert root.tag == f"{XHTML}html"
    assert root.attrib["lang"] == "en"
    ids = [e.attrib["id"] for e in root.iter() if "id" in e.attrib]
    assert len(ids) == len(set(ids)) > 0


def test_a_page_needs_nothing_from_elsewhere(page: str) -> None:
    found = Tags(page)
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & set(found.names)
    assert not [
        name for name, _ in found.attributes if name in ("src", "href", "xlink:href", "style") or name[:2] == "on"
    ]
    assert set(re.findall(r"\w+://[^\s\"<]+", page)) == {
        "http://www.w3.org/1999/xhtml",
        "http://www.w3.org/2000/svg",
    }
    assert "@import" not in page
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in found.attributes


def test_no_text_is_markup_and_none_is_lost(page: str, figures: tuple[str, ...], evil: str) -> None:
    text = Tags(page).text
    for figure in figures:
        assert figure in text
    assert clean(evil) in text
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "a remark" in text
    assert "漢字" in text
    assert text.rstrip().endswith("the foot")


def test_every_picture_has_its_numbers_as_a_table(page: str, pictures: dict[str, Picture]) -> None:
    root = ET.fromstring(page)
    figures = list(root.iter(f"{XHTML}figure"))
    assert len(figures) == len(pictures) + 1  # and the bar of the document
    for picture, figure in zip(pictures.values(), figures[1:], strict=True):
        assert figure.find(f"{SVG}svg") is not None
        cells = {"".join(cell.itertext()) for cell in figure.iter(f"{XHTML}td")}
        for row in svg.numbers(picture).rows:
            assert {clean(cell) or " " for cell in row} <= cells


def test_titles_make_headings(document: Document) -> None:
    root = ET.fromstring(html.draw([*document, Title("second", "part")]))
    assert ["".join(h.itertext()) for h in root.iter(f"{XHTML}h1")] == ["llama-3.1-70b"]
    assert ["".join(h.itertext()) for h in root.iter(f"{XHTML}h2")] == ["second"]
    assert "Capacity" in ["".join(h.itertext()) for h in root.iter(f"{XHTML}h3")]
    assert root.findtext(f"{XHTML}head/{XHTML}title") == "llama-3.1-70b"


def test_the_same_document_gives_the_same_bytes(document: Document, pictures: dict[str, Picture]) -> None:
    assert html.draw([*document, *pictures.values()]) == html.draw([*document, *pictures.values()])
