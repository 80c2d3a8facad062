"""What mkdocs needs to know about this repository: pages that live outside docs/, and links to files that are none."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
# Pages of the site that are files of the repository.
PAGES = {
    "benchmarks/RESULTS.md": "results.md",
    "models/README.md": "model.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """Lists a new page under How-to until mkdocs.yml says where it belongs."""
    listed = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text())
    unlisted = sorted(each.name for each in (ROOT / "docs").glob("*.md") if each.name not in listed)
    how_to = next(entry["How-to"] for entry in config["nav"] if "How-to" in entry)
    how_to += unlisted
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages from outside docs/, and a listing of each example."""
    for path, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text()))
    examples = sorted((ROOT / "examples").rglob("*.py"))
    rows = "".join(f"- [{each.relative_to(ROOT / 'examples')}]({listing(each).name})\n" for each in examples)
    files.append(File.generated(config, "examples/index.md", content=f"# Examples\n\n{rows}"))
    for each in examples:
        text = f"# {each.name}\n\n```python\n{each.read_text()}```\n"
        files.append(File.generated(config, str(listing(each)), content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Points links to files of the repository at their pages; what has no page is shown without a link."""
    here = page.file.src_uri
    source = next((ROOT / path for path, uri in PAGES.items() if uri == here), ROOT / "docs" / here)

    def replace(found: re.Match[str]) -> str:
        image, text, target, anchor = found[1], found[2], found[3], found[4] or ""
        if image or "://" in target or target.startswith("mailto:"):
            return found[0]
        place = (source.parent / target).resolve()
        if not place.is_relative_to(ROOT) or not place.exists():
            return found[0]  # mkdocs says what is wrong with it
        known = uri_of(place.relative_to(ROOT))
        if known is None:
            return text if text.startswith("`") else f"`{text}`"
        return f"[{text}]({relative(known, here)}{anchor})"

    return LINK.sub(replace, markdown)


def listing(example: Path) -> Path:
    """The page that shows an example."""
    return Path("examples") / f"{example.stem}.md"


def uri_of(path: Path) -> str | None:
    """Where the site has a file of the repository."""
    if str(path) in PAGES:
        return PAGES[str(path)]
    if path.parts[0] == "docs":
        return str(path.relative_to("docs"))
    if path.parts[0] == "examples":
        return str(listing(path)) if path.suffix == ".py" else "examples/index.md"
    return None


def relative(uri: str, here: str) -> str:
    return "../" * here.count("/") + uri
