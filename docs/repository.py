"""MkDocs hook: files of the repository that are pages of the site, too.

A page links to them by their path in the repository, so that the link works wherever
the repository is read. Here such a link becomes one to the page of the site. A link to
any other file that exists becomes plain text; a link to nothing stays, and fails
`mkdocs build --strict`.

The theme's search takes each word for the beginning of words, so that "is a" finds half
of the manual. `search.js` stands before it and leaves the words that mean something.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).parents[1]

PAGES: Final = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "quick-start.md",
    "SECURITY.md": "security-policy.md",
    "compose/README.md": "compose.md",
    "dashboards/README.md": "runbook.md",
    "tracing_2pc/http/openapi.yaml": "openapi.yaml",
}
"""Path in the repository, and path in the site."""

LONG: Final = {"api.md", "faq.md"}
"""They begin with a list of what is on them; `site.css` shows it on telephones."""

LAST: Final = {"architecture.md", "changelog.md", "contributing.md", "performance.md"}
"""The search shows these below what users look for."""

_LINK: Final = re.compile(r"\[([^\]]+)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to where their targets are in the site."""
    here = page.file.src_uri
    if here in LAST:
        page.meta["search"] = {"boost": 0.2}
    sources = {there: source for source, there in PAGES.items()}
    folder = posixpath.dirname(sources.get(here, f"docs/{here}"))

    def lead(link: re.Match[str]) -> str:
        text, target, anchor = link[1], link[2], link[3] or ""
        path = posixpath.normpath(posixpath.join(folder, target))
        if path in PAGES:
            return f"[{text}]({PAGES[path]}{anchor})"
        if path.startswith("docs/"):
            return f"[{text}]({path.removeprefix('docs/')}{anchor})"
        return text if (ROOT / path).exists() else link[0]

    return _LINK.sub(lead, markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """List what is on a long page, after its title; the search passes the list over."""
    if page.file.src_uri not in LONG:
        return html
    (title,) = page.toc.items
    title_end = html.index("</h1>") + len("</h1>")
    listed = f"<div class='on-this-page' data-search-exclude>{_listed(title)}</div>"
    return html[:title_end] + listed + html[title_end:]


def _listed(heading: Any) -> str:
    items = (
        f"<li><a href='{child.url}'>{child.title}</a>"
        f"{_listed(child) if child.level == 2 else ''}</li>"
        for child in heading.children
    )
    return f"<ul>{''.join(items)}</ul>" if heading.children else ""


def on_post_build(config: Any) -> None:
    """Put ours before the theme's search."""
    ours = (ROOT / "docs" / "search.js").read_text(encoding="utf-8")
    (worker,) = Path(config.site_dir).glob("assets/javascripts/workers/search.*.js")
    worker.write_text(ours + worker.read_text(encoding="utf-8"), encoding="utf-8")
