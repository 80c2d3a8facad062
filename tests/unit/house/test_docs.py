"""The pages that are made from the code say what the code says."""

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["settings", "events", "job-file"])
def test_a_page_is_made_from_the_code(name: str) -> None:
    """For events that freezes their fields: whoever changes one has to look at VERSION, too."""
    loader = SourceFileLoader(f"{name}_page", str(ROOT / "scripts" / f"{name}-page"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    page = module_from_spec(spec)
    loader.exec_module(page)
    shown = (ROOT / "docs" / f"{name}.md").read_text()
    assert shown == page.page(), f"run scripts/{name}-page"
