"""Draw the pictures of the docs from a run.

Example: python -m benchmarks.pictures runs/demo --figures docs/images --picture docs/images/demo.png
"""

import argparse
import sys
from pathlib import Path

from benchmarks.pictures.figures import save_figures
from benchmarks.pictures.picture import save_picture
from vla_rl.cli.main import say_errors


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.pictures", description=__doc__)
    parser.add_argument("run", type=Path, help="the run folder")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="success and one episode in one PNG")
    parser.add_argument("--figures", type=Path, metavar="DIR", help="the SVGs of docs/method.md")
    arguments = parser.parse_args()

    def draw() -> int:
        drawn = [save_picture(arguments.run, arguments.picture)] if arguments.picture else []
        drawn += save_figures(arguments.run, arguments.figures) if arguments.figures else []
        print(*drawn, sep="\n")
        return 0

    return say_errors("benchmarks", "pictures", draw, last=True)


if __name__ == "__main__":
    sys.exit(main())
