"""The pages that are made from the code say what the code says."""

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_settings_page_is_made_from_the_settings() -> None:
    loader = SourceFileLoader("settings_page", str(ROOT / "scripts" / "settings-page"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    page = module_from_spec(spec)
    loader.exec_module(page)
    shown = (ROOT / "docs" / "settings.md").read_text()
    assert shown == page.page(), "run scripts/settings-page"
