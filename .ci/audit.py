"""Turn a pip-audit JSON report on stdin into an exit status: 0 clean, 1 vulnerable, 3 unknown.

pip-audit itself reports "no vulnerabilities" for packages that it could not look up. If the package index is a mirror
without advisories, that is every package.
"""

from __future__ import annotations

import argparse
import json
import sys

CLEAN, VULNERABLE, UNKNOWN = 0, 1, 3


def main() -> int:
    """Print the findings and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--if-possible", action="store_true", help="exit with 0 if the result is unknown, but still print that it is"
    )
    arguments = parser.parse_args()
    try:
        packages = json.load(sys.stdin)["dependencies"]
    except ValueError:  # pip-audit failed before it wrote a report.
        packages = []
    audited = [package for package in packages if "vulns" in package]
    findings = [
        f"{package['name']} {package['version']}: {vulnerability['id']}, "
        f"fixed in {', '.join(vulnerability['fix_versions']) or 'no version yet'}"
        for package in audited
        for vulnerability in package["vulns"]
    ]
    for finding in findings:
        print(finding)
    if findings:
        print(f"{len(findings)} known vulnerabilities: raise the pins in requirements/")
        return VULNERABLE
    if len(audited) == len(packages) > 0:
        print(f"{len(audited)} packages, no known vulnerability")
        return CLEAN
    print(
        f"NOT AUDITED: {len(packages) - len(audited)} of {len(packages)} packages have no advisories on this index "
        "(see the pip-audit output above). Run 'make audit' where the advisories can be reached"
    )
    return CLEAN if arguments.if_possible else UNKNOWN


if __name__ == "__main__":
    sys.exit(main())
