"""A location that does what a test says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow.fs as fs
import pytest

from embeddedpulsar._engine.cold import location


class Faulty(fs.FileSystemHandler):
    """A local file system that does what a test says.

    Attributes:
        fails: called with the operation and the path; may raise.
    """

    def __init__(self) -> None:
        self.below = fs.LocalFileSystem()
        self.fails: Callable[[str, str], object] = lambda operation, path: None

    def get_type_name(self) -> str:
        return "faulty"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> Any:
        for path in paths:
            self.fails("look", path)
        return self.below.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        raise OSError("a listing of this location is not to be believed")

    def create_dir(self, path: str, recursive: bool) -> None:
        self.below.create_dir(path, recursive=recursive)

    def delete_file(self, path: str) -> None:
        self.fails("delete", path)
        self.below.delete_file(path)

    def open_input_file(self, path: str) -> Any:
        self.fails("read", path)
        return self.below.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        self.fails("write", path)
        return self.below.open_output_stream(path)

    def _refuse(self, *_: object) -> Any:
        raise NotImplementedError

    delete_dir = delete_dir_contents = delete_root_dir_contents = move = copy_file = _refuse
    open_input_stream = open_append_stream = _refuse


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Faulty:
    """In the place of every location."""
    made = Faulty()
    monkeypatch.setattr(location, "filesystem_of", lambda uri: (fs.PyFileSystem(made), uri))
    monkeypatch.setattr(location, "_opened", {})
    return made
