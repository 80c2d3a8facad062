"""The pages that are made from the code say what the code says."""

import re
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["settings", "events", "job-file", "commands", "metrics"])
def test_a_page_is_made_from_the_code(name: str) -> None:
    """For events that freezes their fields: whoever changes one has to look at VERSION, too."""
    shown = (ROOT / "docs" / f"{name}.md").read_text()
    assert shown == script(f"{name}-page").page(), f"run scripts/{name}-page"


def test_the_picture_is_made_from_the_results() -> None:
    shown = (ROOT / "docs" / "images" / "figures.svg").read_text()
    assert shown == script("figures-picture").picture(), "run scripts/figures-picture"


@pytest.mark.parametrize("page", sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")}), ids=lambda page: page.name)
def test_links_between_files_lead_somewhere(page: Path) -> None:
    """Also those that the site does not have, as in the README; `make docs` looks at anchors."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    missing = [each for each in links if "://" not in each and not (page.parent / each).exists()]
    assert not missing


def script(name: str) -> ModuleType:
    loader = SourceFileLoader(name.replace("-", "_"), str(ROOT / "scripts" / name))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module
