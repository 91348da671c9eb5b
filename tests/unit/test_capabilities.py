"""What parts can do is declared and read in one place: no probes, no lists of concrete classes, counted in the sources."""

import ast
from pathlib import Path

import thinwire
from thinwire import catalog
from thinwire.core import Capability, capabilities_of, labels
from thinwire.describe import capability_rows, example, part_rows

ROOT = Path(thinwire.__file__).parent
PACKAGES = ("compressors", "aggregators", "feedback", "controllers", "topologies")
KIND_PROTOCOLS = {"Compressor", "Aggregator", "Controller", "Topology"}  # what a part is, not what it can do

# getattr and hasattr with a literal name or a default, of something that is no part
ALLOWED_PROBES = {
    "core/capabilities.py": "the one place that reads a declaration",
    "testing": "observes what a part does, whatever it declares",
    "core/tunable.py": "the one place that reads how a part is turned",
    "core/torch_private.py": "private names of torch",
    "catalog/kinds.py": "a class that is being registered",
    "core/signatures.py": "an object outside the catalog may say how it is compared",
    "core/state.py": "states are named tuples, or plain ones",
    "core/options.py": "a GradScaler",
    "checkpoint/tree.py": "named tuples are refused",
    "catalog/reader.py": "nodes and errors of ast",
    "integrations/local_options.py": "an optimizer",
    "integrations/wrappers.py": "a model",
    "integrations/ddp_hook_slot.py": "a model",
    "cli/json_output.py": "options of a command",
}
# isinstance over concrete parts, lists of their classes
ALLOWED_CLASSES = {
    "catalog": "the list of all parts",
}


def trees():
    for path in sorted(ROOT.rglob("*.py")):
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def calls(tree, *names):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield node


def allowed(name, table):
    return name in table or name.split("/")[0] in table


def imported_from(tree, *packages):
    """Names of classes that a file imports from these packages, as it calls them."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and set((node.module or "").split(".")) & set(packages):
            found |= {a.asname or a.name for a in node.names if a.name[:1].isupper() and not a.name.isupper()}
            found |= {
                a.asname or a.name for a in node.names if a.name in ("QSGD", "CP", "DGC", "SCAM", "EF21", "HOSVD")
            }
    return found


def names_in(node):
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} | {
        each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)
    }


def probes():
    for name, tree in trees():
        for call in calls(tree, "getattr", "hasattr"):
            literal = len(call.args) > 1 and isinstance(call.args[1], ast.Constant)
            if call.func.id == "hasattr" or literal or len(call.args) == 3:
                yield name, call.lineno


def class_checks():
    """isinstance over concrete parts of another package."""
    for name, tree in trees():
        if name.split("/")[0] not in PACKAGES:
            known = imported_from(tree, *PACKAGES)
            for call in calls(tree, "isinstance", "issubclass"):
                if names_in(call.args[1]) & known:
                    yield name, call.lineno


def class_lists():
    """Tuples, lists, sets and unions of concrete parts of another package."""
    for name, tree in trees():
        if name.split("/")[0] not in PACKAGES:
            known = imported_from(tree, *PACKAGES)
            for node in ast.walk(tree):
                listed = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else ()
                if len([each for each in listed if isinstance(each, ast.Name) and each.id in known]) > 1:
                    yield name, node.lineno


def protocol_checks():
    """isinstance over the protocols of core that say what a part can do."""
    protocols = set()
    for name, tree in trees():
        if name.split("/")[0] == "core":
            protocols |= {
                node.name
                for node in ast.walk(tree)
                if isinstance(node, ast.ClassDef) and any("Protocol" in names_in(base) for base in node.bases)
            }
    for name, tree in trees():
        for call in calls(tree, "isinstance", "issubclass", "_keeps"):
            if names_in(call.args[1]) & (protocols - KIND_PROTOCOLS):
                yield name, call.lineno


def test_no_part_is_probed_for_a_name():
    found = list(probes())
    assert not [place for place in found if not allowed(place[0], ALLOWED_PROBES)]
    unused = [name for name in ALLOWED_PROBES if not any(allowed(place, {name: ""}) for place, _ in found)]
    assert not unused, "an exception that nothing needs"


def test_no_request_is_known_by_its_class():
    """Requests answer for themselves; what a test suite makes of answers may look at these."""
    kinds = {
        "AllReduce",
        "AllGather",
        "AllToAll",
        "ReduceScatter",
        "Broadcast",
        "NeighborExchange",
        "Work",
        "FlattenLayers",
    }
    found = [
        (name, call.lineno)
        for name, tree in trees()
        for call in calls(tree, "isinstance", "issubclass")
        if names_in(call.args[1]) & kinds and not name.startswith("core/requests")
    ]
    assert not found


def test_no_concrete_part_is_known_outside_its_package():
    found = [*class_checks(), *class_lists()]
    assert not [place for place in found if not allowed(place[0], ALLOWED_CLASSES)]


def test_no_decision_is_taken_by_the_methods_that_a_part_has():
    assert not [place for place in protocol_checks() if place[0] != "core/memories.py"]


def test_every_part_of_the_catalog_is_printed_with_its_capabilities():
    rows = {row["part"].split("(")[0]: row for row in part_rows()}
    assert rows.keys() == catalog.PARTS.keys()
    for name, entry in catalog.REGISTRY.registrations.items():
        text, part = example(entry)
        assert type(part) is entry.cls
        assert rows[name] == {"part": text, "kind": entry.kind, "capabilities": labels(capabilities_of(part)) or "–"}


def test_every_capability_is_explained_with_the_parts_that_have_it():
    rows = capability_rows()
    assert [row["capability"] for row in rows] == [capability.label for capability in Capability]
    assert all(row["parts"] for row in rows)
