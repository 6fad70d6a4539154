"""`make docs`: the pages as a site, in `build/site/html`, without the network.

The pages in `docs` are read where an editor or a code forge shows them, too, and have nothing of the site:
this copies them, adds the navigation and the reference, and has Sphinx make HTML. A link that leads nowhere,
to a page, to a heading or to a file, ends the build.
"""

from __future__ import annotations

import enum
import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))

from navigation import REFERENCE, SECTIONS, TITLES  # noqa: E402

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)]*)?\)")
COPIED = (
    "docs",
    "examples",
    "benchmarks",
    "tests",
    "embeddedpulsar",
    "README.md",
    "SECURITY.md",
    "CITATION.cff",
)
COPIED += ("MANIFEST.in", "LICENSE", "Makefile", "pyproject.toml", "setup.cfg")


def copy_pages(target: Path) -> Path:
    """Copy the pages, and the files that they have links to. Returns the folder of the pages."""
    shutil.rmtree(target, ignore_errors=True)
    pages = target / "docs"
    shutil.copytree(ROOT / "docs", pages, ignore=shutil.ignore_patterns("site", "__pycache__"))
    for page in pages.rglob("*.md"):
        page.write_text(with_files(page, pages), "utf-8")
    return pages


def with_files(page: Path, pages: Path) -> str:
    """The text of a page. A file of the project that it has a link to is copied, for the site; a link
    to a folder becomes one to the page that describes it, or plain text."""
    source = ROOT / "docs" / page.relative_to(pages)

    def resolved(match: re.Match[str]) -> str:
        text, name, anchor = match[1], match[2], match[3] or ""
        file = (source.parent / name).resolve()
        if file == ROOT / "README.md":
            return f"[{text}]({up(page, pages)}readme.md{anchor})"
        if file.is_dir():
            described = file / "README.md"
            return f"[{text}]({name.rstrip('/')}/README.md)" if described.is_file() else text
        if not file.is_file() or file.is_relative_to(ROOT / "docs"):
            return match[0]
        shown = Path("files") / file.relative_to(ROOT)
        target = (pages / shown).with_name(shown.name + ".txt")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
        return f"[{text}]({up(page, pages)}{shown}.txt)"

    return LINK.sub(resolved, source.read_text("utf-8"))


def up(page: Path, pages: Path) -> str:
    """The way from the folder of a page to that of all pages."""
    return "../" * (len(page.relative_to(pages).parts) - 1)


def add_readme(pages: Path) -> None:
    """The README as a page, with its links as seen from there."""
    text = (ROOT / "README.md").read_text("utf-8")
    definition = re.compile(r"^\[([^\]]+)\]: (?!https?:)(\S+)$", re.MULTILINE)
    targets = dict(definition.findall(text))
    text = definition.sub("", text)
    inline = re.sub(
        r"\]\[([^\]]+)\]", lambda match: f"]({targets[match[1]]})" if match[1] in targets else match[0], text
    )
    inline = inline.replace("](docs/", "](")
    page = pages / "readme.md"
    page.write_text(inline, "utf-8")
    page.write_text(with_links_of_root(inline, pages), "utf-8")


def with_links_of_root(text: str, pages: Path) -> str:
    """Links from the folder of the project to its files, as links to copies."""

    def resolved(match: re.Match[str]) -> str:
        file = ROOT / match[2]
        if (pages / match[2]).exists() or not file.exists():
            return match[0]
        if file.is_dir():
            return match[1]
        shown = Path("files") / match[2]
        target = (pages / shown).with_name(shown.name + ".txt")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
        return f"[{match[1]}]({shown}.txt)"

    return LINK.sub(resolved, text)


def add_reference(pages: Path) -> list[str]:
    """A page for each part of the API; of what is not installed, none. Returns their names."""
    folder = pages / "api"
    folder.mkdir()
    names = []
    for title, modules in REFERENCE.items():
        try:
            loaded = [importlib.import_module(name) for name in modules]
        except ImportError as missing:
            print(f"no reference of {title}: {missing}")
            continue
        name = title.lower().replace(".", "-")
        text = "\n\n".join(reference_of(module) for module in loaded)
        (folder / f"{name}.md").write_text(f"# {title}\n\n{text}\n", "utf-8")
        names.append(f"api/{name}")
    return names


def reference_of(module: ModuleType) -> str:
    """The directives of autodoc for the public names of a module."""
    public = [name for name in names_of(module) if is_own(module, getattr(module, name))]
    lines = ["```{eval-rst}", f".. currentmodule:: {module.__name__}", ""]
    classes = [name for name in public if isinstance(getattr(module, name), type)]
    errors = [name for name in classes if issubclass(getattr(module, name), BaseException)]
    for name in sorted(set(classes) - set(errors)):
        # The methods of `int` say nothing of an enumeration.
        is_enumeration = issubclass(getattr(module, name), enum.Enum)
        inherited = [] if is_enumeration else ["   :inherited-members: object, tuple, dict, int"]
        lines += [f".. autoclass:: {name}", "   :members:", *inherited, ""]
    functions = [
        name for name in public if name not in classes and type(getattr(module, name)).__name__ == "function"
    ]
    for name in sorted(functions):
        lines += [f".. autofunction:: {name}", ""]
    for name in sorted(errors):
        lines += [f".. autoexception:: {name}", ""]
    return "\n".join([*lines, "```"])


def names_of(module: ModuleType) -> list[str]:
    """The public names of a module."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [name for name in vars(module) if not name.startswith("_")]


def is_own(module: ModuleType, value: object) -> bool:
    """Whether a value belongs to the page of a module, and is not one that it has from another part."""
    place = str(getattr(value, "__module__", ""))
    if module.__name__ == "embeddedpulsar":
        return not place.startswith(("embeddedpulsar.schema.", "embeddedpulsar.functions."))
    return place == module.__name__ or (
        hasattr(module, "__all__") and place.startswith(f"{module.__name__}.")
    )


def add_navigation(pages: Path, reference: list[str]) -> None:
    """The tables of contents at the end of the first page: sections by what a reader wants to do."""
    placed = {name for names in SECTIONS.values() for name in names}
    others = sorted({page.stem for page in pages.glob("*.md")} - placed - {"index", "readme"})
    sections = {**SECTIONS, "Know": (*SECTIONS["Know"], *others), "Reference": tuple(reference)}
    text = (pages / "index.md").read_text("utf-8")
    for caption, names in sections.items():
        there = [
            f"{TITLES[name]} <{name}>" if name in TITLES else name
            for name in names
            if (pages / f"{name}.md").is_file()
        ]
        text += "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *there, "```", ""])
    inner = ["readme", *sorted(str(page.relative_to(pages))[:-3] for page in pages.glob("*/*.md"))]
    hidden = [name for name in inner if not name.startswith("api/")]
    text += "\n".join(
        ["", "```{toctree}", ":hidden:", ":caption: Inside", ":maxdepth: 1", "", *hidden, "```", ""]
    )
    (pages / "index.md").write_text(text, "utf-8")


def main() -> int:
    """Build the site; the exit status is that of Sphinx."""
    target = ROOT / "build" / "site"
    pages = copy_pages(target / "pages")
    add_readme(pages)
    add_navigation(pages, add_reference(pages))
    shutil.rmtree(target / "html", ignore_errors=True)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-j", "auto", "-b", "html"]
    folders = [
        "-c",
        str(Path(__file__).parent),
        "-d",
        str(target / "cache"),
        str(pages),
        str(target / "html"),
    ]
    status = subprocess.run([*command, *folders], cwd=ROOT).returncode
    print(f"{target / 'html' / 'index.html'}" if status == 0 else "the site is not whole: see above")
    return status


if __name__ == "__main__":
    sys.exit(main())
