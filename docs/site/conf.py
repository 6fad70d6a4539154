"""How Sphinx makes the site. `build.py` runs it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import embeddedpulsar

project = "embeddedpulsar"
author = "The authors of embeddedpulsar"
copyright = "the authors of embeddedpulsar. Apache License 2.0"
release = version = embeddedpulsar.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "flowcharts"]
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
myst_fence_as_directive = ["mermaid"]
source_suffix = {".md": "markdown"}
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
napoleon_use_rtype = False
napoleon_use_ivar = True
# Names such as `Client` are those of the blocking API and of asyncio: a reader knows which is meant.
suppress_warnings = ["ref.python"]
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"embeddedpulsar {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_show_sourcelink = False
html_copy_source = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {"color-brand-primary": "#0b63b0", "color-brand-content": "#0b63b0"},
    "dark_css_variables": {"color-brand-primary": "#6cb6ff", "color-brand-content": "#6cb6ff"},
}
