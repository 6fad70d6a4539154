"""The pages in docs/format say what the code does: byte tables, constants and worked examples."""

from __future__ import annotations

import ast
import importlib
import re
import struct
from collections.abc import Callable
from typing import Any

import pytest

from embeddedpulsar._engine.format import (
    acknowledgement,
    control,
    document,
    entry,
    frame,
    journal_record,
    subscription_record,
)
from tests.source_tree import ROOT, modules, nodes

PAGES = sorted((ROOT / "docs" / "format").glob("*.md"))
MARK = re.compile(r"<!-- (struct|constants|example): (\S+) -->\n((?:.*\n)*?)(?:\n|\Z)")
SIZES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i32": "i", "i64": "q"}


def marked(kind: str) -> list[tuple[str, str, str]]:
    """(page, what it describes, the lines) of every marked table or example."""
    return [
        (page.name, target, block)
        for page in PAGES
        for found, target, block in MARK.findall(page.read_text("utf-8"))
        if found == kind
    ]


def rows(block: str) -> list[list[str]]:
    """The cells of a table, without its two head lines."""
    lines = [line for line in block.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def resolve(target: str) -> Any:
    """The object behind a dotted name: module attributes, then attributes of those."""
    parts = target.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"no such name: {target}")


def format_of(kind: str) -> str:
    """The struct character of a type in a table."""
    if kind in SIZES:
        return SIZES[kind]
    match = re.fullmatch(r"(bytes|zero)\[(\d+)\]", kind)
    assert match, kind
    return match[2] + ("s" if match[1] == "bytes" else "x")


@pytest.mark.parametrize(("page", "target", "block"), marked("struct"))
def test_tables_are_the_structs(page: str, target: str, block: str):
    """Offsets, sizes and types of a byte table are those of the struct that packs it."""
    expected = resolve(target)
    assert isinstance(expected, struct.Struct)
    offset, characters = 0, "<"
    for off, size, kind, *_ in rows(block):
        assert int(off) == offset, f"{page}: {kind} at {off}"
        assert int(size) == struct.calcsize("<" + format_of(kind)), f"{page}: {kind} at {off}"
        characters += format_of(kind)
        offset += int(size)
    assert characters == expected.format
    assert offset == expected.size


@pytest.mark.parametrize(("page", "target", "block"), marked("constants"))
def test_tables_are_the_constants(page: str, target: str, block: str):
    """Values of a table of constants are those of the code."""
    owner = resolve(target)
    for value, name, _ in rows(block):
        base, _, shift = value.partition(" << ")
        assert getattr(owner, name) == int(base) << int(shift or 0), f"{page}: {name}"


@pytest.mark.parametrize(
    ("owner", "prefix"),
    [
        (frame, "KIND_"),
        (frame, "CODEC_"),
        (frame, "FLAG_"),
        (control, "KIND_"),
        (document, "KIND_"),
        (control.TopicWord, ""),
        (control.SubscriptionWord, ""),
        (control.StoreWord, ""),
        (control.ResourceGroupWord, ""),
        (control.TransactionWord, ""),
        (control.TransactionSlotWord, ""),
    ],
)
def test_no_persistent_value_is_undocumented(owner: Any, prefix: str):
    """Every value that ends up in a file stands in a table."""
    name = owner.__name__ if isinstance(owner, type(frame)) else f"{owner.__module__}.{owner.__name__}"
    documented = {row[1] for _, target, block in marked("constants") if target == name for row in rows(block)}
    found = {
        key for key in vars(owner) if key.isupper() and key.startswith(prefix) and not key.startswith("_")
    }
    assert found <= documented


WORD_CLASSES = ("TopicWord", "SubscriptionWord", "StoreWord")


def words_beside() -> dict[tuple[str, str], int]:
    """(module, name) -> index of every word that a module puts "so many behind" one of control.py."""
    found = {}
    for module, tree in modules().items():
        for node in nodes(tree):
            if isinstance(node, ast.BinOp) and isinstance(node.left, ast.Attribute):
                owner = node.left.value
                if isinstance(owner, ast.Name) and owner.id in WORD_CLASSES and isinstance(node.op, ast.Add):
                    name = next((name for name, value in assigned(tree) if value is node), "")
                    assert name, f"{module}:{node.lineno}: a word without a name of its own"
                    found[module, name] = getattr(resolve(module), name)
    return found


def assigned(tree: ast.Module) -> list[tuple[str, ast.expr]]:
    """Names and values of the assignments at the top of a module."""
    return [
        (node.target.id, node.value)
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None
    ]


def test_words_beside_those_of_control_are_documented():
    """Modules that put words of their own beside others have a table, too, and take no other's place."""
    documented = {
        (target, row[1])
        for _, target, block in marked("constants")
        for row in rows(block)
        if row[0].isdigit()
    }
    beside = words_beside()
    assert {"JOURNAL_CHECKED", "TOUCHED", "POISON_TO"} <= {name for _, name in beside}
    assert set(beside) <= documented
    topic = [value for key, value in vars(control.TopicWord).items() if key.isupper()]
    taken = [*topic, *beside.values()]
    assert len(taken) == len(set(taken)), "two words share a place"


def test_no_word_is_used_by_number():
    """`words[97]` would escape the tables."""
    for module, tree in modules().items():
        for node in nodes(tree):
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                owner = node.value.attr if isinstance(node.value, ast.Attribute) else ast.unparse(node.value)
                assert owner.lstrip("_") != "words", f"{module}:{node.lineno}"


def example_frame() -> bytes:
    """Producer p1 publishes hi."""
    encoded = entry.encode_single(b"hi", 0, entry.ProducerPrefix("p1"))
    length = frame.HEADER_SIZE + encoded.size + frame.TRAILER_SIZE
    header, _ = frame.seal(
        length, 0x11223344, encoded.body_crc, 1, 0, 0, 0, 1_700_000_000_000, 1, encoded.metadata_length
    )
    return header + b"".join(encoded.parts) + frame.pack_trailer(length)


def example_slot() -> bytes:
    """Of that frame."""
    return frame.pack_slot(4096, 0, 1, 0, 0, 1, frame.read_header(example_frame(), 0, 112).crc)


def example_segment() -> bytes:
    """Ledger 7 behind ledger 6."""
    header = frame.SegmentHeader(
        ledger_id=7,
        created_ms=1_700_000_000_000,
        base_publish_ms=1_700_000_000_000,
        boot_id=b"B" * 16,
        store_id=b"S" * 16,
        topic_incarnation=1,
        chain_seed=0x11223344,
        log_size=64 << 20,
        index_capacity=250_880,
        prev_ledger_id=6,
        prev_end_offset=4208,
        prev_last_entry_id=0,
        prev_last_crc=0x55667788,
        prev_messages=1,
    )
    return frame.pack_segment_header(header)[: frame.SEGMENT_HEADER.size]


def example_control() -> bytes:
    """A topic's ctl up to its tail word."""
    header = control.ControlHeader(control.KIND_TOPIC, b"B" * 16, 1, 2, 3)
    return control.pack_control_header(header) + control.tail_word(7, 4208).to_bytes(8, "little")


def example_journal() -> bytes:
    """Generation 1 of a subscription, one record."""
    header = journal_record.pack_journal_header(journal_record.JournalHeader(1, 0x11223344, 0, 3))
    return header + journal_record.pack_record(1, b"abc", 0x11223344, 1_700_000_000_000)[0]


def example_document() -> bytes:
    """A topic.meta of one field."""
    return document.encode_document(2, {"n": 1})


def example_transaction_ack() -> bytes:
    """One entry, in a transaction."""
    ack = acknowledgement.Ack(3, 4, acknowledgement.group_entries([(9, 1)]), ())
    return subscription_record.encode(subscription_record.TransactionAck((0, 17), ack, None))[1]


def example_revised() -> bytes:
    """The columns of a message whose key is bytes, in an entry that came from another cluster."""
    content = entry.EntryContent(
        [b"hi"], batched=False, keys=[b"\xff"], fields=entry.EntryFields(replicated_from="east")
    )
    encoded = entry.encode(content, entry.ProducerPrefix("p1"))
    return b"".join(encoded.parts)[encoded.metadata_length :]


def example_pulsar() -> bytes:
    """What stands behind the metadata of an entry of Pulsar."""
    sent = bytes.fromhex("0000000e 0a0170 1000 1880d095ffbc31 4802") + b"hi"
    encoded = entry.encode_pulsar(sent)
    return b"".join(encoded.parts)[encoded.metadata_length :]


EXAMPLES: dict[str, Callable[[], bytes]] = {
    "revised": example_revised,
    "pulsar": example_pulsar,
    "frame": example_frame,
    "slot": example_slot,
    "segment": example_segment,
    "control": example_control,
    "journal": example_journal,
    "document": example_document,
    "transaction_ack": example_transaction_ack,
}


@pytest.mark.parametrize(("page", "target", "block"), marked("example"))
def test_examples_are_what_the_encoders_write(page: str, target: str, block: str):
    """The bytes of a worked example come out of the code; lines that are left out are zeros."""
    if target not in EXAMPLES:
        pytest.skip("checked beside its own encoder")
    shown: dict[int, bytes] = {}
    for line in block.splitlines():
        match = re.match(r"([0-9a-f]{4})  ((?:[0-9a-f]{2} ?)+)", line)
        if match:
            shown[int(match[1], 16)] = bytes.fromhex(match[2])
    first = min(shown)
    image = bytearray(max(at + len(data) for at, data in shown.items()) - first)
    for at, data in shown.items():
        image[at - first : at - first + len(data)] = data
    assert bytes(image) == EXAMPLES[target](), page


def test_every_example_is_shown():
    """Each page has its worked example."""
    assert set(EXAMPLES) <= {target for _, target, _ in marked("example")}


def test_links_between_pages_lead_somewhere():
    """Relative links of the format pages name files that exist."""
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
