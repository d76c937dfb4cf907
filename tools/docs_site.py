"""Build the guides and an API reference as a site: `make docs`, then build/docs/index.html.

Nothing is fetched while it is built, and the pages load nothing from elsewhere: they can be read
from a folder. A broken link, an unknown anchor or a docstring that does not fit its function ends
the build with an error.

The guides stay where they are, beside the code: they are copied, with the files that they link, to
build/docs-source, and a page for each package is added, whose text comes from the docstrings.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
SOURCE, SITE = ROOT / "build" / "docs-source", ROOT / "build" / "docs"
GUIDES = {
    "hpcdi": "README.md",
    "Quickstart": "guides/QUICKSTART.md",
    "Experiments": "configs/README.md",
    "Scores": "configs/SCORES.md",
    "On a cluster": "slurm/README.md",
    "PBS and LSF": "slurm/PBS_LSF.md",
    "How it works": "hpcdi/README.md",
    "Write an algorithm": "hpcdi/policy/README.md",
    "Vary an algorithm": "hpcdi/policy/VARY.md",
    "Bring an environment": "hpcdi/env/README.md",
    "Environments that are MPI programs": "hpcdi/env/MPI.md",
    "Teams: all players learn": "hpcdi/env/TEAMS.md",
    "Tuning and NaN": "guides/TUNING.md",
    "Data": "guides/DATA.md",
    "Faults": "guides/FAULTS.md",
    "Several players": "guides/LEAGUE.md",
    "Coming from DI-engine": "hpcdi/worker/README.md",
    "Changes": "CHANGELOG.md",
}
_LINK = re.compile(r"(?:\]\(|(?:src|href)=\")([^)\s\"#:]+)(?:#[^)\s\"]*)?[)\"]")


def main() -> int:
    """Build the site; returns MkDocs' exit code."""
    left_out = {str(path.relative_to(ROOT)) for path in _guides()} - set(GUIDES.values())
    if left_out:
        sys.stderr.write(f"{Path(__file__).name}: name these in GUIDES: {sorted(left_out)}\n")
        return 1
    shutil.rmtree(SOURCE, ignore_errors=True)
    for guide in GUIDES.values():
        _copy(ROOT / guide)
    reference = [{name: _page(name, modules)} for name, modules in _packages()]
    settings = _settings([{title: path} for title, path in GUIDES.items()], reference)
    config = SOURCE.with_name("mkdocs.yml")
    config.write_text(yaml.safe_dump(settings, sort_keys=False))
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # about a successor of MkDocs
    code = subprocess.run(command, check=False, env=environment).returncode
    if not code:
        sys.stdout.write(f"{SITE.relative_to(ROOT)}/index.html\n")
    return code


def _guides() -> Iterator[Path]:
    """Yields the guides of the checkout."""
    for folder in (".", "configs", "guides", "slurm", "hpcdi"):
        top = ROOT / folder
        yield from top.glob("*.md") if folder == "." else top.rglob("*.md")


def _copy(guide: Path) -> None:
    """Copy a guide, and the files that it links which are no guides."""
    text = guide.read_text()
    linked = [guide.parent / link for link in _LINK.findall(text)]
    for path in [guide, *(p for p in linked if p.is_file() and p.suffix != ".md")]:
        target = SOURCE / path.resolve().relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def _packages() -> Iterator[tuple[str, list[str]]]:
    """Yields each package of hpcdi with its modules, by their dotted names."""
    for init in sorted((ROOT / "hpcdi").rglob("__init__.py")):
        folder = init.parent
        names = sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))
        package = ".".join(folder.relative_to(ROOT).parts)
        yield package, [f"{package}.{name}" for name in names]


def _page(package: str, modules: list[str]) -> str:
    """Write the page of a package; returns its path in the site's source."""
    lines = [f"# {package}", "", f"::: {package}", "    options:", "      members: false", ""]
    for module in modules:
        lines += [f"::: {module}", ""]
    path = SOURCE / "api" / f"{package}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines))
    return str(path.relative_to(SOURCE))


def _settings(guides: list[dict[str, str]], reference: list[dict[str, str]]) -> dict[str, Any]:
    options = {
        "docstring_style": "google",
        "show_root_heading": True,
        "show_root_full_path": True,
        "show_source": False,
        "show_if_no_docstring": False,
        "show_signature_annotations": True,
        "separate_signature": True,
        "members_order": "source",
        "heading_level": 2,
    }
    return {
        "site_name": "hpcdi",
        "docs_dir": str(SOURCE),
        "site_dir": str(SITE),
        "use_directory_urls": False,  # so that it can be read from a folder, without a server
        "theme": {"name": "material", "font": False},
        "plugins": [
            "search",
            {"mkdocstrings": {"handlers": {"python": {"paths": [str(ROOT)], "options": options}}}},
        ],
        "markdown_extensions": ["tables", "pymdownx.highlight", "pymdownx.superfences", "toc"],
        "validation": {
            "links": {"not_found": "warn", "anchors": "warn", "unrecognized_links": "warn"}
        },
        "nav": [*guides, {"Reference": reference}],
    }


if __name__ == "__main__":
    sys.exit(main())
