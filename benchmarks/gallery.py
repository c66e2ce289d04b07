"""Record the trainings of `examples/slow`, and measure the gain of their patches, for the gallery of the site.

The results are `docs/gallery/*.json`. Run this on an idle machine, and `make pages` afterwards.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tutorials import ROOT, output_of

SLOW = ROOT / "examples/slow"
RESULTS = ROOT / "docs/gallery"
SECONDS = 10


def main() -> None:
    """Renew the results of the trainings."""
    names = sorted(path.stem for path in SLOW.glob("*.py"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=names, help="names of trainings (default: all)")
    RESULTS.mkdir(exist_ok=True)
    for name in parser.parse_args().names:
        with tempfile.TemporaryDirectory() as folder:
            result = measured(name, Path(folder))
        (RESULTS / f"{name}.json").write_text(json.dumps(result, separators=(",", ":")) + "\n", encoding="utf-8")
        print(f"{name}: {result['verdict']}")


def measured(name: str, folder: Path) -> dict[str, Any]:
    """Return the printed summary, the data of the report, and the verdict about the patch.

    Raises SystemExit if the patch does not make the steps faster.
    """
    script = f"{name}.py"
    shutil.copy(SLOW / script, folder)
    printed = output_of(f"perfhooks run --run slow {script}", folder)
    report = json.loads((folder / "perf/slow/report.json").read_bytes())
    for field in ("inputs", "lost"):
        report.pop(field, None)
    report["run"].pop("host", None)
    fixed = folder / "fixed"
    fixed.mkdir()
    shutil.copy(SLOW / script, fixed)
    subprocess.run(["git", "apply", SLOW / f"{name}.patch"], cwd=fixed, check=True)
    compared = output_of(f"perfhooks compare --seconds {SECONDS} --run {script} -- fixed/{script}", folder)
    verdict = compared.partition("\n")[0]
    if not verdict.startswith("Faster: "):
        sys.exit(f"{name}: the patch gives no measured gain:\n{compared}")
    return {"printed": printed, "verdict": verdict, "report": report}


if __name__ == "__main__":
    main()
