"""`thinwire doctor`: check versions, kernels, backend and links, and run a self-test.

Under torchrun it examines the actual process group, else two processes of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .extras import INSTALL, find_missing_packages
from .json_output import add_json_option
from .parsers import SubParsers
from .plain_tables import print_table

if TYPE_CHECKING:
    from ..self_test import Finding


def add_to(commands: SubParsers) -> None:
    parser = commands.add_parser(
        "doctor", help="check the installation: versions, kernels, links, self-test", description=__doc__
    )
    add_json_option(parser, "the findings")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """0 if no finding is wrong, else 1, the same on every rank of a group; rank 0 prints."""
    from ..drivers.rendezvous import init_from_env, is_torchrun
    from ..self_test import examine_group, examine_here

    if not is_torchrun():
        findings = [*examine_installation(), *examine_here()]
        return print_findings(findings, "this machine, with 2 processes", options.json)
    with init_from_env() as driver:
        group = examine_group(driver)
        if driver.world.rank:
            return 1 if group.failures else 0
    findings = [*examine_installation(), *group.findings()]
    return print_findings(findings, f"a group of {os.environ['WORLD_SIZE']} ranks, seen from rank 0", options.json)


def examine_installation() -> list[Finding]:
    """Findings about this machine, the library and the laboratory's packages."""
    from thinwire_lab.testbed.tools import examine_tools

    from ..self_test import Finding, examine_machine

    missing = find_missing_packages()
    laboratory = (
        f"{', '.join(missing)} not installed; {INSTALL} installs what experiments need" if missing else "installed"
    )
    return [*examine_machine(), Finding("laboratory", laboratory), *examine_tools()]


def print_findings(findings: Sequence[Finding], where: str, file: Path | None) -> int:
    marks = {True: "✓", False: "✗", None: ""}
    rows = [(marks[finding.is_ok], finding.name, finding.text) for finding in findings]
    print_table(("", "what", "found"), rows, f"thinwire doctor: {where}")
    wrong = [finding for finding in findings if finding.is_ok is False]
    if any(finding.name == "advice" for finding in findings):
        print("The advice is a rule of thumb: model, batch size and cores matter as well. Measure both.")
    for finding in wrong:
        print(f"✗ {finding.name}: {finding.text}")
    print("✗ Some checks failed." if wrong else "✓ All checks passed.")
    if file is not None:
        file.write_text(json.dumps({"well": not wrong, "findings": [f._asdict() for f in findings]}, indent=1) + "\n")
    return 1 if wrong else 0
