"""docs/catalogue.md and its pictures are what the specs and their programs make of them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from PIL import Image

from flashgen.runtime.catalogue import Catalogue

DOCS = Path(__file__).resolve().parents[2] / "docs"
COMMAND = "run: python docs/make_catalogue.py"


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("make_catalogue", DOCS / "make_catalogue.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def made(maker):
    return maker.page(Catalogue.load())


def test_the_page_is_up_to_date(made):
    assert (DOCS / "catalogue.md").read_text(encoding="utf-8") == made[0], COMMAND


def test_the_pictures_are_up_to_date(maker, made):
    _, pictures = made
    files = {file.name: file for file in (DOCS / "catalogue").iterdir()}
    assert set(files) == set(pictures), COMMAND
    for name, picture in pictures.items():
        with Image.open(files[name]) as committed:
            assert maker.pixels_of(committed) == maker.pixels_of(picture), f"{name}: {COMMAND}"
        assert files[name].stat().st_size < 20_000


def test_every_spec_is_on_the_page_with_its_source(made):
    text, _ = made
    for spec in Catalogue.load().specs:
        assert f"### {spec.name}\n" in text
        assert all(f"`{key}`" in text for key in spec.keys)
        assert "http" in Path(spec.path).read_text(encoding="utf-8") or "options" in spec.path
